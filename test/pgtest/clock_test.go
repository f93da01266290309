// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestAServersClockIsSet: for connections that were there before, too.
func TestAServersClockIsSet(t *testing.T) {
	s := Own(t, Options{Clock: true})
	conn, err := pgx.Connect(t.Context(), s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for _, off := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute, 0} {
		if err := s.SetClock(off); err != nil {
			t.Fatal(err)
		}
		var now time.Time
		if err := conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&now); err != nil {
			t.Fatal(err)
		}
		if d := time.Until(now) - off; d.Abs() > 5*time.Second {
			t.Errorf("set by %s, it is off by %s more", off, d)
		}
	}
}
