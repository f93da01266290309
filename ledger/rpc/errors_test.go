// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// declaredErrors are the exported errors of package ledger, from its source: a list beside it could forget one.
func declaredErrors(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range file.Decls {
		if group, ok := decl.(*ast.GenDecl); ok && group.Tok == token.VAR {
			for _, spec := range group.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if strings.HasPrefix(name.Name, "Err") {
						names = append(names, name.Name)
					}
				}
			}
		}
	}
	return names
}

// mappedErrors are the errors that the table of refusals names, in its order.
func mappedErrors(t *testing.T) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.VAR || group.Specs[0].(*ast.ValueSpec).Names[0].Name != "refusals" {
			continue
		}
		for _, row := range group.Specs[0].(*ast.ValueSpec).Values[0].(*ast.CompositeLit).Elts {
			names = append(names, row.(*ast.CompositeLit).Elts[0].(*ast.SelectorExpr).Sel.Name)
		}
	}
	return names
}

func TestEveryErrorOfTheCoreHasExactlyOneReason(t *testing.T) {
	declared, mapped := declaredErrors(t), mappedErrors(t)
	if len(declared) < 30 {
		t.Fatalf("the source of the errors was not understood: %v", declared)
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(declared)), slices.Sorted(slices.Values(mapped))); diff != "" {
		t.Errorf("declared, and in the table of refusals: %s", diff)
	}
	if len(mapped) != len(refusals) {
		t.Errorf("%d rows in the source, %d in the table", len(mapped), len(refusals))
	}
}

func TestEveryReasonOfTheContractIsGiven(t *testing.T) {
	given := map[pb.ErrorReason]int{}
	for _, row := range refusals {
		given[row.reason]++
	}
	for n, name := range pb.ErrorReason_name {
		want := 1
		if n == 0 {
			want = 0
		}
		if got := given[pb.ErrorReason(n)]; got != want {
			t.Errorf("%s is given %d times, want %d", name, got, want)
		}
	}
}

// TestCodesAreThoseOfTheContract compares with the first word of each reason's comment in the contract.
func TestCodesAreThoseOfTheContract(t *testing.T) {
	for _, row := range refusals {
		comment := map[codes.Code]string{
			codes.InvalidArgument: "INVALID_ARGUMENT", codes.FailedPrecondition: "FAILED_PRECONDITION", codes.Aborted: "ABORTED",
			codes.PermissionDenied: "PERMISSION_DENIED", codes.NotFound: "NOT_FOUND", codes.Unauthenticated: "UNAUTHENTICATED",
			codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.Unavailable: "UNAVAILABLE",
		}[row.code]
		if got := contractCodes[row.reason]; got != comment {
			t.Errorf("%v is %q, the contract says %q", row.reason, comment, got)
		}
	}
}

// contractCodes were written from the contract's comments, not from the table.
var contractCodes = func() map[pb.ErrorReason]string {
	m := map[pb.ErrorReason]string{}
	for code, reasons := range map[string][]pb.ErrorReason{
		"INVALID_ARGUMENT":    {1, 27},
		"FAILED_PRECONDITION": {2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 28, 29, 30, 31, 16, 17},
		"ABORTED":             {7, 26, 8},
		"PERMISSION_DENIED":   {18, 19, 20},
		"NOT_FOUND":           {21},
		"UNAUTHENTICATED":     {22},
		"RESOURCE_EXHAUSTED":  {23},
		"UNAVAILABLE":         {24, 25},
	} {
		for _, r := range reasons {
			m[r] = code
		}
	}
	return m
}()

