// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/test/pgtest"
)

// TestMain lets the test binary be the load, too.
func TestMain(m *testing.M) {
	if beChild() {
		return
	}
	os.Exit(pgtest.Main(m))
}

// TestFiguresThatDoNotDrift is the part of the benchmark that a change can fail: it counts and times nothing.
func TestFiguresThatDoNotDrift(t *testing.T) {
	if raceBuild {
		t.Skip("the race detector allocates, too; make test checks the figures")
	}
	s, err := newSite()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	if err := s.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	figures, log, err := countFigures(t.Context(), s, 4)
	if errors.Is(err, pgtest.ErrNoBinaries) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range figures {
		t.Logf("%8.1f %s", f.Value, f.Name)
		if f.Most == 0 && f.Least == 0 || f.Why == "" {
			t.Errorf("%s: no limit, or no reason for it", f.Name)
		}
	}
	if err := broken(figures); err != nil {
		t.Error(err)
	}
	sum := 0.
	for _, part := range log {
		sum += part.Bytes
	}
	for _, f := range figures {
		if f.Name == walCrowd && (sum < .95*f.Value || sum > f.Value) { // headers of pages are in no record
			t.Errorf("the parts of the log are %.0f of %.0f bytes", sum, f.Value)
		}
	}
}

// TestPgbenchDoesAUnit: a schema that the script can't be made for shows here, and not when somebody measures.
func TestPgbenchDoesAUnit(t *testing.T) {
	server := pgtest.Get(t)
	dsn := server.DSN(server.Database(t))
	if err := migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if _, err := newYardstick(t.Context(), t.TempDir(), dsn); err != nil {
		t.Error(err)
	}
}

func TestFiguresBeyondTheirLimits(t *testing.T) {
	most, least := limit{Name: "log", Most: 10, Why: "a"}, limit{Name: "calls", Least: 8, Why: "b"}
	tests := []struct {
		name    string
		figures []figure
		want    string
	}{
		{"within", []figure{{most, 10}, {least, 8}, {limit{Name: "free"}, 1e9}}, ""},
		{"too many", []figure{{most, 10.1}}, "log: 10.1 is beyond its limit (a)"},
		{"too few", []figure{{least, 7.9}}, "calls: 7.9 is beyond its limit (b)"},
		{"both", []figure{{most, 11}, {least, 1}}, "log: 11.0 is beyond its limit (a)\ncalls: 1.0 is beyond its limit (b)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := broken(tt.figures); err != nil {
				got = err.Error()
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestOptions(t *testing.T) {
	full := options{
		rounds: 5, connections: 4, callers: []int{1, 16, 128, 512}, clients: []int{1, 8, 16, 32, 64}, profiles: true,
		plan: plan{Warm: 500 * time.Millisecond, Window: 3 * time.Second},
	}
	quick := options{
		rounds: 1, connections: 4, callers: []int{1, 128}, clients: []int{1, 16},
		plan: plan{Warm: 500 * time.Millisecond, Window: time.Second},
	}
	longer := quick
	longer.rounds = 3
	tests := []struct {
		name string
		args string
		want options
	}{
		{"none", "", full},
		{"quick", "-quick", quick},
		{"quick, but with more rounds", "-rounds 3 -quick", longer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseOptions(strings.Fields(tt.args), io.Discard)
			if err != nil || !cmp.Equal(got, tt.want, cmp.AllowUnexported(options{})) {
				t.Errorf("%+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
	for _, args := range []string{"-rounds 0", "-callers 1,,2", "-callers 0", "-clients x", "-seconds 0", "-warm -1", "-connections 0"} {
		if _, err := parseOptions(strings.Fields(args), io.Discard); err == nil {
			t.Errorf("%s was taken", args)
		}
	}
}
