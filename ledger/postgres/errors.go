// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/opsledger/opsledger/ledger"
)

// SQLSTATEs that are told apart.
const (
	serializationFailure  = "40001"
	deadlockDetected      = "40P01"
	readOnlyTransaction   = "25006"
	uniqueViolation       = "23505"
	lockNotAvailable      = "55P03"
	queryCanceled         = "57014"
	undefinedTable        = "42P01"
	undefinedColumn       = "42703"
	undefinedFunction     = "42883"
	insufficientPrivilege = "42501"
	featureNotSupported   = "0A000"
	integrityClass        = "23"
	dataClass             = "22"
	rollbackClass         = "40"
	limitClass            = "54"
)

// errDamaged says that what is stored is not what was written. It never shows it.
var errDamaged = ledger.ErrDamaged

// unavailable says that a step failed, without the driver's text.
func unavailable(step string, err error) error {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg):
		return fmt.Errorf("%w: %s: SQLSTATE %s", ledger.ErrStoreUnavailable, step, pg.Code)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %s: %w", ledger.ErrStoreUnavailable, step, context.DeadlineExceeded)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %s: %w", ledger.ErrStoreUnavailable, step, context.Canceled)
	case errors.Is(err, errDamaged):
		return fmt.Errorf("%w: %s: %w", ledger.ErrStoreUnavailable, step, errDamaged)
	case errors.Is(err, ledger.ErrStoreUnavailable): // a new connection was refused
		return err
	default:
		return fmt.Errorf("%w: %s: the connection failed", ledger.ErrStoreUnavailable, step)
	}
}

// lostRace reports whether a statement failed only because somebody else was faster.
func lostRace(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	return pg.Code == serializationFailure || pg.Code == deadlockDetected || pg.Code == uniqueViolation
}

// refused returns an error if the database will never take the row: a fault of this release, which no retry mends.
func refused(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code == uniqueViolation {
		return nil
	}
	switch pg.Code[:2] {
	case integrityClass, dataClass:
		return fmt.Errorf("postgres: the database refuses the row: SQLSTATE %s, constraint %q", pg.Code, pg.ConstraintName)
	default:
		return nil
	}
}

// isHeld reports whether another transaction has held a row for longer than was to be waited.
func isHeld(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == lockNotAvailable
}

// isCanceled reports whether a statement took longer than it may.
func isCanceled(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == queryCanceled
}

// oneMayBeAtFault reports whether a batch has failed by something that may be the matter of one of its calls alone.
func oneMayBeAtFault(err error) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return errors.Is(err, errDamaged) || errors.As(err, new(pgx.ScanArgError)) || errors.As(err, new(*panicked))
	}
	switch pg.Code[:2] {
	case integrityClass, dataClass, limitClass:
		return true
	default:
		return isCanceled(err)
	}
}

// oneMayBeInTheWay reports whether other transactions were in the way of a batch, which need not want more than one of its rows.
func oneMayBeInTheWay(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == lockNotAvailable || pg.Code[:2] == rollbackClass)
}

// connectionLost reports whether no answer of the server arrived, so that other idle connections may be dead, too. A server that takes no
// writes was demoted: there may be another by now.
func connectionLost(err error) bool {
	var pg *pgconn.PgError
	switch {
	case err == nil, errors.Is(err, pgx.ErrNoRows), errors.Is(err, ledger.ErrRecordTooNew), errors.Is(err, errDamaged), errors.Is(err, ledger.ErrStoreUnavailable),
		errors.Is(err, errRace), errors.As(err, new(pgx.ScanArgError)):
		return false // an answer
	case errors.As(err, &pg):
		return pg.SeverityUnlocalized == "FATAL" || pg.Code == readOnlyTransaction
	default:
		return true
	}
}

// refusesWrites reports whether the server can only be read, which Ready says.
func refusesWrites(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == readOnlyTransaction
}

// missing reports whether an error says that there is no table or column of that name.
func missing(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == undefinedTable || pg.Code == undefinedColumn) || errors.Is(err, pgx.ErrNoRows)
}
