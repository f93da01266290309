// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

func TestTooLittleTimeRefusesAllButReports(t *testing.T) {
	guard := deadline(slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(t.Context(), leastLeft/2)
	defer cancel()
	for method, taken := range map[string]bool{
		pb.LedgerService_Claim_FullMethodName: false, pb.LedgerService_Lookup_FullMethodName: false,
		pb.LedgerService_Complete_FullMethodName: true, pb.LedgerService_MarkUnknown_FullMethodName: true, pb.LedgerService_Renew_FullMethodName: true,
	} {
		called := false
		_, err := guard(ctx, &pb.StartRequest{}, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) {
			called = true
			return nil, nil
		})
		if called != taken || (err == nil) != taken {
			t.Errorf("%s: called %t, %v", method, called, err)
		}
		if err != nil && reasonOf(err) != "STORE_UNAVAILABLE" {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestTextsAreCutAtTheBorderOfACharacter(t *testing.T) {
	for _, test := range []struct {
		given string
		most  int
		want  string
	}{
		{"short", 5, "short"}, {"longer", 4, "long"}, {"ää", 3, "ä"}, {"ä", 1, ""}, {"a\xffb", 10, "a\uFFFDb"}, {"", 0, ""},
	} {
		if got := cut(test.given, test.most); got != test.want {
			t.Errorf("%q cut to %d: %q, want %q", test.given, test.most, got, test.want)
		}
	}
}

// TestOutcomesThatNothingServedLeadsToYet: nothing that is served yet leads there.
func TestOutcomesThatNothingServedLeadsToYet(t *testing.T) {
	contract := ledger.DefaultContract("mail.send")
	op := &ledger.Operation{
		ID: ledger.KeyHash{1}.OperationID(), Tool: "mail.send", State: ledger.Received, Custody: ledger.Automation,
		Detail: ledger.Detail{Approval: &ledger.Approval{Kind: ledger.ApproveCorrection}},
	}
	st := ledger.Stand(op, contract, time.Now())
	m := encodeOperation(op, st, true)
	if st.Outcome != ledger.OutcomeAwaitingApproval || m.GetWaitingFor() != pb.WaitReason_WAIT_REASON_APPROVAL_PENDING || m.GetClaimableTime() != nil {
		t.Errorf("%v", m)
	}
	grant := encodeGrant(op, &ledger.Granted{Precondition: &ledger.ResourceRef{ID: "r", Version: "7"}})
	if grant.GetPrecondition().GetVersion() != "7" {
		t.Errorf("%v", grant)
	}
	if name := strings.Repeat("x", maxTool); !isTool(name) || isTool(name+"x") {
		t.Error("the longest tool's name")
	}
}
