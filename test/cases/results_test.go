// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// anyText is what texts of targets may hold: a NUL, all ends of the planes of Unicode, what joins and what turns around, and both forms of é.
const anyText = "\x00 a\tb\n\x1f\x7f \"\\/ é e\u0301 ß 漢字 \u202e\u200d \ud7ff\ue000\ufffd\uffff \U0001f600\U00010000\U0010ffff \x00"

// Of a result there is kept what the contract declares, up to its limits, as it was given, whatever the store and over a restart; what is
// not kept is named in each answer that shows the result.
func TestResultsAreKeptAsDeclared(t *testing.T) {
	// Some bytes that are no UTF-8, too: a payload is bytes.
	payload := func(n int) []byte { return []byte(strings.Repeat("\xff\x00{", n/3+1)[:n]) }
	resource := &pb.ResourceRef{Type: "note" + anyText, Id: "N" + anyText, Uri: "https://t.test/" + anyText, Version: anyText}
	attributes := map[string]string{"etag": anyText, "title": ""}
	cases := []struct {
		name    string
		given   *pb.Result
		kept    *pb.Result // with the given resource
		omitted pb.PayloadOmission
		dropped []string
	}{
		{
			name:  "all that is declared, at its limits",
			given: &pb.Result{Code: anyText, Attributes: attributes, Schema: "note/2", Payload: payload(1024)},
			kept:  &pb.Result{Code: anyText, Attributes: attributes, Schema: "note/2", Payload: payload(1024)},
		},
		{
			name:  "a payload beyond its limit",
			given: &pb.Result{Schema: "note/1", Payload: payload(1025)},
			kept:  &pb.Result{Schema: "note/1"}, omitted: pb.PayloadOmission_PAYLOAD_OMISSION_TOO_LARGE,
		},
		{
			name:  "a schema that is not declared",
			given: &pb.Result{Schema: "note/3", Payload: payload(1)},
			kept:  &pb.Result{}, omitted: pb.PayloadOmission_PAYLOAD_OMISSION_UNDECLARED,
		},
		{
			name: "attributes that are not declared, or too long",
			given: &pb.Result{Attributes: map[string]string{
				"etag": "7", "title": strings.Repeat("x", 1025), "Set-Cookie": "a", "x-trace-id": "b", "order_id": "c", "Etag": "d",
			}},
			kept: &pb.Result{Attributes: map[string]string{"etag": "7"}}, dropped: []string{"Etag", "Set-Cookie", "order_id", "title", "x-trace-id"},
		},
	}
	each(t, func(t *testing.T, e *env) {
		claims, want := map[string]*pb.ClaimRequest{}, map[string]*pb.Replay{}
		w := e.node.dial(t, billing)
		for _, c := range cases {
			r := request("note.keep", unique(t), "K", `{"a":1}`)
			g := w.grant(t, r)
			done := completion(g.GetOperationId(), r.GetClaimId(), "", "")
			c.given.Resource, c.kept.Resource = resource, resource
			done.Outcome = &pb.CompleteRequest_Succeeded{Succeeded: c.given}
			w.applied(t, done)
			claims[c.name], want[c.name] = r, &pb.Replay{Result: c.kept, PayloadOmitted: c.omitted, DroppedAttributes: c.dropped}
		}
		replays := func(t *testing.T, w *worker) {
			t.Helper()
			for name, r := range claims {
				answer := w.claim(t, again(r))
				if diff := cmp.Diff(want[name], answer.GetCompleted(), protocmp.Transform()); diff != "" || !answer.GetReplayed() {
					t.Errorf("%s: Claim replays (-want +got):\n%s", name, diff)
				}
				look, err := w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: r.GetKey()}})
				if diff := cmp.Diff(want[name], look.GetCompleted(), protocmp.Transform()); diff != "" || err != nil {
					t.Errorf("%s: Lookup shows %v (-want +got):\n%s", name, err, diff)
				}
			}
		}
		replays(t, w)
		e.node.restart(t)
		w = e.node.dial(t, billing)
		replays(t, w)

		t.Run("accept_schemas", func(t *testing.T) {
			r := again(claims[cases[0].name])
			for accepted, shown := range map[string]bool{"note/1": false, "note/1,note/2": true, "": true, "NOTE/2": false} {
				r := again(r)
				if accepted != "" {
					r.AcceptSchemas = strings.Split(accepted, ",")
				}
				got := w.claim(t, r).GetCompleted()
				want := &pb.Replay{Result: &pb.Result{Resource: resource, Code: anyText, Attributes: maps.Clone(attributes), Schema: "note/2"}}
				if shown {
					want.Result.Payload = payload(1024)
				} else {
					want.PayloadOmitted = pb.PayloadOmission_PAYLOAD_OMISSION_SCHEMA_NOT_ACCEPTED
				}
				if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
					t.Errorf("to who accepts %q it is shown as (-want +got):\n%s", accepted, diff)
				}
			}
		})

		t.Run("a record of a later release", func(t *testing.T) {
			r := claims[cases[0].name]
			id := w.claim(t, again(r)).GetOperation().GetId()
			if got := e.row(t, id)["record_version"]; got != "1" {
				t.Errorf("the record says that its schema is %q, want 1", got)
			}
			set := func(version string) {
				if n := e.exec(t, "UPDATE operations SET record_version = "+version+" WHERE id = $1", e.id(t, id)); n != 1 {
					t.Fatalf("%d rows were changed", n)
				}
			}
			set("9")
			was := e.snapshot(t, id)
			_, err := w.tryClaim(t, again(r))
			wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW)
			_, err = w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: r.GetKey()}})
			wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW)
			e.wantUnchanged(t, id, was)
			set("1")
			replays(t, w)
		})
	})
}

