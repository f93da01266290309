// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// canary is a value that no answer may repeat.
const canary = "canary\x01value"

func TestBadClaimNamesFieldAndRuleAndStoresNothing(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	long := strings.Repeat("x", 256)
	many := make([]string, 33)
	for i := range many {
		many[i] = "00000000-0000-8000-8000-000000000000"
	}
	wide := map[string]string{}
	for i := range 33 {
		wide[strings.Repeat("n", i+1)] = ""
	}
	const name = "must be 1 to 255 printable ASCII characters without space"
	const reserved = "must not be one of null, undefined, None, nil"
	const text = "must be at most 255 bytes without control characters"
	const uuid = "must be a UUID in its canonical lower-case form"
	for title, test := range map[string]struct {
		change func(*pb.ClaimRequest)
		want   map[string]string
	}{
		"no key":             {func(r *pb.ClaimRequest) { r.Key = nil }, map[string]string{"key": "must be set"}},
		"tool empty":         {func(r *pb.ClaimRequest) { r.Key.Tool = "" }, map[string]string{"key.tool": ruleTool}},
		"tool over-long":     {func(r *pb.ClaimRequest) { r.Key.Tool = long[:129] }, map[string]string{"key.tool": ruleTool}},
		"tool begins badly":  {func(r *pb.ClaimRequest) { r.Key.Tool = "1tool" }, map[string]string{"key.tool": ruleTool}},
		"tool with a slash":  {func(r *pb.ClaimRequest) { r.Key.Tool = "a/b" }, map[string]string{"key.tool": ruleTool}},
		"task empty":         {func(r *pb.ClaimRequest) { r.Key.Task = "" }, map[string]string{"key.task": name}},
		"task over-long":     {func(r *pb.ClaimRequest) { r.Key.Task = long }, map[string]string{"key.task": name}},
		"task undefined":     {func(r *pb.ClaimRequest) { r.Key.Task = "undefined" }, map[string]string{"key.task": reserved}},
		"key empty":          {func(r *pb.ClaimRequest) { r.Key.Key = "" }, map[string]string{"key.key": name}},
		"key over-long":      {func(r *pb.ClaimRequest) { r.Key.Key = long }, map[string]string{"key.key": name}},
		"key not printable":  {func(r *pb.ClaimRequest) { r.Key.Key = canary }, map[string]string{"key.key": name}},
		"key not ASCII":      {func(r *pb.ClaimRequest) { r.Key.Key = "Bestätigung" }, map[string]string{"key.key": name}},
		"key null":           {func(r *pb.ClaimRequest) { r.Key.Key = "null" }, map[string]string{"key.key": reserved}},
		"key None":           {func(r *pb.ClaimRequest) { r.Key.Key = "None" }, map[string]string{"key.key": reserved}},
		"key nil":            {func(r *pb.ClaimRequest) { r.Key.Key = "nil" }, map[string]string{"key.key": reserved}},
		"subject over-long":  {func(r *pb.ClaimRequest) { r.Key.Subject = long }, map[string]string{"key.subject": text}},
		"subject control":    {func(r *pb.ClaimRequest) { r.Key.Subject = canary }, map[string]string{"key.subject": text}},
		"no claim_id":        {func(r *pb.ClaimRequest) { r.ClaimId = "" }, map[string]string{"claim_id": uuid}},
		"claim_id in upper":  {func(r *pb.ClaimRequest) { r.ClaimId = strings.ToUpper("5f1b2f7e-6a0f-4a4e-9d0a-0c1f6f0a7b01") }, map[string]string{"claim_id": uuid}},
		"claim_id in braces": {func(r *pb.ClaimRequest) { r.ClaimId = "{" + r.ClaimId + "}" }, map[string]string{"claim_id": uuid}},
		"claim_id all zero":  {func(r *pb.ClaimRequest) { r.ClaimId = "00000000-0000-0000-0000-000000000000" }, map[string]string{"claim_id": uuid}},
		"no worker_id":       {func(r *pb.ClaimRequest) { r.WorkerId = "" }, map[string]string{"worker_id": name}},
		"worker_id space":    {func(r *pb.ClaimRequest) { r.WorkerId = "worker 1" }, map[string]string{"worker_id": name}},
		"summary over-long":  {func(r *pb.ClaimRequest) { r.TargetSummary = long }, map[string]string{"target_summary": text}},
		"summary control":    {func(r *pb.ClaimRequest) { r.TargetSummary = canary }, map[string]string{"target_summary": text}},
		"lease too short":    {func(r *pb.ClaimRequest) { r.Lease = durationpb.New(time.Second - 1) }, map[string]string{"lease": "must be at least 1s and at most 1m0s"}},
		"lease too long":     {func(r *pb.ClaimRequest) { r.Lease = durationpb.New(time.Minute + 1) }, map[string]string{"lease": "must be at least 1s and at most 1m0s"}},
		"lease negative":     {func(r *pb.ClaimRequest) { r.Lease = durationpb.New(-time.Minute) }, map[string]string{"lease": "must be at least 1s and at most 1m0s"}},
		"lease overflows":    {func(r *pb.ClaimRequest) { r.Lease = &durationpb.Duration{Seconds: 1 << 62} }, map[string]string{"lease": "must be at least 1s and at most 1m0s"}},
		"wait too long":      {func(r *pb.ClaimRequest) { r.Wait = durationpb.New(time.Minute + 1) }, map[string]string{"wait": "must be at least 0s and at most 60s"}},
		"wait negative":      {func(r *pb.ClaimRequest) { r.Wait = durationpb.New(-1) }, map[string]string{"wait": "must be at least 0s and at most 60s"}},
		"intent_time bad":    {func(r *pb.ClaimRequest) { r.IntentTime = &timestamppb.Timestamp{Nanos: -1} }, map[string]string{"intent_time": "must be a valid time"}},
		"intent_time ahead": {
			func(r *pb.ClaimRequest) { r.IntentTime = timestamppb.New(w.now().Add(time.Hour)) },
			map[string]string{"intent_time": "must not lie more than 5 minutes ahead of the ledger's time"},
		},
		"depends_on too many": {func(r *pb.ClaimRequest) { r.DependsOn = many }, map[string]string{"depends_on": "must name at most 32 operations"}},
		"depends_on no id":    {func(r *pb.ClaimRequest) { r.DependsOn = []string{many[0], canary} }, map[string]string{"depends_on[1]": uuid}},
		"distinct_from no id": {func(r *pb.ClaimRequest) { r.DistinctFrom = []string{"x"} }, map[string]string{"distinct_from[0]": uuid}},
		"compensates no id":   {func(r *pb.ClaimRequest) { r.Relation = &pb.ClaimRequest_Compensates{Compensates: canary} }, map[string]string{"compensates": uuid}},
		"corrects no id":      {func(r *pb.ClaimRequest) { r.Relation = &pb.ClaimRequest_Corrects{} }, map[string]string{"corrects": uuid}},
		"compensates what is not there": {
			func(r *pb.ClaimRequest) { r.Relation = &pb.ClaimRequest_Compensates{Compensates: many[0]} },
			map[string]string{"compensates": "must name operations that the caller can see"},
		},
		"corrects what is not there": {
			func(r *pb.ClaimRequest) { r.Relation = &pb.ClaimRequest_Corrects{Corrects: many[0]} },
			map[string]string{"corrects": "must name operations that the caller can see"},
		},
		"effect_hint unknown":  {func(r *pb.ClaimRequest) { r.EffectHint = 99 }, map[string]string{"effect_hint": "must be a value that this release knows"}},
		"effect_hint negative": {func(r *pb.ClaimRequest) { r.EffectHint = -1 }, map[string]string{"effect_hint": "must be a value that this release knows"}},
		"too many schemas":     {func(r *pb.ClaimRequest) { r.AcceptSchemas = many }, map[string]string{"accept_schemas": "must name at most 32 schemas"}},
		"too many attributes":  {func(r *pb.ClaimRequest) { r.TargetAttributes = wide }, map[string]string{"target_attributes": "must have at most 32 entries"}},
		"declared attribute over-long": {
			func(r *pb.ClaimRequest) {
				r.Key.Tool = "charge"
				r.TargetAttributes = map[string]string{"order_id": strings.Repeat("x", 1025), canary: canary}
			},
			map[string]string{"target_attributes.order_id": "must be at most 1024 bytes without control characters"},
		},
		"no request": {func(r *pb.ClaimRequest) { r.RequestJson = nil }, map[string]string{"request_json": "must be one JSON object, not empty"}},
		"request in a declared field": {
			func(r *pb.ClaimRequest) {
				r.Key.Tool = "charge"
				r.RequestJson = []byte(`{"amount":1e401}`)
			},
			map[string]string{"request_json": "must not have numbers with an exponent beyond ±400 (in /amount, near byte 10)"},
		},
		"everything at once": {
			func(r *pb.ClaimRequest) { proto.Reset(r); r.Key = &pb.OperationKey{} },
			map[string]string{
				"key.tool": ruleTool, "key.task": name, "key.key": name, "claim_id": uuid, "worker_id": name,
				"request_json": "must be one JSON object, not empty",
			},
		},
	} {
		t.Run(title, func(t *testing.T) {
			req := w.claim("key-" + strings.ReplaceAll(title, " ", "-"))
			test.change(req)
			_, err := w.client.Claim(as(t, "agent-a"), req)
			s := refused(t, err, codes.InvalidArgument, "VALIDATION")
			if diff := cmp.Diff(test.want, violations(s)); diff != "" {
				t.Error(diff)
			}
			if strings.Contains(s.Proto().String(), "canary") {
				t.Error("the answer repeats a value")
			}
		})
	}
	all, err := w.client.ListOperations(as(t, "agent-a"), &pb.ListOperationsRequest{})
	if err != nil || len(all.GetOperations()) != 0 {
		t.Errorf("stored: %v, %v", all, err)
	}
}

