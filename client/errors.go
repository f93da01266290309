// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Error is a claim that the ledger refused, or that did not reach it. It unwraps to the status.
type Error struct {
	// Reason the ledger gave; unspecified if it gave none, for example because it could not be reached.
	Reason opsledgerv1.ErrorReason
	Code   codes.Code
	// OperationID, State and Categories are those of a conflict (FINGERPRINT_CONFLICT): which kinds of fields differ, "amount".
	OperationID string
	State       opsledgerv1.State
	Categories  []string
	// Fields that were refused, by name, and the rule each breaks (VALIDATION).
	Fields map[string]string
	// Metadata of the reason: for DUPLICATE_INTENT the other operation.
	Metadata map[string]string
	// RetryAfter is when the same call may be sent again; 0: the ledger did not say.
	RetryAfter time.Duration

	err error
}

const (
	errorDomain  = "opsledger"
	reasonPrefix = "ERROR_REASON_"
)

// refused makes an Error of what a claim returned.
func refused(err error) *Error {
	s := status.Convert(err)
	e := &Error{Code: s.Code(), err: err}
	for _, detail := range s.Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == errorDomain {
				e.Reason = opsledgerv1.ErrorReason(opsledgerv1.ErrorReason_value[reasonPrefix+d.GetReason()])
				e.Metadata = d.GetMetadata()
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

// Error names the reason, and of a conflict the categories.
func (e *Error) Error() string {
	reason := strings.TrimPrefix(e.Reason.String(), reasonPrefix)
	switch {
	case e.Reason == opsledgerv1.ErrorReason_ERROR_REASON_UNSPECIFIED:
		return fmt.Sprintf("nothing was sent: claim: %v", e.err)
	case len(e.Categories) > 0:
		return fmt.Sprintf("nothing was sent: %s: %s", reason, strings.Join(e.Categories, ", "))
	default:
		return fmt.Sprintf("nothing was sent: %s: %s", reason, status.Convert(e.err).Message())
	}
}

// Unwrap returns the status.
func (e *Error) Unwrap() error { return e.err }

// ReasonOf is the ledger's reason for an error of [Do]; unspecified if it gave none.
func ReasonOf(err error) opsledgerv1.ErrorReason {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return opsledgerv1.ErrorReason_ERROR_REASON_UNSPECIFIED
}

// NotSent is for Execute: not one byte of the request has left this process, for certain (no connection, a failed handshake,
// given up before). Do returns err as its error, and the intent can be claimed again.
func NotSent(err error) error {
	if err == nil {
		err = errors.New("no cause given")
	}
	return &notSentError{err}
}

type notSentError struct{ err error }

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

// PanicError is the Cause of an [Unknown] whose Execute panicked, and the error of a call whose Prepare did. The panic goes no further: above, it would look
// like any crash that may be tried again, while the effect may exist.
type PanicError struct {
	Value any
	Stack []byte
}

// Error leaves the value out: it may hold the request.
func (e *PanicError) Error() string { return "the effect's code panicked" }
