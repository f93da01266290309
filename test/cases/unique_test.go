// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// duplicateOf is what a Claim that was refused for a look-alike names.
func duplicateOf(t testing.TB, err error) string {
	t.Helper()
	wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_DUPLICATE_INTENT)
	return detail[*errdetails.ErrorInfo](err).GetMetadata()["operation_ids"]
}

// The same intent under three keys, each of another task: where the contract says so, one at a time, and none within the rule's window after
// one has happened; what has failed stands in nobody's way.
func TestTheSameIntentUnderThreeKeysIsRefused(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w, to := e.node.dial(t, billing), unique(t)
		spellings := []string{`{"amount":"20.00","currency":"EUR","to":%q}`, `{"to":%q,"currency":"EUR","amount":20}`, `{"note":"again","amount":2e1,"to":%q,"currency":"EUR"}`}
		claim := func(n int) *pb.ClaimRequest {
			return request("card.order", unique(t), fmt.Sprint("K", n), fmt.Sprintf(spellings[n-1], to))
		}
		first := claim(1)
		g := w.grant(t, first)
		refused := func(when string) {
			t.Helper()
			e.storesNothing(t, func() {
				for n := 2; n <= 3; n++ {
					_, err := w.tryClaim(t, claim(n))
					if got := duplicateOf(t, err); got != g.GetOperationId() {
						t.Errorf("%s: K%d is refused for %q, want %s", when, n, got, g.GetOperationId())
					}
				}
			})
		}
		refused("while it is executed")
		w.markUnknown(t, g.GetOperationId(), first.GetClaimId())
		refused("while it is unknown")
		e.age(t, g.GetOperationId(), time.Hour) // the window counts from settlement
		refused("while it has been unknown for longer than the window")
		wantOutcome(t, w.claim(t, again(first)), "UNKNOWN")

		w.applied(t, completion(g.GetOperationId(), first.GetClaimId(), "order", "O-1"))
		refused("after it has completed")
		wantOutcome(t, w.claim(t, again(first)), "REPLAY")
		e.age(t, g.GetOperationId(), 9*time.Minute)
		refused("within the window")
		e.age(t, g.GetOperationId(), time.Minute)
		second := claim(2)
		g2 := w.grant(t, second)
		_, err := w.tryClaim(t, claim(3))
		if got := duplicateOf(t, err); got != g2.GetOperationId() {
			t.Errorf("K3 is refused for %q, want the second one", got)
		}

		// A definite failure frees it at once.
		w.applied(t, &pb.CompleteRequest{
			OperationId: g2.GetOperationId(), ClaimId: second.GetClaimId(), SentExactlyOnce: true, Outcome: &pb.CompleteRequest_Rejected{
				Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "no"},
			},
		})
		third := claim(3)
		g3 := w.grant(t, third)

		// Others are not concerned: other values, another subject, another principal.
		w.grant(t, request("card.order", unique(t), "K", fmt.Sprintf(`{"amount":"20.01","currency":"EUR","to":%q}`, to)))
		w.grant(t, request("card.order", unique(t), "K", fmt.Sprintf(`{"amount":"20.00","currency":"USD","to":%q}`, to)))
		somebody := claim(1)
		somebody.Key.Subject = "somebody"
		w.grant(t, somebody)
		e.node.dial(t, support).grant(t, claim(1))

		// The contract takes the caller's word that it is another one. What is unsettled keeps its slot.
		distinct := claim(1)
		distinct.DistinctFrom = []string{g3.GetOperationId()}
		w.grant(t, distinct)
		_, err = w.tryClaim(t, claim(1))
		if got := duplicateOf(t, err); got != g3.GetOperationId() {
			t.Errorf("after an override it is refused for %q, want the one that is unsettled", got)
		}

		// Over a restart, too: the slots are the store's, and their secret is the deployment's.
		e.node.restart(t)
		_, err = e.node.dial(t, billing).tryClaim(t, claim(1))
		if got := duplicateOf(t, err); got != g3.GetOperationId() {
			t.Errorf("after a restart it is refused for %q", got)
		}
		for _, row := range e.rows(t, "SELECT slot FROM slots") {
			if strings.Contains(row["slot"], to) {
				t.Error("a slot shows a value")
			}
		}
	})
}

// Of many that ask for the same under keys of their own, at once and over two instances, one is granted.
func TestOneOfManyKeysOfOneIntentIsGranted(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		const callers = 32
		nodes, body := e.nodes(t), fmt.Sprintf(`{"amount":"5.00","currency":"EUR","to":%q}`, unique(t))
		var workers []*worker
		var requests []*pb.ClaimRequest
		for i := range callers {
			workers = append(workers, nodes[i%len(nodes)].dial(t, billing))
			requests = append(requests, request("card.order", unique(t), "K", body))
		}
		all := together(t, workers, requests)
		counts := tally(all)
		if counts["EXECUTE"] != 1 || counts[codes.FailedPrecondition.String()] != callers-1 {
			t.Errorf("answers: %v", counts)
		}
		winner := slices.IndexFunc(all, func(o told) bool { return o.name() == "EXECUTE" })
		for i, o := range all {
			if i == winner || winner < 0 {
				continue
			}
			if got := detail[*errdetails.ErrorInfo](o.err).GetMetadata()["operation_ids"]; got != all[winner].answer.GetGranted().GetOperationId() {
				t.Errorf("caller %d is refused for %q", i, got)
			}
		}
	})
}
