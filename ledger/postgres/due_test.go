// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/test/pgtest"
)

// beside opens a store and a connection beside it.
func beside(t *testing.T) (*Store, func(sql string)) {
	t.Helper()
	server := pgtest.Any(t)
	dsn := server.DSN(server.Database(t))
	s, err := Open(t.Context(), dsn, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return s, func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

func wantDue(t *testing.T, s *Store, what string, want int) {
	t.Helper()
	page, err := s.Due(t.Context(), ledger.DueQuery{Limit: 100})
	if err != nil || len(page.Due) != want {
		t.Errorf("%s: %d are due, want %d: %v", what, len(page.Due), want, err)
	}
}

// TestDueScanDoesNotReadWhatIsSettled: entries of operations that were settled stay in the index until a vacuum.
func TestDueScanDoesNotReadWhatIsSettled(t *testing.T) {
	s, run := beside(t)
	run("ALTER TABLE due SET (autovacuum_enabled = off)")
	run(openRows(20_000))
	run("UPDATE due SET next_check_time = now() - interval '1 hour' + random() * interval '1 second'")
	run("DELETE FROM due") // settled
	run("ANALYZE due")
	wantDue(t, s, "from the very beginning", 0)
	from, _ := s.mark.begin()
	if age := time.Since(from); age > markMargin+time.Minute {
		t.Fatalf("the mark is %v old", age)
	}
	first, marked := dueBuffers(t, s, time.Time{}), dueBuffers(t, s, from)
	t.Logf("%d buffers from the very beginning, %d from the mark", first, marked)
	if marked > 100 || first < 3*marked {
		t.Errorf("%d buffers from the very beginning, %d from the mark: want at most 100, and far fewer", first, marked)
	}
}

var hits = regexp.MustCompile(`Buffers: shared hit=(\d+)(?: read=(\d+))?`)

// dueBuffers is how many buffers a scan from there on reads.
func dueBuffers(t *testing.T, s *Store, from time.Time) (n int) {
	t.Helper()
	rows, err := s.pool.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS) "+selectDue, instant(time.Now()), position(from), uuid(ledger.OperationID{}), 100, []string{}, 100)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		m := hits.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for _, digits := range m[1:] {
			some, _ := strconv.Atoi(digits)
			n += some
		}
		return n // that of the whole; those of its parts follow
	}
	t.Fatalf("no buffers are told: %q", lines)
	return 0
}

// TestDueScanFindsWhatComesLate: a transaction that took its time, or a clock that was set back, may bring an operation that is due before
// all that was looked at.
func TestDueScanFindsWhatComesLate(t *testing.T) {
	s, run := beside(t)
	const due = "UPDATE due SET next_check_time = now() - interval '1 second' * "
	run(openRows(1))
	run(due + "-60")
	wantDue(t, s, "not yet", 0)
	run(due + "5")
	wantDue(t, s, "a little late", 1)
	run(due + "300")
	wantDue(t, s, "very late", 0) // only a scan from the very beginning finds it
	s.mark.whole = s.mark.whole.Add(-markTrust)
	wantDue(t, s, "very late, when the mark is not believed any more", 1)
	wantDue(t, s, "and again, as long as it is due", 1)
	s.opts.Now = func(now time.Time) time.Time { return now.Add(-time.Hour) }
	run(due + "3605")
	wantDue(t, s, "a clock that was set back, by the mark of before", 0)
	wantDue(t, s, "a clock that was set back, at the next look", 1)
}

func TestDueScanThatTakesTooLongGoesOnFromTheMark(t *testing.T) {
	s, run := beside(t)
	run(openRows(1))
	run("DELETE FROM due")
	wantDue(t, s, "the first one", 0)
	from, _ := s.mark.begin()
	run("INSERT INTO due SELECT now() - interval '1 hour', id, hashtextextended(tool, 0) FROM operations")
	run(`ALTER TABLE due RENAME TO slow`)
	run(`CREATE VIEW due AS SELECT * FROM slow WHERE pg_sleep(10) IS NOT NULL`)
	s.mark.whole = s.mark.whole.Add(-markTrust)
	wantDue(t, s, "from the mark", 0)
	if got, last := s.mark.begin(); !got.IsZero() || last.Before(from) {
		t.Errorf("begins at %v, %v: it has not been at the very beginning", got, last)
	}
}
