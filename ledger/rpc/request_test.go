// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// typed is a contract whose requests have types, in a version.
func typed(version string, fields map[string]ledger.RequestField, ignored ...string) ledger.Contract {
	c := declared("charge")
	c.Version, c.Fields, c.Ignored = version, fields, ignored
	return c
}

var payment = map[string]ledger.RequestField{
	"amount": {Type: "money", Currency: "currency", Category: "amount"}, "to": {Category: "recipient"}, "priority": {Default: `"normal"`},
	"/lines/*/at": {Type: "timestamp"},
}

// charge claims under a key; the request is what tests are about.
func (w *world) charge(key, request string) *pb.ClaimRequest {
	req := w.claim(key)
	req.Key.Tool, req.RequestJson = "charge", []byte(request)
	return req
}

func TestSpellingsOfDeclaredTypesAreOneRequest(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": typed("v1", payment, "trace_id")}})
	grant := w.granted(t, "agent-a", w.charge("key-1", `{"amount":"12.50","currency":"EUR","to":"A","trace_id":1,"lines":[{"at":"2026-03-01T10:00:00+01:00"}]}`))
	for request, want := range map[string][]string{
		`{"lines":[{"at":"2026-03-01T09:00:00.0Z"}],"priority":"normal","to":"\u0041","currency":"EUR","amount":12.5}`:           nil,
		`{"amount":"12.51","currency":"EUR","to":"A","lines":[{"at":"2026-03-01T09:00:00Z"}]}`:                                   {"amount"},
		`{"amount":"12.50","currency":"USD","to":"A","lines":[{"at":"2026-03-01T09:00:00Z"}]}`:                                   {"amount", "other"},
		`{"amount":"12.50","currency":"EUR","to":"A","priority":"high","trace_id":2,"lines":[{"at":"2026-03-01T09:00:00Z"}]}`:    {"other"},
		`{"amount":"12.50","currency":"EUR","to":"B","trace_id":1,"lines":[{"at":"2026-03-01T10:00:00+01:00"}],"priority":null}`: {"other", "recipient"},
	} {
		answer, err := w.client.Claim(as(t, "agent-a"), w.charge("key-1", request))
		if want == nil {
			if err != nil || answer.GetInProgress() == nil || answer.GetOperation().GetId() != grant.GetOperationId() {
				t.Errorf("%s: %v, %v", request, answer, err)
			}
			continue
		}
		conflict := detail[*pb.FingerprintConflict](refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT"))
		if diff := cmp.Diff(want, conflict.GetCategories()); diff != "" {
			t.Errorf("%s: %s", request, diff)
		}
	}
}

func TestMisfitsNameTheFieldAndStoreNothing(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": typed("v1", payment)}})
	misfit := w.charge("key-1", `{"amount":1,"currency":"EUR","canary-name":1,"lines":[{},{"canary-name":2,"at":"canary-value"}]}`)
	_, err := w.client.Claim(as(t, "agent-a"), misfit)
	s := refused(t, err, codes.InvalidArgument, "VALIDATION")
	rule := violations(s)["request_json"]
	if !strings.Contains(rule, "in /lines/1/at,") || !strings.Contains(rule, string(fingerprint.RuleTimestamp)) || len(violations(s)) != 1 {
		t.Errorf("violations: %v", violations(s))
	}
	if strings.Contains(s.Proto().String(), "canary") {
		t.Errorf("shows something of the request: %v", s)
	}
	// Told at once with what else is wrong.
	misfit.WorkerId = ""
	_, err = w.client.Claim(as(t, "agent-a"), misfit)
	if got := violations(refused(t, err, codes.InvalidArgument, "VALIDATION")); got["request_json"] != rule || got["worker_id"] == "" {
		t.Errorf("violations: %v", got)
	}
	_, err = w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: misfit.GetKey()}})
	refused(t, err, codes.NotFound, "OPERATION_NOT_FOUND")
	w.granted(t, "agent-a", w.charge("key-1", `{"amount":1,"currency":"EUR"}`))
}

