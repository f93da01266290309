// SPDX-License-Identifier: Apache-2.0

package clienttest_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

func claim(task, key, subject string) *opsledgerv1.ClaimRequest {
	return &opsledgerv1.ClaimRequest{
		Key: &opsledgerv1.OperationKey{Tool: "tickets.create", Task: task, Key: key, Subject: subject}, ClaimId: uuid.NewString(),
		WorkerId: "w", RequestJson: []byte(`{}`), IntentTime: timestamppb.Now(),
	}
}

// TestOneGrant: of many claims at one time one is granted.
func TestOneGrant(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{})
	var granted atomic.Int32
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			answer, err := l.Service().Claim(t.Context(), claim("task", "k", ""))
			if err != nil {
				t.Error(err)
			}
			if answer.GetGranted() != nil {
				granted.Add(1)
			}
		})
	}
	all.Wait()
	if n := granted.Load(); n != 1 || l.Calls(clienttest.Claim) != 32 {
		t.Errorf("%d grants of %d claims", n, l.Calls(clienttest.Claim))
	}
}

// TestListing: in pages, in order, of one task, and of a subject only for whoever names it.
func TestListing(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{})
	var want []string
	for n := range 5 {
		answer, err := l.Service().Claim(t.Context(), claim("task", fmt.Sprint("k", n), ""))
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, answer.GetOperation().GetId())
		l.Advance(time.Millisecond)
	}
	for _, other := range []*opsledgerv1.ClaimRequest{claim("other", "k", ""), claim("task", "k", "somebody")} {
		if _, err := l.Service().Claim(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	request := &opsledgerv1.ListOperationsRequest{Task: "task", PageSize: 2}
	for range 10 {
		page, err := l.Service().ListOperations(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		for _, op := range page.GetOperations() {
			got = append(got, op.GetId())
		}
		if request.PageToken = page.GetNextPageToken(); request.PageToken == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	page, err := l.Service().ListOperations(t.Context(), &opsledgerv1.ListOperationsRequest{Task: "task", Subject: "somebody"})
	if err != nil || len(page.GetOperations()) != 1 {
		t.Errorf("%d operations of the subject, want 1: %v", len(page.GetOperations()), err)
	}
}

// TestEvidence: absence settles once the settle time has passed, and frees the key for another grant, whose history is one chain.
func TestEvidence(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Contracts: []ledger.Contract{clienttest.Contract("tickets.create", ledger.Keyed)}})
	first, err := l.Service().Claim(t.Context(), claim("task", "k", ""))
	if err != nil {
		t.Fatal(err)
	}
	id := first.GetOperation().GetId()
	absent := &opsledgerv1.Evidence{Finding: &opsledgerv1.Evidence_NotFound{NotFound: &opsledgerv1.NotFound{}}}
	l.Advance(time.Hour)
	answer, err := l.Evidence(t.Context(), id, absent)
	if err != nil || answer.GetOperation().GetState() != opsledgerv1.State_STATE_RECEIVED {
		t.Fatalf("%v, %v", answer, err)
	}
	second, err := l.Service().Claim(t.Context(), claim("task", "k", ""))
	if err != nil || second.GetGranted() == nil {
		t.Fatalf("%v, %v", second, err)
	}
	history, err := l.History(t.Context(), id)
	if err != nil || len(history) != 4 { // granted, check taken, evidence, granted
		t.Fatalf("%d events: %v", len(history), err)
	}
	if n := ledger.VerifyChain(history, history[len(history)-1].Hash); n != nil {
		t.Errorf("the chain: %v", n)
	}
	if _, err := l.History(t.Context(), "nothing"); err == nil {
		t.Error("no error for what is no id")
	}
}

// TestForget: what was stored since Remember is gone; what is left and unsettled is not believed, and a key that was intended before is
// not granted, unless nobody has noticed.
func TestForget(t *testing.T) {
	claimed := func(l *clienttest.Ledger, r *opsledgerv1.ClaimRequest) *opsledgerv1.ClaimResponse {
		t.Helper()
		answer, err := l.Service().Claim(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for name, tt := range map[string]struct {
		forget     func(*clienttest.Ledger)
		kept, lost bool // granted when claimed again
	}{
		"noticed":    {forget: (*clienttest.Ledger).Forget},
		"unnoticed":  {forget: (*clienttest.Ledger).ForgetUnnoticed, kept: true, lost: true},
		"on arrival": {forget: func(l *clienttest.Ledger) { l.Inject(clienttest.Claim, clienttest.ForgetBefore) }},
	} {
		t.Run(name, func(t *testing.T) {
			l := clienttest.New(t, clienttest.Options{Contracts: []ledger.Contract{clienttest.Contract("tickets.create", ledger.Keyed)}})
			kept, lost := claim("kept", "k", ""), claim("lost", "k", "")
			claimed(l, kept)
			l.Remember()
			epoch := claimed(l, lost).GetGranted().GetEpoch()
			tt.forget(l)
			for r, granted := range map[*opsledgerv1.ClaimRequest]bool{kept: tt.kept, lost: tt.lost} {
				answer := claimed(l, r)
				if got := answer.GetGranted() != nil; got != granted || got == (answer.GetUnknown() != nil) {
					t.Errorf("%s: %v", r.GetKey().GetTask(), answer)
				}
				if answer.GetGranted().GetEpoch() > epoch {
					t.Errorf("%s: epoch %d on the same timeline", r.GetKey().GetTask(), answer.GetGranted().GetEpoch())
				}
			}
		})
	}
	l := clienttest.New(t, clienttest.Options{})
	l.Inject(clienttest.Claim, clienttest.ForgetAfter)
	id := claimed(l, claim("task", "k", "")).GetGranted().GetOperationId()
	if _, err := l.Service().Lookup(t.Context(), &opsledgerv1.LookupRequest{
		Selector: &opsledgerv1.LookupRequest_OperationId{OperationId: id},
	}); status.Code(err) != codes.NotFound || id == "" {
		t.Errorf("what was answered and lost: %v", err)
	}
}

// TestDown: a ledger that is down refuses, and has lost nothing when it is up again.
func TestDown(t *testing.T) {
	l := clienttest.New(t, clienttest.Options{Listen: "127.0.0.1:0"})
	if l.Addr() == "" {
		t.Error("no address")
	}
	r := claim("task", "k", "")
	first, err := l.Service().Claim(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	l.Stop()
	if _, err := l.Service().Claim(t.Context(), r); status.Code(err) != codes.Unavailable {
		t.Errorf("a ledger that is down said %v", err)
	}
	l.Restart()
	again, err := l.Service().Claim(t.Context(), r)
	if err != nil || !again.GetGranted().GetResent() || again.GetOperation().GetId() != first.GetOperation().GetId() {
		t.Errorf("%v, %v", again, err)
	}
}