const ruleTool = "must be a letter followed by up to 127 letters, digits, '.', '_' or '-'"

func TestOtherBadInputNamesFieldAndRule(t *testing.T) {
	w := newWorld(t, setup{})
	const uuid = "must be a UUID in its canonical lower-case form"
	const id = "5f1b2f7e-6a0f-8a4e-9d0a-0c1f6f0a7b01"
	agent, checker := as(t, "agent-a"), as(t, "checker")
	for title, test := range map[string]struct {
		call func() error
		want map[string]string
	}{
		"start without anything": {
			func() error { _, err := w.client.Start(agent, &pb.StartRequest{}); return err },
			map[string]string{"operation_id": uuid, "claim_id": uuid},
		},
		"renew with a lease below a second": {
			func() error {
				_, err := w.client.Renew(agent, &pb.RenewRequest{OperationId: id, ClaimId: id, Lease: durationpb.New(1)})
				return err
			},
			map[string]string{"lease": "must be at least 1s"},
		},
		"complete without an outcome": {
			func() error {
				_, err := w.client.Complete(agent, &pb.CompleteRequest{OperationId: id, ClaimId: id})
				return err
			},
			map[string]string{"outcome": "must be set"},
		},
		"rejected without a kind": {
			func() error {
				_, err := w.client.Complete(agent, &pb.CompleteRequest{OperationId: id, ClaimId: id, Outcome: &pb.CompleteRequest_Rejected{Rejected: &pb.Failure{Message: canary}}})
				return err
			},
			map[string]string{"rejected.kind": "must be DECLINED or INVALID"},
		},
		"rejected of a kind that is the ledger's own": {
			func() error {
				_, err := w.client.Complete(agent, &pb.CompleteRequest{OperationId: id, ClaimId: id, Outcome: &pb.CompleteRequest_Rejected{Rejected: &pb.Failure{Kind: pb.FailureKind_FAILURE_KIND_EXPIRED}}})
				return err
			},
			map[string]string{"rejected.kind": "must be DECLINED or INVALID"},
		},
		"not executed of an unknown kind": {
			func() error {
				_, err := w.client.Complete(agent, &pb.CompleteRequest{OperationId: id, ClaimId: id, Outcome: &pb.CompleteRequest_NotExecuted{NotExecuted: &pb.NotExecuted{Kind: 9}}})
				return err
			},
			map[string]string{"not_executed.kind": "must be NEVER_SENT or REFUSED_BEFORE_ACCEPTANCE"},
		},
		"mark unknown without anything": {
			func() error { _, err := w.client.MarkUnknown(agent, &pb.MarkUnknownRequest{}); return err },
			map[string]string{"operation_id": uuid, "claim_id": uuid},
		},
		"cancel with a claim_id that is none": {
			func() error {
				_, err := w.client.Cancel(agent, &pb.CancelRequest{OperationId: id, ClaimId: "x", Subject: canary})
				return err
			},
			map[string]string{"claim_id": uuid, "subject": "must be at most 255 bytes without control characters"},
		},
		"lookup without a selector": {
			func() error { _, err := w.client.Lookup(agent, &pb.LookupRequest{}); return err },
			map[string]string{"selector": "must be set"},
		},
		"lookup by key with two subjects": {
			func() error {
				_, err := w.client.Lookup(agent, &pb.LookupRequest{Subject: "u", Selector: &pb.LookupRequest_Key{Key: &pb.OperationKey{Tool: "t", Task: "t", Key: "k"}}})
				return err
			},
			map[string]string{"subject": "must be empty, or the same as key.subject"},
		},
		"list with everything wrong": {
			func() error {
				_, err := w.client.ListOperations(agent, &pb.ListOperationsRequest{
					Task: "nil", PageSize: 501, PageToken: "AAAA", States: []pb.State{0}, UpdateTimeAfter: &timestamppb.Timestamp{Nanos: -1},
				})
				return err
			},
			map[string]string{
				"task": "must not be one of null, undefined, None, nil", "page_size": "must be at least 0 and at most 500",
				"states": "must be a value that this release knows", "update_time_after": "must be a valid time",
				"page_token": "must be the next_page_token of a page with the same task, states and update_time_after",
			},
		},
		"tool that is none": {
			func() error { _, err := w.client.GetTool(agent, &pb.GetToolRequest{Tool: canary}); return err },
			map[string]string{"tool": ruleTool},
		},
		"check without anything": {
			func() error { _, err := w.client.BeginCheck(checker, &pb.BeginCheckRequest{}); return err },
			map[string]string{"operation_id": uuid, "command_id": uuid},
		},
		"evidence without anything": {
			func() error { _, err := w.client.Reconcile(checker, &pb.ReconcileRequest{}); return err },
			map[string]string{"selector": "must be set", "command_id": uuid, "evidence.finding": "must be set"},
		},
		"evidence with everything wrong": {
			func() error {
				_, err := w.client.Reconcile(checker, &pb.ReconcileRequest{
					Selector: &pb.ReconcileRequest_DownstreamKey{DownstreamKey: canary}, CommandId: id,
					Evidence: &pb.Evidence{Source: canary, Finding: &pb.Evidence_Indeterminate{Indeterminate: &pb.Indeterminate{Cause: 77, RetryAfter: durationpb.New(-1)}}},
				})
				return err
			},
			map[string]string{
				"downstream_key": "must be 32 lower-case hex digits", "evidence.source": "must be at most 255 bytes without control characters",
				"evidence.indeterminate.cause": "must be a value that this release knows", "evidence.indeterminate.retry_after": "must be at least 0s and at most 24h",
			},
		},
		"found nothing that can be named": {
			func() error {
				_, err := w.client.Reconcile(checker, &pb.ReconcileRequest{
					Selector: &pb.ReconcileRequest_OperationId{OperationId: id}, CommandId: id,
					Evidence: &pb.Evidence{Finding: &pb.Evidence_Found{Found: &pb.Found{}}},
				})
				return err
			},
			map[string]string{"evidence.found.result.resource": "must have an id or a uri"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			s := refused(t, test.call(), codes.InvalidArgument, "VALIDATION")
			if diff := cmp.Diff(test.want, violations(s)); diff != "" {
				t.Error(diff)
			}
			if strings.Contains(s.Proto().String(), "canary") {
				t.Error("the answer repeats a value")
			}
		})
	}
}

