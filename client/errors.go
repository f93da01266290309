// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Error is a call that the ledger refused, or that did not reach it: of [Do] the claim, or the start of a reservation. It unwraps to the
// status; where the code is Canceled or DeadlineExceeded it is also the error of package context.
type Error struct {
	// Reason the ledger gave; unspecified if it gave none, for example because it could not be reached.
	Reason opsledgerv1.ErrorReason
	Code   codes.Code
	// OperationID, State and Categories are those of a conflict (FINGERPRINT_CONFLICT): which kinds of fields differ, "amount". Of a key
	// whose result is forgotten (KEY_RETIRED), State is its outcome: COMPLETED, don't do it again under another key; FAILED, it had no effect;
	// UNKNOWN, it failed, and something spoke against that; unspecified, the key was used for another request.
	OperationID string
	State       opsledgerv1.State
	Categories  []string
	// Fields that were refused, by name, and the rule each breaks (VALIDATION).
	Fields map[string]string
	// Metadata of the reason: for DUPLICATE_INTENT the other operation.
	Metadata map[string]string
	// RetryAfter is when the same call may be sent again; 0: the ledger did not say.
	RetryAfter time.Duration

	call string
	err  error
}

// The calls whose errors are shown.
const (
	callClaim = "claim"
	callStart = "start"
	callTool  = "get tool"
)

const (
	errorDomain  = "opsledger"
	reasonPrefix = "ERROR_REASON_"
	statePrefix  = "STATE_"
)

// refused makes an Error of what a call returned.
func refused(call string, err error) *Error {
	s := status.Convert(err)
	e := &Error{Code: s.Code(), call: call, err: err}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				e.Reason = opsledgerv1.ErrorReason(opsledgerv1.ErrorReason_value[reasonPrefix+d.GetReason()])
				e.Metadata = d.GetMetadata()
			}
			if e.Reason == opsledgerv1.ErrorReason_ERROR_REASON_KEY_RETIRED {
				e.State = opsledgerv1.State(opsledgerv1.State_value[statePrefix+e.Metadata["outcome"]])
			}
		case *errdetails.BadRequest:
			e.Fields = map[string]string{}
			for _, v := range d.GetFieldViolations() {
				e.Fields[v.GetField()] = v.GetDescription()
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		case *opsledgerv1.FingerprintConflict:
			e.OperationID, e.State, e.Categories = d.GetOperationId(), d.GetState(), d.GetCategories()
		}
	}
	return e
}

// reasonGiven is the ledger's reason in what a call returned.
func reasonGiven(err error) opsledgerv1.ErrorReason { return refused("", err).Reason }

// Error names the reason, and of a conflict the categories, of a form the fields with their rules. It holds nothing of the request.
func (e *Error) Error() string {
	reason, what := strings.TrimPrefix(e.Reason.String(), reasonPrefix), "nothing was sent"
	if e.call == callTool {
		what = callTool
	}
	switch {
	case e.Reason == opsledgerv1.ErrorReason_ERROR_REASON_UNSPECIFIED && e.call != callTool:
		return fmt.Sprintf("%s: %s: %v", what, e.call, e.err)
	case e.Reason == opsledgerv1.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return fmt.Sprintf("%s: %v", what, e.err)
	case e.Reason == opsledgerv1.ErrorReason_ERROR_REASON_KEY_RETIRED && e.State == opsledgerv1.State_STATE_COMPLETED:
		return fmt.Sprintf("%s: %s: it completed long ago: don't do it again under another key", what, reason)
	case e.Reason == opsledgerv1.ErrorReason_ERROR_REASON_KEY_RETIRED && e.State == opsledgerv1.State_STATE_FAILED:
		return fmt.Sprintf("%s: %s: it failed long ago, and had no effect", what, reason)
	case len(e.Categories) > 0:
		return fmt.Sprintf("%s: %s: %s", what, reason, strings.Join(e.Categories, ", "))
	case len(e.Fields) > 0:
		var all []string
		for _, field := range slices.Sorted(maps.Keys(e.Fields)) {
			all = append(all, field+" "+e.Fields[field])
		}
		return fmt.Sprintf("%s: %s: %s", what, reason, strings.Join(all, "; "))
	default:
		return fmt.Sprintf("%s: %s: %s", what, reason, status.Convert(e.err).Message())
	}
}

// Unwrap returns the status.
func (e *Error) Unwrap() error { return e.err }

// Is matches context.Canceled and context.DeadlineExceeded by the code: a status of gRPC does not.
func (e *Error) Is(target error) bool {
	return target == context.Canceled && e.Code == codes.Canceled || target == context.DeadlineExceeded && e.Code == codes.DeadlineExceeded
}

