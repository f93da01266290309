// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// No key, subject, request, payload or credential is in what ledgerd writes, says or stores, whatever happens to a call. The search is
// proven by a leak that is planted in each source.
func TestC67(t *testing.T) {
	// The search finds a text that was written in any form as a part of a longer one.
	for _, form := range formsOf("xx" + canaryKey + "yy") {
		if !slices.ContainsFunc(formsOf(canaryKey), func(w writtenAs) bool {
			return w.name == form.name && strings.Contains(string(form.bytes), string(w.bytes))
		}) {
			t.Fatalf("a text in %s is not found", form.name)
		}
	}
	each(t, func(t *testing.T, shared *env) {
		w := watch(t, shared.store)
		claimIDs := drive(t, w)
		wantAllCarried(t, w)
		w.stop(t)

		sources := w.sources(t)
		for _, name := range slices.Sorted(maps.Keys(sources)) {
			s := sources[name]
			t.Logf("read %s: %d bytes", name, s.size())
			if s.size() == 0 {
				t.Errorf("%s is empty", name)
			}
			for canary, where := range canaries {
				if where.mayStand(name, s.place) {
					continue
				}
				if in := s.find(canary); len(in) > 0 {
					t.Errorf("%s is in %s: %v", canary, name, in)
				}
			}
			if in := s.find(planted); len(in) > 0 {
				t.Errorf("the leak is in %s before it was planted: %v", name, in)
			}
			wantNoDigest(t, name, s)
			// A claim_id is a secret between worker and ledger, who stores it.
			for i, id := range claimIDs {
				if in := s.find(id); len(in) > 0 && s.place == outside {
					t.Errorf("claim_id %d is in %s: %v", i, name, in)
				}
			}
		}
		wantUseful(t, w, sources)
		// What is stored by contract is found where it is stored: the search does look into the database.
		for canary, where := range canaries {
			for _, name := range []string{"database", "dump"} {
				if where != nowhere && canary != canaryDetail && len(sources[name].find(canary)) == 0 {
					t.Errorf("%s, which is stored in clear, was not found in the %s", canary, name)
				}
			}
		}

		declarePlanted(t, w) // the store has the contracts in force, which name their tools
		w.node.failAt(t, "rpc.claim.before-commit=off")
		plant(t, w)
		w.stop(t)
		sources = w.sources(t)
		for _, name := range []string{"database", "dump"} {
			if in := sources[name].findAny(digestsOf(t, planted)); len(in) == 0 {
				t.Errorf("the digest of the leak that was planted in the %s was not found", name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(sources)) {
			in := sources[name].find(planted)
			if len(in) == 0 {
				t.Errorf("the leak planted in %s was not found", name)
			}
			t.Logf("the planted leak was found in %s%v", name, in)
		}
		if w.postgres != nil && !strings.Contains(strings.Join(sources["PostgreSQL's log"].find(planted), ""), "hex") {
			t.Error("the leak planted in a parameter of type bytea was not found")
		}
	})
}

// wantUseful fails unless there is what people go by: in logs and spans the operation and a prefix of its fingerprint, in metrics the
// declared tools and no others, and on PostgreSQL the statements as spans, without their arguments.
func wantUseful(t *testing.T, w *watched, sources map[string]source) {
	t.Helper()
	has := func(name, text string) bool { return len(sources[name].find(text)) > 0 }
	if !has("stderr", `"ledger.operation.id":"`) || !has("traces", "ledger.fingerprint.prefix") {
		t.Error("log or spans do not name operations")
	}
	if !regexp.MustCompile(`"ledger\.fingerprint\.prefix":"[0-9a-f]{8}"`).Match(sources["stderr"].parts[""]) {
		t.Error("the log has no fingerprint prefix of 8 digits")
	}
	if !has("metrics", `ledger_tool_name="note.write"`) || !has("metrics", `ledger_tool_name="other"`) || has("metrics", "undeclared") {
		t.Error("the metrics' tools are not the declared ones and \"other\"")
	}
	if !has("traces", "opsledger.v1.LedgerService/Claim") {
		t.Error("there is no span of a Claim")
	}
	if w.postgres == nil && len(sources["database"].parts[w.database+"-wal, before stop 1"]) == 0 {
		t.Error("SQLite's log was empty")
	}
	if w.postgres != nil && !has("traces", "INSERT INTO operations") {
		t.Error("there is no span of a statement")
	}
}

// canaryClaim is a Claim of a new task with canaries wherever callers give something.
func canaryClaim(t *testing.T) *pb.ClaimRequest {
	r := request("note.write", fmt.Sprintf("%s:%d", canaryTask, suite.count.Add(1)), canaryKey, canaryRequest)
	r.Key.Subject, r.WorkerId, r.TargetSummary = canarySubject, canaryWorker, canarySummary
	r.TargetAttributes = map[string]string{"order_id": canaryAttribute, "undeclared": canaryDropped}
	return r
}

// drive brings about all that may happen to a call, and returns the claim_ids.
func drive(t *testing.T, w *watched) (claimIDs []string) {
	t.Helper()
	agent := w.caller(t, billing)
	claim := func(r *pb.ClaimRequest, want codes.Code) *pb.ClaimResponse {
		t.Helper()
		claimIDs = append(claimIDs, r.GetClaimId())
		answer, err := agent.tryClaim(t, r)
		if status.Code(err) != want {
			t.Fatalf("a Claim was answered %v, want %v", err, want)
		}
		return answer
	}

	// Success, replay, conflict.
	first := canaryClaim(t)
	g := claim(first, codes.OK).GetGranted()
	done := completion(g.GetOperationId(), first.GetClaimId(), "note", canaryResource)
	done.GetSucceeded().Resource.Uri, done.GetSucceeded().Code = canaryURI, canaryCode
	done.GetSucceeded().Schema, done.GetSucceeded().Payload = "note.write.result/1", []byte(`{"note":"`+canaryPayload+`"}`)
	done.GetSucceeded().Attributes = map[string]string{"etag": canaryETag, "undeclared": canaryDropped}
	agent.applied(t, done)
	wantOutcome(t, claim(again(first), codes.OK), "REPLAY")
	claim(sameKey(first, `{"to":"`+canaryTo+`","note":"`+canaryBody+`, another"}`), codes.FailedPrecondition)
	// What contradicts it, comes too late, or is about no operation.
	agent.complete(t, completion(g.GetOperationId(), first.GetClaimId(), "note", canaryResource+"-2"))
	for _, id := range []string{g.GetOperationId(), uuid.NewString()} {
		for name, call := range map[string]func() error{
			"Start": func() error {
				_, err := agent.Start(within(t), &pb.StartRequest{OperationId: id, ClaimId: first.GetClaimId()})
				return err
			},
			"Cancel": func() error {
				_, err := agent.Cancel(within(t), &pb.CancelRequest{OperationId: id, ClaimId: first.GetClaimId()})
				return err
			},
		} {
			if err := call(); err == nil {
				t.Errorf("%s of what is over was answered", name)
			}
		}
	}
	undeclared := canaryClaim(t)
	g = claim(undeclared, codes.OK).GetGranted()
	done = completion(g.GetOperationId(), undeclared.GetClaimId(), "note", "N-2")
	done.GetSucceeded().Schema, done.GetSucceeded().Payload = "undeclared/1", []byte(canaryDropped)
	agent.applied(t, done)

	for i := range 5 { // tools without a contract: callers choose their names
		r := canaryClaim(t)
		r.Key.Tool = fmt.Sprintf("undeclared.%d", i)
		claim(r, codes.OK)
	}

	// Bad input.
	for _, body := range []string{
		`{"note":"` + canaryInvalid, `{"` + canaryInvalid + `":1,"` + canaryInvalid + `":2}`, `["` + canaryInvalid + `"]`,
		`{"note":"` + canaryInvalid + `"} trailing`, `{"note":"` + strings.Repeat(canaryInvalid, 20_000) + `"}`, "{\"note\":\"" + canaryInvalid + "\xff\"}", `{"note":1e` + canaryInvalid + `}`,
	} {
		r := canaryClaim(t)
		r.RequestJson = []byte(body)
		claim(r, codes.InvalidArgument)
	}
	malformed := canaryClaim(t)
	malformed.Key.Key = canaryOverlong + strings.Repeat("x", 300)
	claim(malformed, codes.InvalidArgument)
	malformed = canaryClaim(t)
	malformed.Key.Tool, malformed.Key.Task, malformed.ClaimId = canaryMalform+" ", canaryMalform+" ", canaryMalform
	malformed.Key.Subject, malformed.TargetSummary, malformed.AcceptSchemas = canaryMalform+"\n", canaryMalform+"\n", []string{canaryMalform + "\n"}
	malformed.TargetAttributes, malformed.DependsOn = map[string]string{"order_id": canaryMalform + "\n"}, []string{canaryMalform}
	claim(malformed, codes.InvalidArgument)
	if _, err := agent.Lookup(within(t), &pb.LookupRequest{
		Selector: &pb.LookupRequest_OperationId{OperationId: canaryMalform}, Subject: canarySubject,
	}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a Lookup was answered %v", err)
	}
	absent := &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: canaryClaim(t).GetKey()}}
	if _, err := agent.Lookup(within(t), absent); status.Code(err) != codes.NotFound {
		t.Errorf("a Lookup of an absent key was answered %v", err)
	}
	if _, err := agent.ListOperations(within(t), &pb.ListOperationsRequest{Subject: canarySubject, PageToken: canaryMalform}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a list with a bad token was answered %v", err)
	}

	// A rejection, a refusal, evidence.
	refused := canaryClaim(t)
	g = claim(refused, codes.OK).GetGranted()
	agent.applied(t, &pb.CompleteRequest{OperationId: g.GetOperationId(), ClaimId: refused.GetClaimId(), Outcome: &pb.CompleteRequest_NotExecuted{
		NotExecuted: &pb.NotExecuted{Kind: pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT, Detail: canaryDetail},
	}})
	refused = again(refused)
	claim(refused, codes.OK)
	rejected := rejection(pb.FailureKind_FAILURE_KIND_DECLINED, "declined")
	rejected.Rejected.Message = canaryMessage
	agent.applied(t, &pb.CompleteRequest{OperationId: g.GetOperationId(), ClaimId: refused.GetClaimId(), SentExactlyOnce: true, Outcome: rejected})
	wantOutcome(t, claim(again(refused), codes.OK), "FAILED")
	unknown := canaryClaim(t)
	g = claim(unknown, codes.OK).GetGranted()
	agent.markUnknown(t, g.GetOperationId(), unknown.GetClaimId())
	wantOutcome(t, claim(again(unknown), codes.OK), "UNKNOWN")
	evidence := found("note", "N-3", `{"note":"`+canaryObserved+`"}`, time.Now())
	evidence.Source = canarySource
	settled := w.caller(t, reconciler).reconcile(t, g.GetOperationId(), 0, evidence)
	wantState(t, settled.GetOperation(), pb.State_STATE_UNKNOWN, pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH)
	w.caller(t, reconciler).reconcile(t, g.GetOperationId(), 0, &pb.Evidence{Finding: &pb.Evidence_NotAccepted{NotAccepted: &pb.NotAccepted{Reason: canaryReason}}})

	// Who may not call, and who may not see.
	if _, err := w.caller(t, "spiffe://other.test/agent/billing").tryClaim(t, canaryClaim(t)); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a stranger's Claim was answered %v", err)
	}
	if _, err := agent.BeginCheck(within(t), &pb.BeginCheckRequest{OperationId: g.GetOperationId(), CommandId: uuid.NewString()}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a worker's BeginCheck was answered %v", err)
	}

	// The loop fails to find out, and people's calls are refused.
	asked, queued := failRecovery(t, w)
	claimIDs = append(claimIDs, asked...)
	failOperator(t, w, queued)

	fillAll(t, w)
	insertRaces(t, w)
	w.scrape(t)

	// The database is down.
	up := w.down(t)
	claim(canaryClaim(t), codes.Unavailable)
	up()
	eventually(t, "the database is back", func() bool {
		_, err := agent.tryClaim(t, canaryClaim(t))
		return err == nil
	})

	// A panic, with the request on the stack.
	w.stop(t)
	w.node.failAt(t, "rpc.claim.before-commit=1*panic")
	agent = w.caller(t, billing)
	claim(canaryClaim(t), codes.Internal)
	if !strings.Contains(w.node.log(), "panic in a call") {
		t.Error("the panic has left no word in the log")
	}
	return claimIDs
}