func TestRefusalsCarryTheirDetails(t *testing.T) {
	id := ledger.KeyHash{1}.OperationID()
	op := &ledger.Operation{ID: id, State: ledger.Completed, Result: &ledger.Result{Resource: ledger.ResourceRef{ID: "T-1"}}}
	details := func(err error, show bool) []any {
		return status.Convert(fail(t.Context(), slog.New(slog.DiscardHandler), err, show)).Details()
	}
	find := func(details []any, want any) any {
		for _, d := range details {
			if fmt.Sprintf("%T", d) == fmt.Sprintf("%T", want) {
				return d
			}
		}
		return want
	}
	t.Run("a refusal that is wrapped", func(t *testing.T) {
		err := fail(t.Context(), slog.New(slog.DiscardHandler), fmt.Errorf("around: %w", &ledger.Refusal{Err: ledger.ErrTooEarly, RetryAfter: 90 * time.Second}), false)
		retry := find(status.Convert(err).Details(), &errdetails.RetryInfo{}).(*errdetails.RetryInfo)
		if status.Code(err) != codes.FailedPrecondition || retry.GetRetryDelay().AsDuration() != 90*time.Second {
			t.Error(err)
		}
	})
	t.Run("blocked says why and when to try again", func(t *testing.T) {
		got := details(&ledger.Refusal{Err: ledger.ErrBlocked, Reason: ledger.SiblingUnknown, Other: []ledger.OperationID{id}}, false)
		info := find(got, &errdetails.ErrorInfo{}).(*errdetails.ErrorInfo)
		want := map[string]string{"waiting_for": "SIBLING_UNKNOWN", "operation_ids": id.String()}
		if diff := cmp.Diff(want, info.GetMetadata()); diff != "" {
			t.Error(diff)
		}
		if find(got, &errdetails.RetryInfo{}).(*errdetails.RetryInfo).GetRetryDelay().AsDuration() != time.Second {
			t.Error("no time to wait")
		}
	})
	t.Run("conflict with and without its resource", func(t *testing.T) {
		conflict := &ledger.Refusal{Err: ledger.ErrFingerprintConflict, Operation: op, Categories: []string{"amount"}}
		shown := find(details(conflict, true), &pb.FingerprintConflict{}).(*pb.FingerprintConflict)
		if shown.GetResource().GetId() != "T-1" || shown.GetState() != pb.State_STATE_COMPLETED || shown.GetCategories()[0] != "amount" {
			t.Errorf("shown: %v", shown)
		}
		if hidden := find(details(conflict, false), &pb.FingerprintConflict{}).(*pb.FingerprintConflict); hidden.GetResource() != nil || hidden.GetOperationId() == "" {
			t.Errorf("hidden: %v", hidden)
		}
	})
	for _, err := range []error{context.Canceled, fmt.Errorf("x: %w", context.DeadlineExceeded), failpoint.ErrInjected, ledger.ErrStoreUnavailable} {
		t.Run("may be sent again: "+err.Error(), func(t *testing.T) {
			got := fail(t.Context(), slog.New(slog.DiscardHandler), err, false)
			if status.Code(got) != codes.Unavailable || reasonOf(got) != "STORE_UNAVAILABLE" {
				t.Error(got)
			}
		})
	}
}

func TestUnexpectedErrorsShowAnIDAndNothingElse(t *testing.T) {
	var log bytes.Buffer
	err := fail(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), fmt.Errorf("outer canary: %w", errors.New("inner canary")), false)
	s := status.Convert(err)
	info := s.Details()[0].(*errdetails.ErrorInfo)
	if s.Code() != codes.Internal || s.Message() != "internal error" || info.GetReason() != "UNSPECIFIED" {
		t.Error(s)
	}
	if id := info.GetMetadata()["error_id"]; id == "" || !strings.Contains(log.String(), id) {
		t.Errorf("id %q is not in the log: %s", id, log.String())
	}
	if strings.Contains(log.String()+s.String(), "canary") {
		t.Error("the error's text is shown")
	}
}

// TestEnumerationsAreThoseOfTheContract: they are converted by number.
func TestEnumerationsAreThoseOfTheContract(t *testing.T) {
	for _, test := range []struct {
		enum protoreflect.Enum
		name func(n uint8) string
	}{
		{pb.State(0), func(n uint8) string { return ledger.State(n).String() }},
		{pb.Custody(0), func(n uint8) string { return ledger.Custody(n).String() }},
		{pb.Effect(0), func(n uint8) string { return ledger.Effect(n).String() }},
		{pb.QueueReason(0), func(n uint8) string { return ledger.QueueReason(n).String() }},
		{pb.WaitReason(0), func(n uint8) string { return ledger.WaitReason(n).String() }},
		{pb.FailureKind(0), func(n uint8) string { return ledger.FailureKind(n).String() }},
		{pb.NotExecutedKind(0), func(n uint8) string { return ledger.NotExecutedKind(n).String() }},
		{pb.UnknownCause(0), func(n uint8) string { return ledger.UnknownCause(n).String() }},
		{pb.Finding(0), func(n uint8) string { return ledger.Finding(n).String() }},
		{pb.IndeterminateCause(0), func(n uint8) string { return ledger.IndeterminateCause(n).String() }},
		{pb.Disposition(0), func(n uint8) string { return ledger.Disposition(n).String() }},
		{pb.NextAction(0), func(n uint8) string { return ledger.NextAction(n).String() }},
		{pb.ActorKind(0), func(n uint8) string { return ledger.ActorKind(n).String() }},
		{pb.EventKind(0), func(n uint8) string { return ledger.EventKind(n).String() }},
	} {
		values := test.enum.Descriptor().Values()
		prefix := strings.TrimSuffix(string(values.ByNumber(0).Name()), "UNSPECIFIED")
		for n := 1; n < values.Len(); n++ {
			if want, got := string(values.ByNumber(protoreflect.EnumNumber(n)).Name()), prefix+test.name(uint8(n)); got != want {
				t.Errorf("%d is %s in the contract, %s in the core", n, want, got)
			}
		}
		if extra := test.name(uint8(values.Len())); !strings.Contains(extra, "(") {
			t.Errorf("the core has %s%s, the contract has not", prefix, extra)
		}
	}
}