// ReasonOf is the ledger's reason for an error of [Do]; unspecified if it gave none.
func ReasonOf(err error) opsledgerv1.ErrorReason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return opsledgerv1.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// NotSent is for Execute: not one byte of the request has left this process, for certain (no connection, a failed handshake,
// given up before). Do returns an error that wraps err, and the intent can be claimed again.
//
// Where something speaks against it the outcome is unknown: a request of [OneSend] that had a connection, was answered or is still
// under way, the wish for a second send, or a [Rejected] or [RefusedBeforeAcceptance] beside it. What another Do within Execute
// returned is never taken for it.
func NotSent(err error) error {
	if err == nil {
		err = errors.New("no cause given")
	}
	return &notSentError{err: err}
}

// toldError is what a Do told its caller. An Execute around that Do, which may have sent something itself, does not pass on what it
// says of the send as its own.
type toldError struct {
	about string
	err   error
}

func unsent(err error) error { return &toldError{"nothing was sent: ", err} }

func toldCause(err error) error {
	if err == nil {
		return nil
	}
	return &toldError{"", err}
}

func (e *toldError) Error() string { return fmt.Sprintf("%s%v", e.about, e.err) }
func (e *toldError) Unwrap() error { return e.err }

type notSentError struct {
	err error
	one bool // OneSend says it, of one request
}

func (e *notSentError) Error() string { return fmt.Sprintf("nothing was sent: %v", e.err) }
func (e *notSentError) Unwrap() error { return e.err }

// RefusedBeforeAcceptance is for Execute: the target answered that it has not taken the request, and will never act on it: a 429, or a 503
// with the target's declared marker. Do waits for retryAfter (0: the target did not say) and claims again, as long as its
// context, the effect's Wait and the contract's attempts allow. It counts only if the request left exactly once ([Call.Sending],
// [OneSend]); else the outcome is unknown: an earlier copy of it may have been accepted.
func RefusedBeforeAcceptance(err error, retryAfter time.Duration) error {
	if err == nil {
		err = errors.New("no cause given")
	}
	return &refusedBeforeError{err, retryAfter}
}

type refusedBeforeError struct {
	err   error
	after time.Duration
}

func (e *refusedBeforeError) Error() string {
	return fmt.Sprintf("refused before acceptance: %v", e.err)
}
func (e *refusedBeforeError) Unwrap() error { return e.err }

func (e *refusedBeforeError) report() *opsledgerv1.NotExecuted {
	r := &opsledgerv1.NotExecuted{Kind: opsledgerv1.NotExecutedKind_NOT_EXECUTED_KIND_REFUSED_BEFORE_ACCEPTANCE}
	if e.after > 0 {
		r.RetryAfter = durationpb.New(e.after)
	}
	return r
}

// Rejected is for Execute: the target answered that it decided against the request (FAILURE_KIND_DECLINED) or could not accept it as it
// is (FAILURE_KIND_INVALID), and that no effect exists. Any other kind is not for workers and leaves the outcome unknown. A 5xx, a
// time-out, an answer that can't be read are no rejections.
//
// It is definite only as the answer to the only send of the only attempt, and that the request left exactly once has to be known: let
// [OneSend] send it, or declare it by [Call.Sending]. Else the outcome is unknown, unless the contract says that the target's
// rejections stick to the key. Code is the target's; message is stored in clear and shown. In both, what is not valid UTF-8 is
// replaced by U+FFFD.
func Rejected(kind opsledgerv1.FailureKind, code, message string) error {
	return &rejectedError{&opsledgerv1.Failure{Kind: kind, Code: valid(code), Message: valid(message)}}
}

// Unclear is for Execute: the outcome could not be seen, and why. Any other error says the same without the cause, which is for
// those who look into it; see also [Call.SetAttribute].
func Unclear(cause opsledgerv1.UnknownCause, err error) error {
	if err == nil {
		err = errors.New("no cause given")
	}
	return &unclearError{cause, err}
}

type unclearError struct {
	cause opsledgerv1.UnknownCause
	err   error
}

func (e *unclearError) Error() string { return fmt.Sprintf("the outcome could not be seen: %v", e.err) }
func (e *unclearError) Unwrap() error { return e.err }

type rejectedError struct{ failure *opsledgerv1.Failure }

func (e *rejectedError) Error() string { return "rejected: " + e.failure.GetCode() }

// definite says whether the kind is one that a worker can know.
func (e *rejectedError) definite() bool {
	kind := e.failure.GetKind()
	return kind == opsledgerv1.FailureKind_FAILURE_KIND_DECLINED || kind == opsledgerv1.FailureKind_FAILURE_KIND_INVALID
}

// PanicError is in the Cause of an [Unknown] whose Execute panicked, and in the error of a call whose Prepare did. The panic goes no
// further: above, it would look like any crash that may be tried again, while the effect may exist.
type PanicError struct {
	// Value is what it panicked with. It may hold the request.
	Value any
	// Stack is where, as debug.Stack has it.
	Stack []byte
}

// Error leaves the value out: it may hold the request.
func (e *PanicError) Error() string { return "the effect's code panicked" }
