// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// askedNotes is the contract of a tool whose target is rogue: it says what it must not say, in every way in which a query can fail.
const askedNotes = `
  note.ask:
    effect: keyed
    attributes: [order_id]
    request: {fields: {note: {category: body}, to: {category: recipient}}} # noteFields
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 120s
      probe:
        http:
          url: "URL/{attributes.order_id}?key={downstream_key}"
          headers: {authorization: "Bearer ${file:SECRET}"}
          found: "status == 200 && body.id != ''"
          not_found: "status == 404 && body.code == 'none'"
          observed: {note: "body.note", to: "body.to"}
          result: {id: "body.id", type: "'note'"}
      verify: [body, recipient]
      checks: {first: 1s, max_interval: 10m, timeout: 1s}
      limits: {concurrency: 16, per_second: 100}
`

// rogue is a target that answers by the last part of its path.
type rogue struct {
	*httptest.Server
	mu    sync.Mutex
	asked map[string]bool
}

// askedAll reports whether each kind of answer has been asked for.
func (r *rogue) askedAll() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.asked) == len(rogueAnswers)
}

var rogueAnswers = map[string]func(http.ResponseWriter, *http.Request){
	"status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500); say(w, canaryAnswer) },
	"login": func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(401)
		say(w, `{"error":"`+canaryAnswer+`"}`)
	},
	"garbage": func(w http.ResponseWriter, _ *http.Request) { say(w, `{"id":"`+canaryAnswer) },
	"other": func(w http.ResponseWriter, _ *http.Request) {
		say(w, `{"id":"N-5","note":"`+canaryObserved+`","to":"x"}`)
	},
	"unfit": func(w http.ResponseWriter, _ *http.Request) { say(w, `{"id":["`+canaryAnswer+`"],"note":{}}`) },
	"long": func(w http.ResponseWriter, _ *http.Request) {
		say(w, `{"id":"`+strings.Repeat(canaryAnswer, 1<<17)+`"}`)
	},
	"hangs":    func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	"hangs up": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"elsewhere": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "http://"+canaryAnswer+".test/"+canaryAnswer)
		w.WriteHeader(302)
	},
}

func say(w io.Writer, text string) { _, _ = io.WriteString(w, text) }

func startRogue(t *testing.T) *rogue {
	t.Helper()
	r := &rogue{asked: map[string]bool{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, mode, _ := strings.Cut(q.URL.Path, canaryAttribute+"-")
		r.mu.Lock()
		r.asked[mode] = q.Header.Get("Authorization") == "Bearer "+canarySecret && q.URL.Query().Get("key") != ""
		r.mu.Unlock()
		w.Header().Set("X-Note", canaryAnswer)
		if answer := rogueAnswers[mode]; answer != nil {
			answer(w, q)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// contract is that of the tool whose target it is.
func (r *rogue) contract(t *testing.T, dir string) string {
	t.Helper()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(canarySecret), 0o600); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("URL", r.URL, "SECRET", secret).Replace(askedNotes)
}

// failRecovery has the loop ask the rogue in every way, and returns an operation that a person has to look at.
func failRecovery(t *testing.T, w *watched) (claimIDs []string, queued string) {
	t.Helper()
	agent := w.caller(t, billing)
	operations := map[string]string{}
	for mode := range rogueAnswers {
		r := canaryClaim(t)
		r.Key.Tool, r.TargetAttributes = "note.ask", map[string]string{"order_id": canaryAttribute + "-" + mode}
		g := agent.grant(t, r)
		agent.markUnknown(t, g.GetOperationId(), r.GetClaimId())
		operations[mode], claimIDs = g.GetOperationId(), append(claimIDs, r.GetClaimId())
	}
	eventually(t, "every check has ended", func() bool { // also those that are asked again meanwhile are counted
		return w.node.metric(t, "ledger_evidence_queries_total", `ledger_tool_name="note.ask"`) >= float64(len(operations)) && w.rogue.askedAll()
	})
	eventually(t, "the log tells of the targets that could not be asked", func() bool {
		return strings.Count(w.node.log(), "a target could not be asked") >= 4
	})
	w.rogue.mu.Lock()
	defer w.rogue.mu.Unlock()
	for mode, operation := range operations {
		if !w.rogue.asked[mode] {
			t.Errorf("the target that %s was not asked with its secret and the key", mode)
		}
		custody, reason := pb.Custody_CUSTODY_AUTOMATION, pb.QueueReason_QUEUE_REASON_UNSPECIFIED
		switch mode {
		case "other":
			custody, reason = pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH
		case "unfit": // found, and it can't be named
			custody, reason = pb.Custody_CUSTODY_QUEUED, pb.QueueReason_QUEUE_REASON_AMBIGUOUS
		}
		answer, err := agent.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: operation}, Subject: canarySubject})
		if err != nil {
			t.Fatal(err)
		}
		wantState(t, answer.GetOperation(), pb.State_STATE_UNKNOWN, custody, reason)
	}
	return claimIDs, operations["other"]
}