// What a target says of a failure comes back as it was, too.
func TestFailuresAreKeptAsTheyAre(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		r := request("note.keep", unique(t), "K", `{"a":1}`)
		g := w.grant(t, r)
		failure := &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_DECLINED, Code: anyText, Message: anyText}
		w.applied(t, &pb.CompleteRequest{
			OperationId: g.GetOperationId(), ClaimId: r.GetClaimId(), SentExactlyOnce: true, Outcome: &pb.CompleteRequest_Rejected{Rejected: failure},
		})
		if diff := cmp.Diff(failure, w.claim(t, again(r)).GetFailed(), protocmp.Transform()); diff != "" {
			t.Errorf("the failure is replayed as (-want +got):\n%s", diff)
		}
	})
}

// A hint tightens the class that an operation is judged by and never loosens it: neither the contract's, nor what an earlier claim said.
func TestEffectHintOnlyTightens(t *testing.T) {
	declared := map[string]pb.Effect{
		"ticket.get": pb.Effect_EFFECT_READ, "card.charge": pb.Effect_EFFECT_KEYED, "mail.send": pb.Effect_EFFECT_UNSAFE,
	}
	// From the loosest to the strictest.
	classes := []pb.Effect{pb.Effect_EFFECT_UNSPECIFIED, pb.Effect_EFFECT_READ, pb.Effect_EFFECT_IDEMPOTENT, pb.Effect_EFFECT_KEYED, pb.Effect_EFFECT_UNSAFE}
	each(t, func(t *testing.T, e *env) {
		w := e.node.dial(t, billing)
		for tool, effect := range declared {
			for _, first := range classes {
				for _, second := range classes {
					r := request(tool, unique(t), "K", `{"a":1}`)
					r.EffectHint = first
					g := w.grant(t, r)
					w.applied(t, &pb.CompleteRequest{
						OperationId: g.GetOperationId(), ClaimId: r.GetClaimId(), SentExactlyOnce: true, Outcome: &pb.CompleteRequest_NotExecuted{
							NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT},
						},
					})
					if got := w.lookup(t, r).GetEffect(); got != max(effect, first) {
						t.Errorf("%s with the hint %v is judged as %v", tool, first, got)
					}
					r = again(r)
					r.EffectHint = second
					w.grant(t, r)
					if got := w.lookup(t, r).GetEffect(); got != max(effect, first, second) {
						t.Errorf("%s with the hints %v and %v is judged as %v", tool, first, second, got)
					}
				}
			}
		}
	})
}

// lookup is the operation of a Claim's key.
func (w *worker) lookup(t testing.TB, r *pb.ClaimRequest) *pb.Operation {
	t.Helper()
	answer, err := w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: r.GetKey()}})
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetOperation()
}