// caller is a worker whose every call carries canaries in its metadata, and all that it is told is kept.
func (w *watched) caller(t *testing.T, principal string) *worker {
	t.Helper()
	return connect(t, w.node.grpcAddr, leafOf(t, principal), grpc.WithUnaryInterceptor(w.keepStatus))
}

// insertRaces lets many insert the same row at the same time: the losers meet the unique index.
func insertRaces(t *testing.T, w *watched) {
	t.Helper()
	for range 5 {
		r := canaryClaim(t)
		var group sync.WaitGroup
		told := make(chan string, 16)
		start := make(chan struct{})
		for range cap(told) {
			agent, one := w.caller(t, billing), again(r)
			one.WorkerId = agent.id
			group.Go(func() {
				<-start
				answer, err := agent.Claim(context.WithoutCancel(t.Context()), one)
				if err != nil {
					told <- status.Code(err).String()
					return
				}
				told <- outcome(answer)
			})
		}
		close(start)
		group.Wait()
		close(told)
		counts := map[string]int{}
		for one := range told {
			counts[one]++
		}
		if want := (map[string]int{"EXECUTE": 1, "IN_PROGRESS": 15}); !maps.Equal(counts, want) {
			t.Errorf("the race was answered %v, want %v", counts, want)
		}
	}
}

func declarePlanted(t *testing.T, w *watched) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(w.dir, "contracts.yaml"), os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "  %s: {effect: unsafe}\n", planted)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// plant puts the leak where each source has it in clear: a tool's name and a summary go everywhere, a resource into the detail of a
// conflict, the list of tools to standard output.
func plant(t *testing.T, w *watched) {
	t.Helper()
	agent := w.caller(t, billing)
	r := request(planted, unique(t), "K", `{"a":1}`)
	r.TargetSummary = planted
	digest := sha256.Sum256([]byte(`"` + planted + `"`))
	g := agent.grant(t, r)
	done := completion(g.GetOperationId(), r.GetClaimId(), "thing", planted)
	done.GetSucceeded().Resource.Version = base64.StdEncoding.EncodeToString(digest[:])
	agent.applied(t, done)
	_, err := agent.tryClaim(t, sameKey(r, `{"a":2}`))
	if got := wantConflict(t, err).GetResource().GetId(); got != planted {
		t.Fatalf("the conflict shows the resource %q", got)
	}
	for i, flag := range w.flags {
		if flag == "--contracts" { // the last one counts
			w.run(t, "contracts", "check", w.flags[i+1])
		}
	}
}