// failOperator makes the calls of people that are refused: they looked at another version, name what is not there, or are nobody who may.
func failOperator(t *testing.T, w *watched, queued string) {
	t.Helper()
	const another = 99
	person := pb.NewOperatorServiceClient(w.caller(t, operator).conn)
	agent := pb.NewOperatorServiceClient(w.caller(t, billing).conn)
	happened := &pb.Resolution{Resolution: &pb.Resolution_Happened{Happened: &pb.Result{
		Resource: &pb.ResourceRef{Type: "note", Id: canaryNote}, Code: canaryNote,
	}}}
	id := uuid.NewString
	for name, call := range map[string]func() error{
		"TakeOver": func() error {
			_, err := person.TakeOver(within(t), &pb.TakeOverRequest{OperationId: queued, CommandId: id(), ExpectedVersion: another, Reason: canaryNote})
			return err
		},
		"HandBack": func() error {
			_, err := person.HandBack(within(t), &pb.HandBackRequest{OperationId: queued, CommandId: id(), ExpectedVersion: another, Reason: canaryNote})
			return err
		},
		"Resolve": func() error {
			_, err := person.Resolve(within(t), &pb.ResolveRequest{
				OperationId: queued, CommandId: id(), ExpectedVersion: another, Resolution: happened, Note: canaryNote, SearchTime: timestamppb.Now(),
			})
			return err
		},
		"BatchResolve": func() error {
			answer, err := person.BatchResolve(within(t), &pb.BatchResolveRequest{
				CommandId: id(), Items: []*pb.BatchItem{{OperationId: queued, ExpectedVersion: another}}, Resolution: happened, Note: canaryNote,
			})
			for _, one := range answer.GetResults() {
				err = fmt.Errorf("refused: %v", one.GetError())
			}
			return err
		},
		"Approve": func() error {
			_, err := person.Approve(within(t), &pb.ApproveRequest{
				OperationId: queued, CommandId: id(), ExpectedVersion: another, Decision: pb.Decision_DECISION_REJECT, Note: canaryNote,
			})
			return err
		},
		"CheckNow": func() error {
			_, err := person.CheckNow(within(t), &pb.CheckNowRequest{
				CommandId: id(), Selector: &pb.CheckNowRequest_OperationId{OperationId: id()}, Reason: canaryNote,
			})
			return err
		},
		"AddNote": func() error {
			_, err := person.AddNote(within(t), &pb.AddNoteRequest{OperationId: id(), CommandId: id(), Note: canaryNote})
			return err
		},
		"PauseTool by an agent": func() error {
			_, err := agent.PauseTool(within(t), &pb.PauseToolRequest{Tool: "note.ask", CommandId: id(), Reason: canaryNote})
			return err
		},
		"SearchOperations by an agent": func() error {
			_, err := agent.SearchOperations(within(t), &pb.SearchOperationsRequest{DownstreamKey: canaryNote, ResourceId: canaryNote})
			return err
		},
	} {
		if err := call(); err == nil {
			t.Errorf("%s was not refused", name)
		}
	}
}

// refusals are the codes with which malformed calls are refused.
var refusals = []codes.Code{
	codes.InvalidArgument, codes.NotFound, codes.PermissionDenied, codes.Unauthenticated,
}
