// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// damage spoils what a row keeps beside its columns.
func (s *site) damage(t *testing.T, id ledger.OperationID) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+url.PathEscape(s.path)+"?_pragma=busy_timeout(2000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	done, err := db.ExecContext(t.Context(), "UPDATE operations SET detail = ? WHERE id = ?", []byte("{"), id[:])
	if err != nil {
		t.Fatal(err)
	}
	if n, err := done.RowsAffected(); n != 1 || err != nil {
		t.Fatalf("%d rows were damaged, %v", n, err)
	}
}

// What can't be read is put off, and what is due behind it is not held up: neither is the store's failure.
func TestADamagedRowDelaysOnlyItself(t *testing.T) {
	s := newSite(t)
	poison := s.granted(t, "charge")
	s.advance(time.Second)
	good := s.granted(t, "charge")
	s.damage(t, poison)
	s.advance(time.Hour)
	l := s.loop(t, func(context.Context, *ledger.Operation) Verdict { return found(`{"amount":5}`) }, Options{})
	if done := once(t, l); len(done) != 1 || done[0].ID != good || done[0].Err != nil {
		t.Errorf("it did %+v", done)
	}
	s.wants(t, good, ledger.Completed, ledger.Automation, 0)
	if !l.putOff.waits(poison, time.Now()) {
		t.Error("what is damaged is not put off")
	}
	if _, _, err := s.store.Get(t.Context(), poison); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("what is damaged is read with %v", err)
	}
}
