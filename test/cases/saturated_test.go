// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"testing"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// A tool with as many unknown operations as its contract bears gets no new grant, whoever asks and for whatever; what is there is answered, and
// the first that settles lets the next one through.
func TestAToolWithMaxUnknownGetsNoGrants(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w, other := e.node.dial(t, billing), e.node.dial(t, support)
		claim := func() *pb.ClaimRequest { return request("card.hold", unique(t), "K", `{"amount":"5.00"}`) }
		done := claim()
		w.applied(t, completion(w.grant(t, done).GetOperationId(), done.GetClaimId(), "hold", "H-0"))
		var unknown []*pb.CompleteRequest
		for i, of := range []*worker{w, other} {
			r := claim()
			g := of.grant(t, r)
			of.markUnknown(t, g.GetOperationId(), r.GetClaimId())
			unknown = append(unknown, completion(g.GetOperationId(), r.GetClaimId(), "hold", fmt.Sprint("H-", i+1)))
		}
		next := claim()
		e.storesNothing(t, func() {
			for _, of := range []*worker{w, other} {
				answer := of.claim(t, again(next))
				if answer.GetBlocked().GetReason() != pb.WaitReason_WAIT_REASON_TOOL_SATURATED {
					t.Errorf("a new key is answered %v", answer)
				}
			}
		})
		wantOutcome(t, w.claim(t, again(done)), "REPLAY")
		w.grant(t, request("card.charge", unique(t), "K", `{"amount":"5.00"}`))
		w.applied(t, unknown[0])
		w.grant(t, next)
		other.applied(t, unknown[1]) // as it was before, for others
	})
}