// A contract that changes makes neither a conflict nor a match of what was claimed before.
func TestRetriesAreJudgedByTheContractOfTheirRecord(t *testing.T) {
	before, now := typed("v1", map[string]ledger.RequestField{"amount": {Category: "amount"}}), typed("v2", payment)
	fetching := func(why error) fingerprint.Options {
		return fingerprint.Options{Versions: &fingerprint.Versions{Fetch: func(_ context.Context, tool ledger.Tool, version string) (fingerprint.Rules, error) {
			if tool != "charge" || version != "v1" {
				t.Errorf("asked for version %s of %s", version, tool)
			}
			if why != nil {
				return fingerprint.Rules{}, why
			}
			return fingerprint.RulesOf(before)
		}}}
	}
	for name, c := range map[string]struct {
		other    bool // another process, that has only the new contract in force
		requests fingerprint.Options
		// code and reason where nothing can be said.
		code   codes.Code
		reason string
	}{
		"the process that had it in force": {false, fingerprint.Options{}, codes.OK, ""},
		"a process that can look it up":    {true, fetching(nil), codes.OK, ""},
		"a process that can't look it up":  {true, fingerprint.Options{}, codes.FailedPrecondition, "RECORD_TOO_NEW"},
		"a process that does not find it":  {true, fetching(ledger.ErrRecordTooNew), codes.FailedPrecondition, "RECORD_TOO_NEW"},
		"a process that can't look now":    {true, fetching(ledger.ErrStoreUnavailable), codes.Unavailable, "STORE_UNAVAILABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, setup{contracts: contracts{"charge": before}})
			const request = `{"amount":"1,250.00","to":"A"}` // no money, as it is declared later
			first := w.charge("key-1", request)
			grant := w.granted(t, "agent-a", first)
			if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: grant.GetOperationId(), ClaimId: first.GetClaimId()}); err != nil {
				t.Fatal(err)
			}
			w.contracts["charge"] = now
			if c.other {
				w = newWorld(t, setup{store: w.store, contracts: w.contracts, requests: c.requests})
			}
			answer, err := w.client.Claim(as(t, "agent-a"), w.charge("key-1", request))
			if c.reason != "" {
				refused(t, err, c.code, c.reason)
			} else if err != nil || answer.GetUnknown() == nil {
				t.Errorf("unchanged: %v, %v", answer, err)
			}
			_, err = w.client.Claim(as(t, "agent-a"), w.charge("key-1", `{"amount":"1250.00","to":"A"}`))
			if c.reason != "" {
				refused(t, err, c.code, c.reason)
			} else if conflict := detail[*pb.FingerprintConflict](refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT")); !cmp.Equal(conflict.GetCategories(), []string{"amount"}) {
				t.Errorf("changed: %v", conflict)
			}
			// What the target shows is read as the record was.
			done, err := w.client.Reconcile(as(t, "checker"), &pb.ReconcileRequest{
				Selector: &pb.ReconcileRequest_OperationId{OperationId: grant.GetOperationId()}, CommandId: uuid.NewString(),
				Evidence: &pb.Evidence{Finding: &pb.Evidence_Found{Found: &pb.Found{
					Result: &pb.Result{Resource: &pb.ResourceRef{Id: "ch_1"}}, ObservedJson: []byte(`{"amount":"1,250.00"}`),
				}}},
			})
			if c.reason != "" {
				refused(t, err, c.code, c.reason)
			} else if err != nil || done.GetOperation().GetState() != pb.State_STATE_COMPLETED {
				t.Errorf("found: %v, %v", done, err)
			}
			other := w.charge("key-2", request)
			other.Key.Task = "task-2"
			_, err = w.client.Claim(as(t, "agent-a"), other)
			if rule := violations(refused(t, err, codes.InvalidArgument, "VALIDATION"))["request_json"]; !strings.Contains(rule, "in /amount,") {
				t.Errorf("a new key: %q", rule)
			}
		})
	}
}

