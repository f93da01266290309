// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"errors"
	"fmt"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/opsledger/opsledger/ledger"
)

// errDamaged says that what is stored is not what was written. It never shows it.
var errDamaged = ledger.ErrDamaged

// errClosed is what calls after Close are told.
var errClosed = fmt.Errorf("%w: it is closed", ledger.ErrStoreUnavailable)

// errUnended says that a transaction that only read could not be ended.
var errUnended = errors.New("a transaction did not end")

// unavailable says that a step failed, without the driver's text.
func unavailable(step string, err error) error {
	var lite *sqlite.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s: %w", ledger.ErrStoreUnavailable, step, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %s: %w", ledger.ErrStoreUnavailable, step, context.Canceled)
	case errors.As(err, &lite):
		return fmt.Errorf("%w: %s: SQLite code %d", ledger.ErrStoreUnavailable, step, lite.Code())
	case errors.Is(err, errDamaged):
		return fmt.Errorf("%w: %s: %w", ledger.ErrStoreUnavailable, step, errDamaged)
	default:
		return fmt.Errorf("%w: %s: the file can't be used", ledger.ErrStoreUnavailable, step)
	}
}

// lostRace reports whether a statement failed only because the row or event is there already.
func lostRace(err error) bool {
	var lite *sqlite.Error
	if !errors.As(err, &lite) {
		return false
	}
	return lite.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || lite.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
}

// constrained reports whether a statement failed for what it is about, and not for the file's sake.
func constrained(err error) bool {
	var lite *sqlite.Error
	return errors.Is(err, errRace) || errors.As(err, &lite) && lite.Code()&0xff == sqlite3.SQLITE_CONSTRAINT
}

// busy reports whether another process has a lock.
func busy(err error) bool {
	var lite *sqlite.Error
	return errors.As(err, &lite) && lite.Code()&0xff == sqlite3.SQLITE_BUSY
}

// harmless reports whether a connection is as good as before.
func harmless(err error) bool {
	return errors.Is(err, ledger.ErrRecordTooNew) || errors.Is(err, ledger.ErrStoreUnavailable) || errors.Is(err, errDamaged)
}

// clean reports whether a transaction is as it was before what failed.
func clean(err error) bool {
	var torn *tornError
	return !errors.As(err, &torn) && (constrained(err) || harmless(err))
}

// whole is what is left of an error when what was torn is undone.
func whole(err error) error {
	var torn *tornError
	if errors.As(err, &torn) {
		return torn.error
	}
	return err
}

// refused returns an error if the database will never take the row: a fault of this release, which no retry mends.
func refused(err error) error {
	var lite *sqlite.Error
	if !errors.As(err, &lite) || !constrained(err) || lostRace(err) {
		return nil
	}
	return fmt.Errorf("sqlite: the database refuses the row: code %d", lite.Code())
}
