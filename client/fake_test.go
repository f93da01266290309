// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const operationID = "5f3c9a1e-0000-8000-8000-000000000001"

// fakeLedger answers as it is told, and keeps what it was asked.
type fakeLedger struct {
	opsledgerv1.UnimplementedLedgerServiceServer

	mu           sync.Mutex
	claims       []*opsledgerv1.ClaimRequest
	completes    []*opsledgerv1.CompleteRequest
	markUnknowns []*opsledgerv1.MarkUnknownRequest

	claim    func(context.Context, *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error)
	complete func(*opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error)
	lookup   func(*opsledgerv1.LookupRequest) (*opsledgerv1.LookupResponse, error)
	renew    func(*opsledgerv1.RenewRequest) (*opsledgerv1.RenewResponse, error)
	mark     func(*opsledgerv1.MarkUnknownRequest) (*opsledgerv1.MarkUnknownResponse, error)
}

func (f *fakeLedger) Claim(ctx context.Context, r *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, error) {
	f.mu.Lock()
	f.claims = append(f.claims, r)
	f.mu.Unlock()
	if f.claim != nil {
		return f.claim(ctx, r)
	}
	return granted(time.Minute), nil
}

func (f *fakeLedger) Complete(_ context.Context, r *opsledgerv1.CompleteRequest) (*opsledgerv1.CompleteResponse, error) {
	f.mu.Lock()
	f.completes = append(f.completes, r)
	f.mu.Unlock()
	if f.complete != nil {
		return f.complete(r)
	}
	state := opsledgerv1.State_STATE_COMPLETED
	switch {
	case r.GetRejected() != nil:
		state = opsledgerv1.State_STATE_FAILED
	case r.GetNotExecuted() != nil:
		state = opsledgerv1.State_STATE_RECEIVED
	}
	return completed(state, opsledgerv1.Disposition_DISPOSITION_APPLIED), nil
}

func (f *fakeLedger) MarkUnknown(_ context.Context, r *opsledgerv1.MarkUnknownRequest) (*opsledgerv1.MarkUnknownResponse, error) {
	f.mu.Lock()
	f.markUnknowns = append(f.markUnknowns, r)
	f.mu.Unlock()
	if f.mark != nil {
		return f.mark(r)
	}
	return &opsledgerv1.MarkUnknownResponse{
		Operation:   operation(opsledgerv1.State_STATE_UNKNOWN),
		Disposition: opsledgerv1.Disposition_DISPOSITION_APPLIED,
		NextAction:  opsledgerv1.NextAction_NEXT_ACTION_WAIT,
	}, nil
}

func (f *fakeLedger) Lookup(_ context.Context, r *opsledgerv1.LookupRequest) (*opsledgerv1.LookupResponse, error) {
	return f.lookup(r)
}

func (f *fakeLedger) Renew(_ context.Context, r *opsledgerv1.RenewRequest) (*opsledgerv1.RenewResponse, error) {
	if f.renew == nil {
		return &opsledgerv1.RenewResponse{Lease: durationpb.New(time.Minute)}, nil
	}
	return f.renew(r)
}

func operation(s opsledgerv1.State) *opsledgerv1.Operation {
	return &opsledgerv1.Operation{Id: operationID, State: s}
}

func granted(sendWithin time.Duration) *opsledgerv1.ClaimResponse {
	return &opsledgerv1.ClaimResponse{
		Operation: operation(opsledgerv1.State_STATE_PROCESSING),
		Outcome: &opsledgerv1.ClaimResponse_Granted{Granted: &opsledgerv1.Grant{
			OperationId: operationID, Epoch: 7, DownstreamKey: "00112233445566778899aabbccddeeff",
			Lease: durationpb.New(sendWithin), SendWithin: durationpb.New(sendWithin),
		}},
		NextAction: opsledgerv1.NextAction_NEXT_ACTION_EXECUTE,
	}
}

func completed(s opsledgerv1.State, d opsledgerv1.Disposition) *opsledgerv1.CompleteResponse {
	return &opsledgerv1.CompleteResponse{Operation: operation(s), Disposition: d}
}

// refusal is a status with details, as the ledger makes it.
func refusal(t *testing.T, code codes.Code, details ...protoadapt.MessageV1) error {
	t.Helper()
	s := status.New(code, "a message")
	for _, d := range details {
		with, err := s.WithDetails(d)
		if err != nil {
			t.Fatal(err)
		}
		s = with
	}
	return s.Err()
}

// serve starts the fake and returns a client of it.
func serve(t *testing.T, f *fakeLedger, options ...grpc.ServerOption) *Ledger {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(options...)
	opsledgerv1.RegisterLedgerServiceServer(server, f)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	connection, err := grpc.NewClient("passthrough:///ledger",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultServiceConfig(serviceConfig),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return New(connection, Options{})
}
