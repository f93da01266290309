// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// principalKey has no exported setter: what is under it was put there by an
// Interceptor.
type principalKey struct{}

// PrincipalFrom returns the principal that the interceptor found; false for a
// method that any verified client may call, and outside of a call.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	principal, ok := ctx.Value(principalKey{}).(Principal)
	return principal, ok
}

// Interceptor refuses whoever has no identity or may not call the method, and
// puts the principal into the context of the others.
type Interceptor struct {
	policy func() *Policy
	now    func() time.Time
}

// NewInterceptor takes the policy in force, such as Reloader.Current, and the
// clock that certificates are judged by on every call.
func NewInterceptor(policy func() *Policy, now func() time.Time) *Interceptor {
	return &Interceptor{policy: policy, now: now}
}

// Unary is a grpc.UnaryServerInterceptor.
func (i *Interceptor) Unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := i.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// Stream is a grpc.StreamServerInterceptor. A stream is judged when it begins.
func (i *Interceptor) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := i.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(server, &admittedStream{ServerStream: stream, ctx: ctx})
}

type admittedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *admittedStream) Context() context.Context { return s.ctx }

func (i *Interceptor) admit(ctx context.Context, method string) (context.Context, error) {
	var info credentials.AuthInfo
	if p, ok := peer.FromContext(ctx); ok {
		info = p.AuthInfo
	}
	access, policy := MethodAccess(method), i.policy()
	if access == AccessVerified {
		if _, err := policy.verifiedLeaf(info, i.now()); err != nil {
			return nil, Status(err)
		}
		return ctx, nil
	}
	principal, err := policy.PrincipalFromPeer(info, i.now())
	if err != nil {
		return nil, Status(err)
	}
	if !access.allows(policy, principal) {
		if access == AccessScope {
			return nil, Status(refuse(RuleNoScope))
		}
		return nil, refusal(codes.PermissionDenied, opsledgerv1.ErrorReason_ERROR_REASON_ROLE_REQUIRED, "the policy gives the caller no right to this method", nil)
	}
	return context.WithValue(ctx, principalKey{}, principal), nil
}

// Status turns an [*IdentityError] into UNAUTHENTICATED with the reason
// IDENTITY_INVALID and the rule that was broken; any other error into the same
// without a rule.
func Status(err error) error {
	var identity *IdentityError
	if errors.As(err, &identity) {
		return refusal(codes.Unauthenticated, opsledgerv1.ErrorReason_ERROR_REASON_IDENTITY_INVALID, identity.Error(), map[string]string{"rule": string(identity.Rule)})
	}
	return refusal(codes.Unauthenticated, opsledgerv1.ErrorReason_ERROR_REASON_IDENTITY_INVALID, "identity refused", nil)
}

func refusal(code codes.Code, reason opsledgerv1.ErrorReason, message string, metadata map[string]string) error {
	refused := status.New(code, message)
	detailed, err := refused.WithDetails(&errdetails.ErrorInfo{
		Domain:   "opsledger",
		Reason:   strings.TrimPrefix(reason.String(), "ERROR_REASON_"),
		Metadata: metadata,
	})
	if err != nil {
		return refused.Err()
	}
	return detailed.Err()
}
