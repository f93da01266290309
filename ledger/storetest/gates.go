// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// testGates: the records in which those who ask a target agree about turns.
func testGates(t *testing.T, d Data) {
	open := func(o Options) ledger.GateStore {
		s, ok := d.Open(t, o).(ledger.GateStore)
		if !ok {
			t.Fatal("the store keeps no gates")
		}
		return s
	}
	a, b := open(Options{}), open(Options{})
	t.Run("changed where it is as it was read", func(t *testing.T) { testGateChanges(t, a, b) })
	t.Run("a crowd loses no change", func(t *testing.T) { testGateCrowd(t, a, b) })
	t.Run("tools that look alike", func(t *testing.T) { testGateTools(t, a, b) })
	t.Run("impossible", func(t *testing.T) { testImpossibleGates(t, a) })
	t.Run("the store's time", func(t *testing.T) { testGateTime(t, open) })
	t.Run("a closed store", func(t *testing.T) {
		s := open(Options{})
		if err := s.(ledger.Store).Close(); err != nil {
			t.Fatal(err)
		}
		wantUnavailable(t, "change", s.Gate(t.Context(), "late", func(time.Time, []byte) ([]byte, error) {
			t.Error("it decides")
			return []byte("x"), nil
		}))
		_, _, err := s.Gates(t.Context())
		wantUnavailable(t, "read", err)
	})
}

// wantGate fails unless a tool's record has these bytes; nil: there is none.
func wantGate(t *testing.T, s ledger.GateStore, tool ledger.Tool, want []byte) {
	t.Helper()
	err := s.Gate(t.Context(), tool, func(_ time.Time, was []byte) ([]byte, error) {
		if !bytes.Equal(was, want) || (was == nil) != (want == nil) {
			t.Errorf("the gate of %q has %d bytes, want %d", tool, len(was), len(want))
		}
		return nil, nil
	})
	all, _, errAll := s.Gates(t.Context())
	if err != nil || errAll != nil || !bytes.Equal(all[tool], want) {
		t.Errorf("among all, the gate of %q has %d bytes, want %d: %v, %v", tool, len(all[tool]), len(want), err, errAll)
	}
}

func mustGate(t *testing.T, s ledger.GateStore, tool ledger.Tool, next []byte) {
	t.Helper()
	if err := s.Gate(t.Context(), tool, func(time.Time, []byte) ([]byte, error) { return next, nil }); err != nil {
		t.Fatal(err)
	}
}

func testGateChanges(t *testing.T, a, b ledger.GateStore) {
	const tool = "charge"
	wantGate(t, a, tool, nil)
	for _, first := range [][]byte{nil, []byte("1")} { // somebody else inserts it, or changes it, between read and write
		decided := 0
		err := a.Gate(t.Context(), tool, func(_ time.Time, was []byte) ([]byte, error) {
			if decided++; decided == 1 {
				if !bytes.Equal(was, first) {
					t.Errorf("it reads %q, want %q", was, first)
				}
				mustGate(t, b, tool, everyByte(512))
			} else if !bytes.Equal(was, everyByte(512)) {
				t.Errorf("the %d. time it reads %d bytes", decided, len(was))
			}
			return []byte("1"), nil
		})
		if err != nil || decided != 2 {
			t.Errorf("it decided %d times: %v", decided, err)
		}
		wantGate(t, b, tool, []byte("1"))
	}
	refused := errors.New("refused")
	err := a.Gate(t.Context(), tool, func(time.Time, []byte) ([]byte, error) { return []byte("2"), refused })
	if !errors.Is(err, refused) {
		t.Errorf("the decision's error came back as %v", err)
	}
	wantGate(t, a, tool, []byte("1"))
}

func testGateCrowd(t *testing.T, stores ...ledger.GateStore) {
	const callers, each = 4, 8
	var decided atomic.Int64
	atOnce(t, callers, func(i int) error {
		for range each {
			if err := stores[i%2].Gate(t.Context(), "crowd", func(_ time.Time, was []byte) ([]byte, error) {
				decided.Add(1)
				if was == nil {
					was = make([]byte, 8)
				}
				return binary.BigEndian.AppendUint64(nil, binary.BigEndian.Uint64(was)+1), nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
	wantGate(t, stores[0], "crowd", binary.BigEndian.AppendUint64(nil, callers*each))
	t.Logf("%d changes took %d decisions", callers*each, decided.Load())
}

func testGateTools(t *testing.T, a, b ledger.GateStore) {
	tools := []ledger.Tool{"tool", "Tool", "tool ", "tool.", "t\u00f6ol", "to\u0308ol"}
	for i, tool := range tools {
		mustGate(t, a, tool, []byte{byte(i)})
	}
	for i, tool := range tools {
		wantGate(t, b, tool, []byte{byte(i)})
	}
}

// testImpossibleGates: what is no record is refused as a fault of the code.
func testImpossibleGates(t *testing.T, s ledger.GateStore) {
	for tool, next := range map[ledger.Tool][]byte{"": []byte("x"), "empty": {}} {
		err := s.Gate(t.Context(), tool, func(time.Time, []byte) ([]byte, error) { return next, nil })
		if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
			t.Errorf("%q, %d bytes: got %v, want an error that no retry mends", tool, len(next), err)
		}
		wantGate(t, s, tool, nil)
	}
}

// testGateTime: decisions get the time that operations have, to the microsecond.
func testGateTime(t *testing.T, open func(Options) ledger.GateStore) {
	at := time.Date(2031, 2, 3, 4, 5, 6, 789_123_456, time.UTC)
	s := open(Options{Now: func(time.Time) time.Time { return at }})
	want := at.Truncate(time.Microsecond)
	err := s.Gate(t.Context(), "timed", func(now time.Time, _ []byte) ([]byte, error) {
		if !now.Equal(want) {
			t.Errorf("it decides at %v, want %v", now, want)
		}
		return nil, nil
	})
	_, now, errAll := s.Gates(t.Context())
	if err != nil || errAll != nil || !now.Equal(want) {
		t.Errorf("all are read at %v, want %v: %v, %v", now, want, err, errAll)
	}
}
