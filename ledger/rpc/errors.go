// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/opsledger/opsledger/failpoint"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// domain of google.rpc.ErrorInfo.
const domain = "opsledger"

// pushback is the trailer that gRPC clients with a retry policy heed: milliseconds, or they wait as they think fit.
const pushback = "grpc-retry-pushback-ms"

// refusal is what callers are told of one refusal of the core. Its message is the refusal's own text, which is constant.
type refusal struct {
	err    error
	code   codes.Code
	reason pb.ErrorReason
	// retry is how long to wait where the refusal itself does not say; 0: waiting does not help.
	retry time.Duration
}

// refusals has every refusal of the core exactly once, and so every reason of the contract.
var refusals = []refusal{
	{ledger.ErrValidation, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_VALIDATION, 0},
	{ledger.ErrFingerprintConflict, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_FINGERPRINT_CONFLICT, 0},
	{ledger.ErrDuplicateIntent, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_DUPLICATE_INTENT, 0},
	{ledger.ErrKeyRetired, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_KEY_RETIRED, 0},
	{ledger.ErrKeyTooOld, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_KEY_TOO_OLD, 0},
	{ledger.ErrRecordTooNew, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW, 0},
	{ledger.ErrStaleGrant, codes.Aborted, pb.ErrorReason_ERROR_REASON_STALE_GRANT, 0},
	{ledger.ErrLeaseOver, codes.Aborted, pb.ErrorReason_ERROR_REASON_LEASE_OVER, 0},
	{ledger.ErrCommandReused, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_COMMAND_REUSED, 0},
	{ledger.ErrStaleVersion, codes.Aborted, pb.ErrorReason_ERROR_REASON_STALE_VERSION, 0},
	{ledger.ErrTooEarly, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_TOO_EARLY, time.Second},
	{ledger.ErrNotInCustody, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NOT_IN_CUSTODY, 0},
	{ledger.ErrSecondPersonRequired, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_SECOND_PERSON_REQUIRED, 0},
	{ledger.ErrOriginalHasNoEffect, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_ORIGINAL_HAS_NO_EFFECT, 0},
	{ledger.ErrDependencyFailed, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_DEPENDENCY_FAILED, 0},
	{ledger.ErrNotReversible, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_NOT_REVERSIBLE, 0},
	{ledger.ErrHeldByOperator, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_HELD_BY_OPERATOR, 0},
	{ledger.ErrToolPaused, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_TOOL_PAUSED, 0},
	{ledger.ErrOriginalUnsettled, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_ORIGINAL_UNSETTLED, 0},
	{ledger.ErrBlocked, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_BLOCKED, time.Second},
	{ledger.ErrIllegalTransition, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_ILLEGAL_TRANSITION, 0},
	{ledger.ErrEffectFound, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_EFFECT_FOUND, 0},
	{ledger.ErrToolUnknown, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_TOOL_UNKNOWN, 0},
	{ledger.ErrToolNotAllowed, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_TOOL_NOT_ALLOWED, 0},
	{ledger.ErrSubjectNotAllowed, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_SUBJECT_NOT_ALLOWED, 0},
	{ledger.ErrRoleRequired, codes.PermissionDenied, pb.ErrorReason_ERROR_REASON_ROLE_REQUIRED, 0},
	{ledger.ErrOperationNotFound, codes.NotFound, pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND, 0},
	{ledger.ErrIdentityInvalid, codes.Unauthenticated, pb.ErrorReason_ERROR_REASON_IDENTITY_INVALID, 0},
	{ledger.ErrRateLimited, codes.ResourceExhausted, pb.ErrorReason_ERROR_REASON_RATE_LIMITED, time.Second},
	{ledger.ErrStoreUnavailable, codes.Unavailable, pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, time.Second},
	{ledger.ErrDraining, codes.Unavailable, pb.ErrorReason_ERROR_REASON_DRAINING, time.Second},
}

// find returns the row of an error; false for what is no refusal.
func find(err error) (refusal, bool) {
	for i := range refusals {
		if errors.Is(err, refusals[i].err) {
			return refusals[i], true
		}
	}
	// A call that was cut short may be sent again, as after a store's failure. Where the caller's own deadline has ended, gRPC has
	// already answered. An injected fault stands for a lost connection.
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, failpoint.ErrInjected) {
		return find(ledger.ErrStoreUnavailable)
	}
	return refusal{}, false
}

// passes: the same call may be answered otherwise when it is sent again.
func (r refusal) passes() bool {
	return r.code == codes.Unavailable || r.code == codes.ResourceExhausted
}