// Case C49: 80 yen, of which the target has made 8000, and 80 of something else.
func TestMoneyThatATargetHasOtherwiseIsForAPerson(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": typed("v1", payment)}})
	for observed, want := range map[string]pb.QueueReason{
		`{"amount":80.0,"currency":"JPY"}`:   pb.QueueReason_QUEUE_REASON_UNSPECIFIED,
		`{"amount":"8000","currency":"JPY"}`: pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH,
		`{"amount":80,"currency":"USD"}`:     pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH,
		`{"amount":80}`:                      pb.QueueReason_QUEUE_REASON_EVIDENCE_INCOMPLETE,
	} {
		req := w.charge(uuid.NewString(), `{"amount":"80","currency":"JPY"}`)
		req.Key.Task = uuid.NewString()
		grant := w.granted(t, "agent-a", req)
		if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()}); err != nil {
			t.Fatal(err)
		}
		done, err := w.client.Reconcile(as(t, "checker"), &pb.ReconcileRequest{
			Selector: &pb.ReconcileRequest_OperationId{OperationId: grant.GetOperationId()}, CommandId: uuid.NewString(),
			Evidence: &pb.Evidence{Finding: &pb.Evidence_Found{Found: &pb.Found{Result: &pb.Result{Resource: &pb.ResourceRef{Id: "ch_1"}}, ObservedJson: []byte(observed)}}},
		})
		completed := done.GetOperation().GetState() == pb.State_STATE_COMPLETED
		if err != nil || done.GetOperation().GetQueueReason() != want || completed != (want == 0) {
			t.Errorf("%s: %v, %v", observed, done, err)
		}
	}
}

// Case C14: two builds on one store, of which the newer one reads strings without their case.
func TestTwoBuildsOnOneStore(t *testing.T) {
	specs, err := fingerprint.NewSpecs(2, fingerprint.Spec{
		Number: 2,
		Canonicalize: func(text []byte, rules fingerprint.Rules) (fingerprint.Canonical, error) {
			return fingerprint.Canonicalize(bytes.ToLower(text), rules)
		},
		Observed: func(text []byte, rules fingerprint.Rules) (fingerprint.Canonical, error) {
			return fingerprint.CanonicalizeObserved(bytes.ToLower(text), rules)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	older := newWorld(t, setup{})
	newer := newWorld(t, setup{store: older.store, requests: fingerprint.Options{Specs: specs}})
	older.granted(t, "agent-a", older.claim("by-the-older"))
	newer.granted(t, "agent-a", newer.claim("by-the-newer"))
	claim := func(w *world, key, request string) error {
		req := w.claim(key)
		req.RequestJson = []byte(request)
		_, err := w.client.Claim(as(t, "agent-a"), req)
		return err
	}
	const unchanged, otherCase, otherAmount = `{"to":"canary-recipient","amount":100}`, `{"to":"Canary-Recipient","amount":100}`, `{"to":"canary-recipient","amount":101}`
	if err := claim(newer, "by-the-older", unchanged); err != nil {
		t.Errorf("the newer one, of an old record: %v", err)
	}
	refused(t, claim(newer, "by-the-older", otherCase), codes.FailedPrecondition, "FINGERPRINT_CONFLICT")
	refused(t, claim(newer, "by-the-older", otherAmount), codes.FailedPrecondition, "FINGERPRINT_CONFLICT")
	if err := claim(newer, "by-the-newer", otherCase); err != nil {
		t.Errorf("the newer one, of its own: %v", err)
	}
	refused(t, claim(newer, "by-the-newer", otherAmount), codes.FailedPrecondition, "FINGERPRINT_CONFLICT")
	for _, request := range []string{unchanged, otherCase, otherAmount} {
		refused(t, claim(older, "by-the-newer", request), codes.FailedPrecondition, "RECORD_TOO_NEW")
	}
}

// A contract whose declarations can't be used is nobody's request's fault.
func TestDeclarationsThatCanNotBeUsedAreAnInternalError(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": typed("v1", map[string]ledger.RequestField{"amount": {Type: "canary-type"}})}})
	_, err := w.client.Claim(as(t, "agent-a"), w.charge("key-1", `{}`))
	if err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("%v", err)
	}
}
