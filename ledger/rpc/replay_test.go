// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// judge answers as it is set, and keeps what it was asked.
type judge struct {
	mu    sync.Mutex
	no    bool
	asked []ledger.Viewer
}

func (j *judge) MayShow(_ context.Context, v ledger.Viewer, op *ledger.Operation) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !op.State.Final() {
		panic("asked about what has no result")
	}
	j.asked = append(j.asked, v)
	return !j.no
}

func (j *judge) say(no bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.no = no
}

func (j *judge) questions() []ledger.Viewer {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.asked
}

// shows reports whether an answer tells the resource, and whether it tells what the operation was about.
func shows(t *testing.T, m proto.Message) (resource, summary bool) {
	t.Helper()
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), "T-1"), strings.Contains(string(text), "canary-summary")
}

// TestReplaysAreJudgedOnEveryPath: each answer that tells what became of an operation asks again, about this very caller, and says no more
// than that it is completed where any of the judges says no.
func TestReplaysAreJudgedOnEveryPath(t *testing.T) {
	rules, platform := &judge{}, &judge{}
	w := newWorld(t, setup{rules: rules, platform: platform})
	req := w.claim("key-1")
	req.Key.Subject = "user-1"
	grant := w.granted(t, "serves-users", req)
	if done, err := w.client.Complete(as(t, "serves-users"), succeeded(grant, req.GetClaimId())); err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Fatalf("complete: %v, %v", done, err)
	}
	if asked := platform.questions(); len(asked) > 0 {
		t.Errorf("the platform was asked about a report: %v", asked)
	}
	again := w.claim("key-1")
	again.Key.Subject = "user-1"
	other := w.claim("key-1")
	other.Key.Subject, other.RequestJson = "user-1", []byte(`{"amount":101,"to":"canary-recipient"}`)
	paths := map[string]func() proto.Message{
		"claim": func() proto.Message {
			m, err := w.client.Claim(as(t, "serves-users"), again)
			if err != nil || m.GetCompleted() == nil {
				t.Fatalf("claim: %v, %v", m, err)
			}
			return m
		},
		"lookup by key": func() proto.Message {
			m, err := w.client.Lookup(as(t, "serves-users"), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: again.GetKey()}})
			if err != nil || m.GetCompleted() == nil {
				t.Fatalf("lookup: %v, %v", m, err)
			}
			return m
		},
		"lookup by id": func() proto.Message {
			m, err := w.client.Lookup(as(t, "serves-users"), &pb.LookupRequest{
				Selector: &pb.LookupRequest_OperationId{OperationId: grant.GetOperationId()}, Subject: "user-1",
			})
			if err != nil || m.GetCompleted() == nil {
				t.Fatalf("lookup: %v, %v", m, err)
			}
			return m
		},
		"conflict": func() proto.Message {
			_, err := w.client.Claim(as(t, "serves-users"), other)
			return detail[*pb.FingerprintConflict](refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT"))
		},
	}
	for name, answer := range paths {
		for _, tt := range []struct{ byRules, byPlatform bool }{{true, true}, {false, true}, {true, false}, {false, false}} {
			rules.say(!tt.byRules)
			platform.say(!tt.byPlatform)
			before := len(rules.questions())
			resource, summary := shows(t, answer())
			want := tt.byRules && tt.byPlatform
			if resource != want || summary != (want && name != "conflict") {
				t.Errorf("%s, rules %t, platform %t: shows the resource %t, the summary %t", name, tt.byRules, tt.byPlatform, resource, summary)
			}
			viewer := []ledger.Viewer{{Principal: "serves-users", Scope: "users", Subject: "user-1"}}
			if diff := cmp.Diff(viewer, rules.questions()[before:]); diff != "" {
				t.Errorf("%s: who is judged (-want +got):\n%s", name, diff)
			}
		}
	}
	// A page may have hundreds: another system is not asked about each.
	rules.say(false)
	platform.say(false)
	before := len(platform.questions())
	page, err := w.client.ListOperations(as(t, "serves-users"), &pb.ListOperationsRequest{Subject: "user-1"})
	if err != nil || len(page.GetOperations()) != 1 {
		t.Fatalf("list: %v, %v", page, err)
	}
	if _, summary := shows(t, page); summary || len(platform.questions()) > before {
		t.Errorf("a listing shows the summary %t; the platform was asked %d times", summary, len(platform.questions())-before)
	}
}

// TestListingsAreJudgedByTheRules where no other system is to be asked.
func TestListingsAreJudgedByTheRules(t *testing.T) {
	rules := &judge{}
	w := newWorld(t, setup{rules: rules})
	req := w.claim("key-1")
	grant := w.granted(t, "agent-a", req)
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId())); err != nil {
		t.Fatal(err)
	}
	for _, no := range []bool{false, true} {
		rules.say(no)
		page, err := w.client.ListOperations(as(t, "agent-a"), &pb.ListOperationsRequest{})
		if err != nil || len(page.GetOperations()) != 1 {
			t.Fatalf("list: %v, %v", page, err)
		}
		if _, summary := shows(t, page); summary == no {
			t.Errorf("the rules say no %t, and the listing shows the summary %t", no, summary)
		}
	}
}