// fail turns an error into the status that the caller gets. showResource: the caller may see the result of the operation that the
// refusal is about.
func fail(ctx context.Context, log *slog.Logger, err error, showResource bool) error {
	row, ok := find(err)
	if !ok {
		return internal(ctx, log, "unexpected error", slog.Any("types", typesOf(err)))
	}
	var r *ledger.Refusal
	if !errors.As(err, &r) {
		r = &ledger.Refusal{Err: row.err}
	}
	info := &errdetails.ErrorInfo{Domain: domain, Reason: reasonName(row.reason), Metadata: map[string]string{}}
	details := []protoadapt.MessageV1{info}
	if r.Reason != 0 {
		info.Metadata["waiting_for"] = r.Reason.String()
	}
	if r.Outcome != 0 {
		info.Metadata["outcome"] = r.Outcome.String()
	}
	if len(r.Other) > 0 {
		info.Metadata["operation_ids"] = strings.Join(idTexts(r.Other), ",")
	}
	if op := r.Operation; op != nil && row.err == ledger.ErrStaleVersion {
		info.Metadata["version"] = strconv.FormatUint(op.Version, 10)
		info.Metadata["state"] = op.State.String()
	}
	if len(r.Violations) > 0 {
		bad := &errdetails.BadRequest{}
		for _, v := range r.Violations {
			bad.FieldViolations = append(bad.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: v.Field, Description: v.Rule})
		}
		details = append(details, bad)
	}
	if row.retry > 0 {
		wait := r.RetryAfter
		if wait <= 0 {
			wait = row.retry
		}
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
		// Outside of a call there is no trailer to set, and the detail says the same.
		_ = grpc.SetTrailer(ctx, metadata.Pairs(pushback, strconv.FormatInt(wait.Milliseconds(), 10)))
	}
	if op := r.Operation; op != nil && row.err == ledger.ErrFingerprintConflict {
		conflict := &pb.FingerprintConflict{OperationId: op.ID.String(), State: pb.State(op.State), Categories: r.Categories}
		if showResource && op.Result != nil {
			conflict.Resource = encodeResource(op.Result.Resource)
		}
		details = append(details, conflict)
	}
	return withDetails(status.New(row.code, row.err.Error()), details...)
}

// internal is what callers are told when something happened that should not: an id that is in the log, and nothing else.
func internal(ctx context.Context, log *slog.Logger, what string, attrs ...slog.Attr) error {
	id := uuid.NewString()
	log.LogAttrs(ctx, slog.LevelError, what, append(attrs, slog.String("error_id", id))...)
	return withDetails(status.New(codes.Internal, "internal error"), &errdetails.ErrorInfo{
		Domain: domain, Reason: reasonName(pb.ErrorReason_ERROR_REASON_UNSPECIFIED), Metadata: map[string]string{"error_id": id},
	})
}

func withDetails(s *status.Status, details ...protoadapt.MessageV1) error {
	if detailed, err := s.WithDetails(details...); err == nil {
		return detailed.Err()
	}
	return s.Err()
}

// reasonOf returns the ErrorInfo reason of a status, for the log; empty without one.
func reasonOf(err error) string {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}

func reasonName(r pb.ErrorReason) string { return strings.TrimPrefix(r.String(), "ERROR_REASON_") }

// typesOf names the types of an error and of what it wraps: its text may hold values.
func typesOf(err error) []string {
	var types []string
	for e := err; e != nil && len(types) < 8; e = errors.Unwrap(e) {
		types = append(types, fmt.Sprintf("%T", e))
	}
	return types
}

// rejectionOf is the label under which a refused transition is counted; empty for refusals that are none.
func rejectionOf(err error) string {
	switch row, _ := find(err); row.err {
	case ledger.ErrStaleVersion:
		return "stale_version"
	case ledger.ErrIllegalTransition:
		return "wrong_state"
	case ledger.ErrHeldByOperator, ledger.ErrNotInCustody:
		return "custody"
	case ledger.ErrStaleGrant, ledger.ErrLeaseOver:
		return "grant"
	default:
		return ""
	}
}

// unanswered sorts a call's error, as the statuses of HTTP are sorted.
func unanswered(err error) *Unanswered {
	s := status.Convert(err)
	u := &Unanswered{}
	for _, detail := range s.Details() {
		if retry, ok := detail.(*errdetails.RetryInfo); ok {
			u.After = max(retry.GetRetryDelay().AsDuration(), 0)
		}
	}
	switch s.Code() {
	case codes.ResourceExhausted:
		u.Cause, u.Why = ledger.QueryThrottled, whyThrottled
		if strings.HasPrefix(s.Message(), "grpc: received message larger than max") { // this process says so, not the service
			u.Cause, u.Why = ledger.QueryNotUnderstood, whyLong
		}
	case codes.DeadlineExceeded, codes.Canceled:
		u.Cause, u.Why = ledger.QueryTimeout, whyTime
	case codes.Unauthenticated, codes.PermissionDenied:
		u.Cause, u.Why = ledger.QueryNotAuthorized, whyRefused
	case codes.Unavailable, codes.Unknown, codes.Internal, codes.Aborted, codes.DataLoss:
		u.Cause, u.Why = ledger.QueryUnavailable, whyLost
	default:
		u.Cause, u.Why = ledger.QueryNotUnderstood, whyMeaning
	}
	return u
}
