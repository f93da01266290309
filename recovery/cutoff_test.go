// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// A person takes the operation over while its target is asked, on this instance or on another one: it is cut off at once, and nothing is told
// of it, to the ledger or to the breaker.
func TestAQuestionIsCutOffByAPerson(t *testing.T) {
	for name, tt := range map[string]struct {
		own      bool
		interval time.Duration
	}{
		"on this instance":    {true, time.Hour},
		"on another instance": {false, 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			id := s.granted(t, "charge")
			s.advance(time.Hour)
			people := s.Ledger
			if !tt.own {
				people = ledger.New(s.store, s.contracts)
			}
			ended := false
			l := s.loop(t, func(ctx context.Context, op *ledger.Operation) Verdict {
				_, err := people.Do(t.Context(), id, "", func(op *ledger.Operation, _ ledger.Contract) (ledger.Command, error) {
					return ledger.TakeOver{Actor: ledger.Actor{Kind: ledger.ActorPerson, Name: "p"}, ExpectedVersion: op.Version, Reason: "mine"}, nil
				})
				if err != nil {
					t.Error(err)
				}
				wait(t, ctx.Done(), "the end of the question")
				ended = ctx.Err() == context.Canceled
				return silent(ledger.QueryUnavailable)
			}, Options{Interval: tt.interval})
			began := time.Now()
			done := once(t, l)
			if len(done) != 1 || done[0].Err != nil || !ended || time.Since(began) > s.contracts["charge"].CheckTimeout/2 {
				t.Errorf("after %v it did %+v, cut off: %t", time.Since(began), done, ended)
			}
			s.wants(t, id, ledger.Unknown, ledger.Operator, 0)
			events, err := s.Events(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			if last := events[len(events)-1]; last.Kind != ledger.EventTakenOver {
				t.Errorf("the last event is %v", last.Kind)
			}
			if all, err := Standings(t.Context(), s.store); err != nil || all["charge"] != (Standing{}) {
				t.Errorf("the gate stands at %+v, %v", all["charge"], err)
			}
		})
	}
}
