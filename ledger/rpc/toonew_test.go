// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// opened makes a file with the schema, and lets a test write behind the store's back.
func opened(t *testing.T) (store ledger.Store, alter func(set string, id string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger.db")
	s, err := sqlite.Open(t.Context(), path, sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(db.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, func(set, id string) {
		t.Helper()
		key, err := uuid.Parse(id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.ExecContext(t.Context(), "UPDATE operations SET "+set+" WHERE id = ?", key[:]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordOfANewerReleaseIsToldToItsOwnOnly(t *testing.T) {
	store, alter := opened(t)
	w := newWorld(t, setup{store: store})
	mine, forUser := w.claim("key-1"), w.claim("key-1")
	forUser.Key.Subject = "canary-user"
	theirs := w.granted(t, "agent-a", mine)
	subjects := w.granted(t, "serves-users", forUser).GetOperationId()
	readable := w.granted(t, "agent-a", w.claim("key-2")).GetOperationId()
	alter("record_version = 2", theirs.GetOperationId())
	alter("record_version = 2", subjects)

	same := func(t *testing.T, what string, got, want error) {
		t.Helper()
		if !bytes.Equal(wire(t, got), wire(t, want)) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for name, call := range w.callsAbout() {
		t.Run(name, func(t *testing.T) {
			none := call(as(t, "agent-b"), absent, uuid.NewString())
			refused(t, none, codes.NotFound, "OPERATION_NOT_FOUND")
			same(t, "of another scope", call(as(t, "agent-b"), theirs.GetOperationId(), uuid.NewString()), none)
			same(t, "of another scope, with its proof", call(as(t, "agent-b"), theirs.GetOperationId(), mine.GetClaimId()), none)
			same(t, "of a subject that is not named", call(as(t, "serves-users"), subjects, uuid.NewString()), none)
			refused(t, call(as(t, "agent-a"), theirs.GetOperationId(), mine.GetClaimId()), codes.FailedPrecondition, "RECORD_TOO_NEW")
			if name != "lookup" && name != "cancel" { // those want the subject's name, not a proof
				refused(t, call(as(t, "serves-users"), subjects, forUser.GetClaimId()), codes.FailedPrecondition, "RECORD_TOO_NEW")
			}
		})
	}
	t.Run("lookup with the subject", func(t *testing.T) {
		_, err := w.client.Lookup(as(t, "serves-users"), &pb.LookupRequest{
			Selector: &pb.LookupRequest_OperationId{OperationId: subjects}, Subject: "canary-user",
		})
		refused(t, err, codes.FailedPrecondition, "RECORD_TOO_NEW")
	})
	t.Run("reconcilers of other tools", func(t *testing.T) {
		for _, call := range []func(ctx context.Context, id string) error{
			func(ctx context.Context, id string) error {
				_, err := w.client.BeginCheck(ctx, &pb.BeginCheckRequest{OperationId: id, CommandId: uuid.NewString()})
				return err
			},
			func(ctx context.Context, id string) error {
				_, err := w.client.Reconcile(ctx, &pb.ReconcileRequest{
					Selector: &pb.ReconcileRequest_OperationId{OperationId: id}, CommandId: uuid.NewString(),
					Evidence: &pb.Evidence{Finding: &pb.Evidence_NotFound{NotFound: &pb.NotFound{}}},
				})
				return err
			},
		} {
			same(t, "another's", call(as(t, "other-checker"), theirs.GetOperationId()), call(as(t, "other-checker"), absent))
			refused(t, call(as(t, "checker"), theirs.GetOperationId()), codes.FailedPrecondition, "RECORD_TOO_NEW")
		}
	})
	t.Run("dependencies", func(t *testing.T) {
		claim := func(p string, ids ...string) error {
			req := w.claim("key-3")
			req.DependsOn = ids
			_, err := w.client.Claim(as(t, p), req)
			return err
		}
		none := claim("agent-b", absent)
		refused(t, none, codes.InvalidArgument, "VALIDATION")
		same(t, "of another scope", claim("agent-b", theirs.GetOperationId()), none)
		refused(t, claim("agent-a", theirs.GetOperationId()), codes.FailedPrecondition, "RECORD_TOO_NEW")
		same(t, "one's own beside another's", claim("agent-a", theirs.GetOperationId(), subjects), claim("agent-a", theirs.GetOperationId(), absent))
	})
	t.Run("listing", func(t *testing.T) {
		list, err := w.client.ListOperations(as(t, "agent-a"), &pb.ListOperationsRequest{})
		if err != nil || len(list.GetOperations()) != 2 {
			t.Fatal(list, err)
		}
		bare, whole := list.GetOperations()[0], list.GetOperations()[1]
		if bare.GetId() != theirs.GetOperationId() || bare.GetState() != pb.State_STATE_UNSPECIFIED || bare.GetTool() != "tickets.create" ||
			bare.GetCreateTime() == nil || bare.GetTargetSummary() != "" || bare.GetFingerprintPrefix() == "" {
			t.Errorf("the record of a newer release: %v", bare)
		}
		if whole.GetId() != readable || whole.GetState() != pb.State_STATE_PROCESSING {
			t.Errorf("the other: %v", whole)
		}
		if strings.Contains(list.String(), "canary-user") {
			t.Error("the listing names a subject")
		}
	})
}

// TestStartSeesSiblingsUnderAnotherSecret: instances that roll to a new secret digest one subject in two ways.
func TestStartSeesSiblingsUnderAnotherSecret(t *testing.T) {
	for name, ids := range map[string][]string{"before": {"k1", "k2"}, "after": {"k2", "k1"}} {
		t.Run(name, func(t *testing.T) {
			store, _ := opened(t)
			one := newWorld(t, setup{store: store, ring: newRing(t, "k1", "k2")})
			two := newWorld(t, setup{store: store, ring: newRing(t, ids...)})
			reserved, repeated := one.claim("key-1"), two.claim("key-2")
			reserved.Key.Subject, reserved.Reserve, reserved.Lease = "u", true, durationpb.New(30*time.Second)
			repeated.Key.Subject = "u"
			reservation := one.granted(t, "serves-users", reserved)
			sent := two.granted(t, "serves-users", repeated)
			if _, err := two.client.MarkUnknown(as(t, "serves-users"), &pb.MarkUnknownRequest{
				OperationId: sent.GetOperationId(), ClaimId: repeated.GetClaimId(),
			}); err != nil {
				t.Fatal(err)
			}
			_, err := two.client.Start(as(t, "serves-users"), &pb.StartRequest{
				OperationId: reservation.GetOperationId(), ClaimId: reserved.GetClaimId(),
			})
			refused(t, err, codes.FailedPrecondition, "BLOCKED")
		})
	}
}
