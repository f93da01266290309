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

// Rejected is for Execute: the request has left this process exactly once, and the target answered that it decided against it
// (FAILURE_KIND_DECLINED) or could not accept it as it is (FAILURE_KIND_INVALID), and that no effect exists. Any other kind is not
// for workers and leaves the outcome unknown. A 5xx, a time-out, an answer that can't be read are no rejections. Code is the
// target's; message is stored in clear and shown. In both, what is not valid UTF-8 is replaced by U+FFFD.
func Rejected(kind opsledgerv1.FailureKind, code, message string) error {
	return &rejectedError{&opsledgerv1.Failure{Kind: kind, Code: valid(code), Message: valid(message)}}
}

type rejectedError struct{ failure *opsledgerv1.Failure }

func (e *rejectedError) Error() string { return "rejected: " + e.failure.GetCode() }

// definite says whether the kind is one that a worker can know.
func (e *rejectedError) definite() bool {
	kind := e.failure.GetKind()
	return kind == opsledgerv1.FailureKind_FAILURE_KIND_DECLINED || kind == opsledgerv1.FailureKind_FAILURE_KIND_INVALID
}

// PanicError is the Cause of an [Unknown] whose Execute (or Resource) panicked. The panic goes no further: above, it would look
// like any crash that may be tried again, while the effect may exist.
type PanicError struct {
	Value any
	Stack []byte
}

// Error leaves the value out: it may hold the request.
func (e *PanicError) Error() string { return "execute panicked" }
