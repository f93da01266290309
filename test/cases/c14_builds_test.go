// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// What a record of case C14 is asked, and its retries: as it was, with a letter in another case, with another amount.
const (
	asItWas     = `{"to":"Anna","amount":100,"currency":"EUR"}`
	otherCase   = `{"to":"anna","amount":100,"currency":"EUR"}`
	otherAmount = `{"to":"Anna","amount":101,"currency":"EUR"}`
)

// build14 is one of the ledgerds that run at once on one store. A newer one knows spec 2, which reads strings without their case.
type build14 struct {
	name         string
	knows, wrote int
	*worker
	reconciler *worker
}

// Two builds at once, of which the newer one has another canonical form: a record is judged by its own, and who does not know that says so.
func TestC14TwoBuilds(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			e := fresh(t, store, nodeOptions{})
			make := func(name string, knows, wrote int, n *node) build14 {
				return build14{name, knows, wrote, n.dial(t, billing), n.dial(t, reconciler)}
			}
			builds := []build14{
				make("the older one", 1, 1, e.node),
				make("the newer one, rolled out", 2, 1, e.start(t, nodeOptions{later: true})),
				make("the newer one, told to write", 2, 2, e.start(t, nodeOptions{later: true, args: []string{"--fingerprint-write-spec", "2"}})),
			}
			for _, writer := range builds {
				t.Run(writer.name+" wrote", func(t *testing.T) { e.writtenBy(t, writer, builds) })
			}
			t.Run("both at once", func(t *testing.T) { bothAtOnce(t, builds[0], builds[2]) })
		})
	}
}

// writtenBy makes a record in each state, and lets all builds meet it.
func (e *env) writtenBy(t *testing.T, writer build14, readers []build14) {
	for state, make := range map[string]func(t *testing.T, r *pb.ClaimRequest) string{
		"RECEIVED": func(t *testing.T, r *pb.ClaimRequest) string {
			r.Reserve = true
			return writer.grant(t, r).GetOperationId()
		},
		"PROCESSING": func(t *testing.T, r *pb.ClaimRequest) string { return writer.grant(t, r).GetOperationId() },
		"UNKNOWN": func(t *testing.T, r *pb.ClaimRequest) string {
			id := writer.grant(t, r).GetOperationId()
			writer.markUnknown(t, id, r.GetClaimId())
			return id
		},
		"COMPLETED": func(t *testing.T, r *pb.ClaimRequest) string {
			id := writer.grant(t, r).GetOperationId()
			writer.applied(t, completion(id, r.GetClaimId(), "charge", "C-1"))
			return id
		},
		"FAILED": func(t *testing.T, r *pb.ClaimRequest) string {
			id := writer.grant(t, r).GetOperationId()
			writer.applied(t, &pb.CompleteRequest{
				OperationId: id, ClaimId: r.GetClaimId(), SentExactlyOnce: true,
				Outcome: &pb.CompleteRequest_Rejected{Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: "declined"}},
			})
			return id
		},
	} {
		t.Run(state, func(t *testing.T) {
			r := request("card.charge", unique(t), "K", asItWas)
			id := make(t, r)
			was := e.snapshot(t, id)
			if got := was.Row["fingerprint_spec"]; got != number(uint64(writer.wrote)) {
				t.Errorf("the record has spec %s, want %d", got, writer.wrote)
			}
			want := map[string]string{"RECEIVED": "IN_PROGRESS", "PROCESSING": "IN_PROGRESS", "UNKNOWN": "UNKNOWN", "COMPLETED": "REPLAY", "FAILED": "FAILED"}[state]
			for _, reader := range readers {
				for _, body := range []string{asItWas, otherCase, otherAmount} {
					answer, err := reader.tryClaim(t, sameKey(r, body))
					switch {
					case reader.knows < writer.wrote:
						wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW)
					case body == otherAmount:
						wantConflict(t, err, "amount")
					case body == otherCase && writer.wrote == 1:
						wantConflict(t, err, "recipient")
					case err != nil || outcome(answer) != want:
						t.Errorf("%s, %s: %v, %v; want %s", reader.name, body, answer, err, want)
					}
					e.wantUnchanged(t, id, was)
				}
				looked, err := reader.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: id}})
				if err != nil || looked.GetOperation().GetState().String() != "STATE_"+state {
					t.Errorf("%s looked it up: %v, %v", reader.name, looked, err)
				}
			}
		})
	}
	for _, reader := range readers {
		t.Run(reader.name+" settles", func(t *testing.T) { e.settledBy(t, writer, reader) })
	}
}

// settledBy brings outcomes to a build that has not written the record. A report needs no canonical form; evidence that is compared does.
func (e *env) settledBy(t *testing.T, writer, reader build14) {
	r := request("card.charge", unique(t), "K", asItWas)
	id := writer.grant(t, r).GetOperationId()
	before := e.row(t, id)
	reader.applied(t, completion(id, r.GetClaimId(), "charge", "C-2"))
	wantResource(t, writer.worker, r, "C-2")
	after := e.row(t, id)
	for _, column := range changed(before, after) {
		switch column {
		case "fingerprint_spec", "fingerprint_secret", "fingerprint_contract", "fingerprint_digest", "fingerprint_categories":
			t.Errorf("the report has changed the column %s", column)
		}
	}

	r = request("card.charge", unique(t), "K", asItWas)
	id = writer.grant(t, r).GetOperationId()
	writer.markUnknown(t, id, r.GetClaimId())
	was := e.snapshot(t, id)
	found, err := reader.reconciler.Reconcile(within(t), &pb.ReconcileRequest{
		Selector: &pb.ReconcileRequest_OperationId{OperationId: id}, CommandId: uuid.NewString(),
		Evidence: &pb.Evidence{Finding: &pb.Evidence_Found{Found: &pb.Found{
			Result: result("charge", "C-3"), ObservedJson: []byte(`{"amount":100.0,"currency":"EUR"}`),
		}}},
	})
	if reader.knows < writer.wrote {
		wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW)
		e.wantUnchanged(t, id, was)
		return
	}
	if err != nil || found.GetOperation().GetState() != pb.State_STATE_COMPLETED {
		t.Errorf("the evidence was answered %v, %v", found, err)
	}
}

// bothAtOnce lets an older and a newer build claim one new key at one moment: whoever wins, nobody is told that the request differs.
func bothAtOnce(t *testing.T, older, newer build14) {
	for range 20 {
		first := request("card.charge", unique(t), "K", asItWas)
		all := together(t, []*worker{older.worker, newer.worker}, []*pb.ClaimRequest{first, again(first)})
		byOlder, byNewer := all[0], all[1]
		switch {
		case byOlder.name() == "EXECUTE" && byNewer.name() == "IN_PROGRESS":
		case byNewer.name() == "EXECUTE":
			wantRefusal(t, byOlder.err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW)
		default:
			t.Errorf("the older one was told %s (%v), the newer one %s (%v)", byOlder.name(), byOlder.err, byNewer.name(), byNewer.err)
		}
	}
}
