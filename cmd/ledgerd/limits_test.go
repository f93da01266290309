// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/pgtest"
)

func TestTooMuchIsNamedAndNoReportIsLost(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	h.write(t, "contracts.yaml", "tools: {tickets.create: {effect: unsafe, replay: {schemas: [ticket/1]}}}")
	r := start(t, nil, h.args...)
	client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
	large := strings.Repeat("x", 600<<10)
	req := claim("key-1")
	req.RequestJson = fmt.Appendf(nil, `{"title":%q}`, large)
	_, err := client.Claim(call(t), req)
	var fields []string
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}
	if status.Code(err) != codes.InvalidArgument || len(fields) != 1 || fields[0] != "request_json" {
		t.Errorf("a large request: %v, fields %q", err, fields)
	}
	req = claim("key-1")
	granted, err := client.Claim(call(t), req)
	if err != nil || granted.GetGranted() == nil {
		t.Fatal(granted, err)
	}
	done, err := client.Complete(call(t), &pb.CompleteRequest{
		OperationId: granted.GetGranted().GetOperationId(), ClaimId: req.GetClaimId(), Outcome: &pb.CompleteRequest_Succeeded{Succeeded: &pb.Result{
			Resource: &pb.ResourceRef{Id: "T-1"}, Schema: "ticket/1", Payload: []byte(large),
		}},
	})
	if err != nil || done.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Fatalf("a large payload: %v, %v", done, err)
	}
	replay, err := client.Claim(call(t), claim("key-1"))
	if got := replay.GetCompleted(); err != nil || got.GetPayloadOmitted() != pb.PayloadOmission_PAYLOAD_OMISSION_TOO_LARGE ||
		got.GetResult().GetResource().GetId() != "T-1" || got.GetResult().GetPayload() != nil {
		t.Errorf("its replay: %v, %v", replay, err)
	}
}

func TestADatabaseThatMayLoseWhatWasAnsweredIsRefusedUnlessTold(t *testing.T) {
	h := newHouse(t, stores["postgres"](t)) // the one for tests is fast and unsafe
	args := append(h.args, "--migrations", "apply")
	r := start(t, nil, args...)
	if log, _ := r.log.read(); !strings.Contains(log, "may lose what it has committed") || !strings.Contains(log, "full_page_writes") {
		t.Errorf("the log does not say so:\n%s", log)
	}
	err := run(call(t), append(args, "--store-durability", "required"), nil, io.Discard, io.Discard)
	if exitCode(err) != 1 || !strings.Contains(err.Error(), "fsync, full_page_writes off") || !strings.Contains(err.Error(), "--store-durability=as-it-is") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}

	durable := pgtest.Own(t, pgtest.Options{Durable: true})
	h = newHouse(t, durable.DSN(durable.Database(t)))
	r = start(t, nil, append(h.args, "--migrations", "apply", "--store-durability", "required")...)
	client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
	if granted, err := client.Claim(call(t), claim("key-1")); err != nil || granted.GetGranted() == nil {
		t.Errorf("%v, %v", granted, err)
	}
	if log, _ := r.log.read(); strings.Contains(log, "may lose") {
		t.Errorf("a durable one is suspected:\n%s", log)
	}
}

func TestSpansHoldNoTextsOfErrors(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	traces := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	ctx, span := traces.Tracer("test").Start(t.Context(), "call") // only what belongs to one has spans
	defer span.End()
	for _, dsn := range []string{"host=/nonexistent-canary user=canary dbname=canary", stores["postgres"](t)} {
		store, err := openStore(t.Context(), location{dsn: dsn}, storeOptions{traces: traces})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Ready(ctx); err == nil { // there is no server, or no schema
			t.Error("the store is ready")
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
	failed := 0
	for _, span := range spans.Ended() {
		texts := span.Status().Description + fmt.Sprint(span.Events())
		if strings.Contains(texts, "canary") || strings.Contains(texts, "meta") {
			t.Errorf("%s: %s", span.Name(), texts)
		}
		if span.Status().Description != "" {
			failed++
		}
	}
	if failed < 2 {
		t.Errorf("%d spans have failed, want some of each store", failed)
	}
}

// TestLimitsHaveAnUpperEnd: what is beyond them is refused before it is held in memory.
func TestLimitsHaveAnUpperEnd(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
	req := claim("key-1")
	req.RequestJson = fmt.Appendf(nil, `{"title":%q}`, strings.Repeat("x", 2<<20))
	if _, err := client.Claim(call(t), req); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of 2 MiB: %v", err)
	}
	heavy := metadata.AppendToOutgoingContext(call(t), "x-heavy", strings.Repeat("x", 64<<10))
	if _, err := client.Claim(heavy, claim("key-1")); err == nil {
		t.Error("64 KiB of headers are taken")
	}
	if _, err := client.Claim(call(t), claim("key-1")); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}
