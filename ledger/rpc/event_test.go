// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"maps"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// exported is an event as the contract's message, as an auditor gets it.
func exported(e *ledger.Event) *pb.Event {
	m := &pb.Event{
		OperationId: e.OperationID.String(), Sequence: e.Sequence, Version: e.Version, Epoch: e.Epoch, CommandId: e.CommandID,
		Time: timestamppb.New(e.Time), ActorKind: pb.ActorKind(e.ActorKind), Actor: string(e.Actor), Kind: pb.EventKind(e.Kind),
		FromState: pb.State(e.FromState), ToState: pb.State(e.ToState), Facts: maps.Clone(e.Facts), Note: e.Note, ContractVersion: e.ContractVersion,
	}
	if m.Facts == nil {
		m.Facts = map[string]string{}
	}
	if e.Command != "" {
		m.Facts["command"] = string(e.Command)
	}
	if e.CommandDigest != "" {
		m.Facts["content"] = e.CommandDigest
	}
	if e.PrevHash != ([32]byte{}) {
		m.PrevHash = e.PrevHash[:]
	}
	return m
}

// TestHashedFormOfAnEventIsItsExport: an auditor recomputes the chain from an export alone, with RFC 8785 and SHA-256.
func TestHashedFormOfAnEventIsItsExport(t *testing.T) {
	w := newWorld(t, setup{contracts: contracts{"charge": declared("charge")}})
	req := w.claim("key-1")
	req.Key.Tool, req.Reserve = "charge", true
	grant := w.granted(t, "agent-a", req)
	if _, err := w.client.Start(as(t, "agent-a"), &pb.StartRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.MarkUnknown(as(t, "agent-a"), &pb.MarkUnknownRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()}); err != nil {
		t.Fatal(err)
	}
	done := succeeded(grant, req.GetClaimId())
	done.GetSucceeded().Resource = &pb.ResourceRef{Type: "charge", Id: "ch_ä\u2028\U0001F600\"\\<>&\x7f\x01\b"}
	if _, err := w.client.Complete(as(t, "agent-a"), done); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, uuid.NewString())); err != nil {
		t.Fatal(err)
	}
	id, err := ledger.ParseOperationID(grant.GetOperationId())
	if err != nil {
		t.Fatal(err)
	}
	events, err := w.ledger.Events(t.Context(), id)
	if err != nil || len(events) < 5 {
		t.Fatal(len(events), err)
	}
	for i := range events {
		e := &events[i]
		text, err := protojson.Marshal(exported(e))
		if err != nil {
			t.Fatal(err)
		}
		canonical := jsontext.Value(text)
		if err := canonical.Canonicalize(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(canonical), string(e.Body())); diff != "" {
			t.Errorf("event %d: %s", e.Sequence, diff)
		}
	}
	if err := ledger.VerifyChain(events, events[len(events)-1].Hash); err != nil {
		t.Error(err)
	}
}