// rawRequest sends these bytes for any message.
type rawRequest struct {
	encoding.CodecV2
	bytes []byte
}

func (r rawRequest) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(r.bytes)}, nil
}

func TestRequestThatIsNoMessageIsTheCallersFault(t *testing.T) {
	w := newWorld(t, setup{})
	for title, b := range map[string][]byte{
		"a text that is no UTF-8": append([]byte{0x0a, 8}, "canary\xff\xfe"...), // the operation_id
		"cut off":                 {0x0a, 8, 'c'},
		"no tag":                  {0xff},
	} {
		_, err := w.client.Start(as(t, "agent-a"), &pb.StartRequest{}, grpc.ForceCodecV2(rawRequest{encoding.GetCodecV2("proto"), b}))
		s := refused(t, err, codes.InvalidArgument, "VALIDATION")
		if violations(s)["request"] == "" || strings.Contains(s.Proto().String(), "canary") {
			t.Errorf("%s: %v", title, s)
		}
	}
}

func TestKeysOfTheSharedTable(t *testing.T) {
	w := newWorld(t, setup{})
	eachLine(t, "testdata/keys.jsonl", func(t *testing.T, line struct {
		ID, Key, Reason string
		KeyB64          []byte `json:"key_b64"`
		Valid           bool
	},
	) {
		t.Run(line.ID, func(t *testing.T) {
			key := line.Key
			if line.KeyB64 != nil {
				key = string(line.KeyB64)
			}
			_, err := w.client.Claim(as(t, "agent-a"), w.claim(key))
			if line.Valid && err != nil {
				t.Errorf("%s: %v", line.Reason, err)
			}
			if !line.Valid {
				refused(t, err, codes.InvalidArgument, "VALIDATION")
			}
		})
	})
}

