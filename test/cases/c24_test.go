// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// The result was stored and the answer lost: the same report again is the same success, another one a contradiction that moves nothing.
func TestC24(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w, proxy := lossyWorker(t, e.node, billing)
		r := request("ticket.create", unique(t), "K", `{"title":"a"}`)
		id := w.grant(t, r).GetOperationId()
		report := completion(id, r.GetClaimId(), "ticket", "T-5")
		const completed = "3"
		err := loseAnswer(t, proxy, func() bool { return e.row(t, id)["state"] == completed }, func() error {
			_, err := w.Complete(within(t), report)
			return err
		})
		if status.Code(err) != codes.Unavailable {
			t.Fatalf("the lost Complete ended with %v, want Unavailable", err)
		}
		version := e.row(t, id)["version"]

		t.Run("identically again", func(t *testing.T) {
			was := e.snapshot(t, id)
			wantApplied(t, w.complete(t, report), version)
			e.wantUnchanged(t, id, was)
		})
		t.Run("another resource is a contradiction", func(t *testing.T) {
			was := e.snapshot(t, id)
			answer := w.complete(t, completion(id, r.GetClaimId(), "ticket", "T-6"))
			if answer.GetDisposition() != pb.Disposition_DISPOSITION_CONTRADICTION || !answer.GetOperation().GetNeedsAttention() {
				t.Errorf("T-6 was answered %v, want a contradiction that needs attention", answer)
			}
			now := e.snapshot(t, id)
			if len(now.History) != len(was.History)+1 {
				t.Errorf("events went from %d to %d, want one more", len(was.History), len(now.History))
			}
			for _, column := range []string{"state", "version", "result", "final_time", "grant_epoch", "failure"} {
				if was.Row[column] != now.Row[column] {
					t.Errorf("the column %s went from %s to %s", column, was.Row[column], now.Row[column])
				}
			}
			wantResource(t, w, r, "T-5")
		})
		t.Run("another resource once more adds nothing", func(t *testing.T) {
			was := e.snapshot(t, id)
			w.complete(t, completion(id, r.GetClaimId(), "ticket", "T-6"))
			e.wantUnchanged(t, id, was)
		})
		t.Run("identically after an hour", func(t *testing.T) {
			e.age(t, id, time.Hour)
			was := e.snapshot(t, id)
			wantApplied(t, w.complete(t, report), version)
			e.wantUnchanged(t, id, was)
			wantResource(t, w, r, "T-5")
		})
		// The contract answers a late MarkUnknown of the holder as applied: it moves nothing, and is no error to retry.
		t.Run("mark unknown leaves it completed", func(t *testing.T) {
			was := e.snapshot(t, id)
			answer := w.markUnknown(t, id, r.GetClaimId())
			if got := answer.GetOperation().GetState(); got != pb.State_STATE_COMPLETED || answer.GetNextAction() != pb.NextAction_NEXT_ACTION_USE_RESULT {
				t.Errorf("it is %v, and the caller should %v", got, answer.GetNextAction())
			}
			e.wantUnchanged(t, id, was)
			wantResource(t, w, r, "T-5")
		})
	})
}

func wantApplied(t *testing.T, answer *pb.CompleteResponse, version string) {
	t.Helper()
	if answer.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED || answer.GetOperation().GetState() != pb.State_STATE_COMPLETED {
		t.Errorf("the report was answered %v, want applied", answer)
	}
	if diff := cmp.Diff(version, number(answer.GetOperation().GetVersion())); diff != "" {
		t.Errorf("the version: %s", diff)
	}
}

// wantResource fails unless a Claim of the same request replays this resource.
func wantResource(t *testing.T, w *worker, r *pb.ClaimRequest, id string) {
	t.Helper()
	answer := w.claim(t, again(r))
	wantOutcome(t, answer, "REPLAY")
	if got := answer.GetCompleted().GetResult().GetResource().GetId(); got != id {
		t.Errorf("the replay has the resource %q, want %q", got, id)
	}
}
