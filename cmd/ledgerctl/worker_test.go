// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"testing"

	"github.com/opsledger/opsledger/client"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// TestClassify: only what proves something says so.
func TestClassify(t *testing.T) {
	lost := &target.Error{Class: target.Unknown}
	gateway := &target.Error{Class: target.Answered, Status: 504}
	conflict := &target.Error{Class: target.Answered, Status: 409}
	for _, tt := range []struct {
		name string
		err  error
	}{{"the answer is lost", lost}, {"a gateway's answer", gateway}, {"another request is running", conflict}} {
		if got := classify(tt.err); got != tt.err {
			t.Errorf("%s: classified as %v", tt.name, got)
		}
	}
	if classify(nil) != nil {
		t.Error("success is classified")
	}
	declined := client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "card_declined", "")
	invalid := client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_INVALID, "bad_request", "")
	refused := errors.New("connection refused")
	for _, tt := range []struct {
		name string
		err  *target.Error
		want error
	}{
		{"the card is declined", &target.Error{Class: target.Answered, Status: 402, Code: "card_declined"}, declined},
		{"the request is malformed", &target.Error{Class: target.Answered, Status: 400, Code: "bad_request"}, invalid},
		{"no connection", &target.Error{Class: target.NeverSent, Err: refused}, client.NotSent(&target.Error{Class: target.NeverSent, Err: refused})},
	} {
		if got := classify(tt.err); got.Error() != tt.want.Error() || got == error(tt.err) {
			t.Errorf("%s: classified as %v, want %v", tt.name, got, tt.want)
		}
	}
}