func TestRequestsOfTheSharedTableAreRefused(t *testing.T) {
	w := newWorld(t, setup{})
	eachLine(t, "testdata/reject.jsonl", func(t *testing.T, line struct {
		ID, Raw, Reason string
		RawB64          []byte `json:"raw_b64"`
	},
	) {
		t.Run(line.ID, func(t *testing.T) {
			req := w.claim("key-1")
			req.RequestJson = []byte(line.Raw)
			if line.RawB64 != nil {
				req.RequestJson = line.RawB64
			}
			_, err := w.client.Claim(as(t, "agent-a"), req)
			if fields := violations(refused(t, err, codes.InvalidArgument, "VALIDATION")); len(fields) != 1 || fields["request_json"] == "" {
				t.Errorf("%s: %v", line.Reason, fields)
			}
		})
	})
}

func eachLine[T any](t *testing.T, file string, test func(*testing.T, T)) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	n := 0
	for lines.Scan() {
		var line T
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		test(t, line)
		n++
	}
	if n == 0 {
		t.Fatalf("%s is empty", file)
	}
}

func TestMissingIntentTimeIsTooOld(t *testing.T) {
	optional := declared("charge")
	optional.RequireIntentTime = false
	w := newWorld(t, setup{contracts: contracts{"charge": optional}})
	req := w.claim("key-1")
	req.IntentTime = nil
	_, err := w.client.Claim(as(t, "agent-a"), req)
	refused(t, err, codes.FailedPrecondition, "KEY_TOO_OLD")
	req.Key.Tool = "charge"
	w.granted(t, "agent-a", req)
}
