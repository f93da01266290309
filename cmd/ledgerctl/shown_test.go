// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// TestNextCheck: what is due and was not come to is not told as a check that will be.
func TestNextCheck(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]string{
		time.Minute:      "; the next 2026-11-30T12:01:00Z (in 1m00s)",
		-time.Second:     "; the next is due now",
		-5 * time.Minute: "; the next is due since 2026-11-30T11:55:00Z (5m00s ago): its target is left alone (ledgerctl tool list), others wait, or nobody asks",
	} {
		if got := checks(&pb.Operation{NextCheckTime: timestamppb.New(now.Add(after))}, now); !strings.HasSuffix(got, want) {
			t.Errorf("%v: %q, want %q", after, got, want)
		}
	}
}

// TestDenialOfWhatWasFound: who is told how to deny an effect is told the word that it takes, and where nothing was found, none.
func TestDenialOfWhatWasFound(t *testing.T) {
	v := &pb.GetOperationResponse{Operation: &pb.Operation{Id: "61aaa169-a267-8cb1-80a8-5787851e9e63", Version: 4}, ReadTime: timestamppb.New(time.Unix(1000, 0))}
	const word = "--including-found"
	if lines := strings.Join(decisions(v), "\n"); strings.Contains(lines, word) || !strings.Contains(lines, "--not-happened") {
		t.Errorf("nothing was found:\n%s", lines)
	}
	v.Candidates = []*pb.ResourceRef{{Id: "M-7"}}
	if lines := strings.Join(decisions(v), "\n"); !strings.Contains(lines, "--not-happened "+word) {
		t.Errorf("something was found:\n%s", lines)
	}
}

// TestEvidenceIsShown with what it says: all that may be the effect.
func TestEvidenceIsShown(t *testing.T) {
	ids := strings.Repeat("M-0000007,", 31) + "M-8"
	var b strings.Builder
	writeEvents(&b, []*pb.Event{{Facts: map[string]string{"finding": "AMBIGUOUS", "candidates": ids, "cause": "TIMEOUT", "different": "amount", "content": "digest"}}}, "")
	for _, want := range []string{"candidates=" + ids, "cause=TIMEOUT", "different=amount"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing of:\n%s", want, &b)
		}
	}
	if strings.Contains(b.String(), "digest") {
		t.Errorf("what is for the chain is shown:\n%s", &b)
	}
}
