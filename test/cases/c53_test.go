// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// refused is all that a caller gets of a refused call.
type refused struct {
	Status          string // the status with its details, byte for byte
	Header, Trailer metadata.MD
}

// refusalOf sends a call that must be refused with the code.
func refusalOf(t *testing.T, code codes.Code, call func(context.Context, ...grpc.CallOption) error) refused {
	t.Helper()
	var r refused
	err := call(within(t), grpc.Header(&r.Header), grpc.Trailer(&r.Trailer))
	if status.Code(err) != code {
		t.Errorf("refused with %v, want %v", err, code)
	}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(status.Convert(err).Proto())
	if err != nil {
		t.Fatal(err)
	}
	r.Status = hex.EncodeToString(bytes)
	return r
}

// Keys belong to who made them: for others they do not exist, and nothing tells a used one from a new one.
func TestC53(t *testing.T) {
	each(t, func(t *testing.T, e *env) {
		p1, p2 := e.node.dial(t, billing), e.node.dial(t, support)
		task := unique(t)
		claim := func(key, body string) *pb.ClaimRequest { return request("card.charge", task, key, body) }
		own := map[string]*pb.ClaimRequest{}
		var id string
		for _, key := range []string{"order-1", "order-2"} {
			own[key] = claim(key, storedBody)
			operation := p1.grant(t, own[key]).GetOperationId()
			p1.applied(t, completion(operation, own[key].GetClaimId(), "charge", "C-"+key))
			if key == "order-1" {
				id = operation
			}
		}
		claimID := own["order-1"].GetClaimId()
		was := e.snapshot(t, id)

		t.Run("lookup by key is that of a key never used", func(t *testing.T) {
			ask := func(key string) refused {
				return refusalOf(t, codes.NotFound, func(ctx context.Context, o ...grpc.CallOption) error {
					_, err := p2.Lookup(ctx, &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: claim(key, "").GetKey()}}, o...)
					return err
				})
			}
			if diff := cmp.Diff(ask("order-9"), ask("order-1")); diff != "" {
				t.Errorf("the key of another principal is told apart (-never used +used):\n%s", diff)
			}
		})

		// What P2 knows is the operation's id, and even the claim_id.
		byID := []struct {
			name string
			code codes.Code
			call func(ctx context.Context, operation string, o ...grpc.CallOption) error
		}{
			{"Lookup", codes.NotFound, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.Lookup(ctx, &pb.LookupRequest{Selector: &pb.LookupRequest_OperationId{OperationId: operation}}, o...)
				return err
			}},
			{"Complete", codes.NotFound, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.Complete(ctx, completion(operation, claimID, "charge", "C-9"), o...)
				return err
			}},
			{"MarkUnknown", codes.NotFound, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.MarkUnknown(ctx, &pb.MarkUnknownRequest{OperationId: operation, ClaimId: claimID}, o...)
				return err
			}},
			{"Start", codes.NotFound, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.Start(ctx, &pb.StartRequest{OperationId: operation, ClaimId: claimID}, o...)
				return err
			}},
			{"Renew", codes.NotFound, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.Renew(ctx, &pb.RenewRequest{OperationId: operation, ClaimId: claimID}, o...)
				return err
			}},
			{"Cancel", codes.NotFound, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.Cancel(ctx, &pb.CancelRequest{OperationId: operation, ClaimId: claimID}, o...)
				return err
			}},
			{"BeginCheck", codes.PermissionDenied, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.BeginCheck(ctx, &pb.BeginCheckRequest{OperationId: operation, CommandId: uuid.NewString()}, o...)
				return err
			}},
			{"Reconcile", codes.PermissionDenied, func(ctx context.Context, operation string, o ...grpc.CallOption) error {
				_, err := p2.Reconcile(ctx, &pb.ReconcileRequest{
					Selector: &pb.ReconcileRequest_OperationId{OperationId: operation}, CommandId: uuid.NewString(),
					Evidence: &pb.Evidence{Source: "test", Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}},
				}, o...)
				return err
			}},
		}
		random := operationID(billing, "card.charge", task, "never used")
		for _, c := range byID {
			t.Run(c.name+" by id is that of a random id", func(t *testing.T) {
				ask := func(operation string) refused {
					return refusalOf(t, c.code, func(ctx context.Context, o ...grpc.CallOption) error { return c.call(ctx, operation, o...) })
				}
				e.storesNothing(t, func() {
					if diff := cmp.Diff(ask(random), ask(id)); diff != "" {
						t.Errorf("the operation of another principal is told apart (-random +existing):\n%s", diff)
					}
				})
				e.wantUnchanged(t, id, was)
			})
		}

		t.Run("the same key and body is its own", func(t *testing.T) {
			r := claim("order-1", storedBody)
			if g := p2.grant(t, r); g.GetOperationId() == id || g.GetDownstreamKey() == was.downstreamKey() {
				t.Errorf("P2 was granted %s", g.GetOperationId())
			}
		})
		t.Run("the same key with another body is its own", func(t *testing.T) { p2.grant(t, claim("order-2", otherBody)) })
		t.Run("a key taken before does not block", func(t *testing.T) {
			p2.grant(t, claim("order-3", otherBody))
			p1.grant(t, claim("order-3", storedBody))
		})
		t.Run("each lists its own", func(t *testing.T) {
			page, err := p2.ListOperations(within(t), &pb.ListOperationsRequest{Task: task})
			if err != nil {
				t.Fatal(err)
			}
			if len(page.GetOperations()) != 3 {
				t.Errorf("P2 lists %d operations, want its three", len(page.GetOperations()))
			}
			for _, op := range page.GetOperations() {
				if op.GetScope() != support {
					t.Errorf("P2 sees an operation of another scope")
				}
			}
		})
		t.Run("P1's own is as it was", func(t *testing.T) {
			wantResource(t, p1, own["order-1"], "C-order-1")
			e.wantUnchanged(t, id, was)
		})
	})
}
