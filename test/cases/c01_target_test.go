// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// double is the service on the other side: real requests, real effects, and an account of them that only the judge reads.
type double struct {
	*target.Server
	target.Client
}

// startTarget runs a service for one test; the knobs are of one of its services.
func startTarget(t testing.TB, service target.Service, knobs ...target.Knob) double {
	t.Helper()
	server, err := target.Start(t.Context(), target.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	if err := server.SetKnobs(service, knobs...); err != nil {
		t.Fatal(err)
	}
	return double{server, target.Client{BaseURL: server.URL()}}
}

// account is what the service has written down so far.
func (d double) account(t testing.TB) target.Log {
	t.Helper()
	log, err := target.ReadLog(d.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	return log
}

// wantAccount fails unless the service has counted so many effects and requests for one under the key.
func (d double) wantAccount(t testing.TB, service target.Service, key string, effects, sends int) {
	t.Helper()
	log := d.account(t)
	if e, s := log.Effects(service, key), log.Sends(service, key); e != effects || s != sends {
		t.Errorf("the target has %d effects of %d requests, want %d of %d", e, s, effects, sends)
	}
}

// view is an operation of the worker's scope as it stands.
func (w *worker) view(t testing.TB, operation string) *pb.Operation {
	t.Helper()
	answer, err := w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: operation}})
	if err != nil {
		t.Fatalf("Lookup: %v", err)
	}
	return answer.GetOperation()
}

// wantState fails unless an operation stands so; reason is that of an operation that people have to look at.
func wantState(t testing.TB, op *pb.Operation, state pb.State, custody pb.Custody, reason pb.QueueReason) {
	t.Helper()
	if op.GetState() != state || op.GetCustody() != custody || op.GetQueueReason() != reason {
		t.Errorf("the operation is %v, %v, %v; want %v, %v, %v", op.GetState(), op.GetCustody(), op.GetQueueReason(), state, custody, reason)
	}
}

// beginCheck takes an operation for a check, which must be due.
func (w *worker) beginCheck(t testing.TB, operation string) *pb.BeginCheckResponse {
	t.Helper()
	check, err := w.BeginCheck(within(t), &pb.BeginCheckRequest{OperationId: operation, CommandId: uuid.NewString()})
	if err != nil {
		t.Fatalf("BeginCheck: %v", err)
	}
	if check.GetCheckNumber() == 0 {
		t.Fatalf("the check was not taken: %v", check)
	}
	return check
}

// reconcile answers a check.
func (w *worker) reconcile(t testing.TB, operation string, check uint64, evidence *pb.Evidence) *pb.ReconcileResponse {
	t.Helper()
	answer, err := w.Reconcile(within(t), finding(operation, check, evidence))
	if err != nil {
		t.Fatalf("Reconcile: %v", err)
	}
	return answer
}

func finding(operation string, check uint64, evidence *pb.Evidence) *pb.ReconcileRequest {
	return &pb.ReconcileRequest{
		Selector: &pb.ReconcileRequest_OperationId{OperationId: operation}, CommandId: uuid.NewString(), CheckNumber: check, Evidence: evidence,
	}
}

// found is evidence of a resource with the fields that the target shows.
func found(kind, id, observed string, created time.Time) *pb.Evidence {
	return &pb.Evidence{Source: "status query", Finding: &pb.Evidence_Found{Found: &pb.Found{
		Result: result(kind, id), ObservedJson: []byte(observed), CreateTime: timestamppb.New(created),
	}}}
}
