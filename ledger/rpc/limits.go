// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// Limits of what a scope, or one subject of it, may ask of this instance.
type Limits struct {
	// PerSecond is the steady rate of requests, above 0.
	PerSecond float64
	// Burst is how many requests may come at once after a pause, at least 1.
	Burst int
	// Live is how many grants and reservations may be open at a time, at least 1.
	Live int
}

// Limiter refuses with ErrRateLimited what is more than the policy allows: requests per second, and live operations. Both are counted by
// scope and by subject of a scope, in this process alone: with several instances each allows as much.
//
// What it never refuses are reports of live grants (Complete, MarkUnknown, Renew): they are neither counted nor limited, because what they
// say may not be said again. Nor does it limit other services, such as the health.
//
// A live operation is one that this instance granted, until it hears of its end or the lease is over. Another instance may have heard: an
// account that is full looks at some of its operations in the store before it refuses. Only a claim that would be granted something new is
// refused; what is recorded is told as ever.
type Limiter struct {
	policy   ledger.Policy
	identify Identify
	limits   func(p ledger.Principal) (scope, subject Limits)
	refused  metric.Int64Counter
	requests buckets
	live     *live
}

// NewLimiter makes a limiter. limits is asked at each call, so that it may change at any time. A nil meter is the global provider's.
func NewLimiter(policy ledger.Policy, identify Identify, limits func(p ledger.Principal) (scope, subject Limits), meter metric.Meter) (*Limiter, error) {
	if policy == nil || identify == nil || limits == nil {
		return nil, errors.New("a limiter needs a policy, a source of identity, and limits")
	}
	if meter == nil {
		meter = otel.Meter("github.com/opsledger/opsledger/ledger/rpc")
	}
	refused, err := meter.Int64Counter("ledger.requests.limited", metric.WithUnit("{request}"),
		metric.WithDescription("Requests that were refused because a scope or a subject asks for too much."))
	if err != nil {
		return nil, err
	}
	return &Limiter{
		policy: policy, identify: identify, limits: limits, refused: refused,
		requests: buckets{byWhom: map[account]bucket{}}, live: newLive(),
	}, nil
}

// charges are the accounts of a caller, the scope's first.
func (l *Limiter) charges(p ledger.Principal, subject string) []charge {
	ofAll, ofOne := l.limits(p)
	scope, rule, ok := l.policy.Scope(p)
	if !ok || scope == "" { // a reconciler or a person
		return []charge{{account{kind: ofPrincipal, name: string(p)}, ofAll}}
	}
	charges := []charge{{account{kind: ofScope, name: string(scope)}, ofAll}}
	if subject != "" && rule != ledger.SubjectForbidden {
		charges = append(charges, charge{subjectAccount(scope, subject), ofOne})
	}
	return charges
}

// limited are the requests that the limiter counts.
func limited(method string) bool {
	return strings.HasPrefix(method, "/"+string(pb.File_opsledger_v1_ledger_service_proto.Package())+".") && !slices.Contains(reports, method)
}

// subjectOf is the subject that a request names. It is not checked yet.
func subjectOf(req any) string {
	if r, ok := req.(interface{ GetSubject() string }); ok && r.GetSubject() != "" {
		return r.GetSubject()
	}
	if r, ok := req.(interface{ GetKey() *pb.OperationKey }); ok {
		return r.GetKey().GetSubject()
	}
	return ""
}

// unary refuses requests that come too fast. A nil limiter refuses none.
func (l *Limiter) unary(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if l == nil || !limited(info.FullMethod) {
			return handler(ctx, req)
		}
		p, err := l.identify(ctx)
		if err != nil { // the service refuses who has no identity
			return handler(ctx, req)
		}
		if wait, who := l.requests.take(time.Now(), l.charges(p, subjectOf(req))...); wait > 0 {
			return nil, fail(ctx, log, l.refuse(ctx, who, "requests", wait), false)
		}
		return handler(ctx, req)
	}
}

const labelLimit = "ledger.limit.kind"

// accountNames are the labels of accounts.
var accountNames = map[accountKind]string{ofScope: "scope", ofSubject: "subject", ofPrincipal: "principal"}

func (l *Limiter) refuse(ctx context.Context, who accountKind, what string, wait time.Duration) error {
	l.refused.Add(ctx, 1, metric.WithAttributes(attribute.String(labelLimit, accountNames[who]+"_"+what)))
	return &ledger.Refusal{Err: ledger.ErrRateLimited, RetryAfter: wait}
}

// unheardBound is how long a place is kept of which nothing more is heard: longer than any call takes to be decided.
const unheardBound = 30 * time.Second

// enter takes a place for what a Claim may be granted. leave gives it back unless it was granted.
func (s *Server) enter(ctx context.Context, c caller, id ledger.OperationID, subject string) (leave func(ledger.Answer), err error) {
	l := s.limiter
	if l == nil {
		return func(ledger.Answer) {}, nil
	}
	charges := l.charges(c.principal, subject)
	entered, known, full, some := l.live.enter(time.Now(), time.Now().Add(unheardBound), id, charges)
	if !entered && !known {
		for _, other := range some {
			if op, _, err := s.ledger.Look(ctx, other, everybody); err == nil && op.State != ledger.Processing {
				s.hear(&op, time.Now())
			}
		}
		entered, known, full, _ = l.live.enter(time.Now(), time.Now().Add(unheardBound), id, charges)
	}
	if !entered && !known && s.wouldBeNew(ctx, id) {
		return nil, l.refuse(ctx, full, "live", 0)
	}
	return func(a ledger.Answer) {
		switch {
		case a.Outcome == ledger.OutcomeGranted:
			l.live.lasts(time.Now().Add(a.Grant.Lease), id, charges)
		case entered:
			l.live.hear(c.scope, id, time.Time{})
		case a.Operation != nil:
			s.hear(a.Operation, a.Now)
		}
	}, nil
}

func everybody(*ledger.Operation) error { return nil }

// wouldBeNew says whether a Claim would be granted something new, as far as can be seen.
func (s *Server) wouldBeNew(ctx context.Context, id ledger.OperationID) bool {
	op, st, err := s.ledger.Look(ctx, id, everybody)
	if err != nil { // what else is wrong, Claim tells
		return errors.Is(err, ledger.ErrOperationNotFound)
	}
	free := st.Outcome != ledger.OutcomeCompleted && st.Outcome != ledger.OutcomeFailed && st.Wait.Reason == 0
	return free && op.State == ledger.Received
}

// hear notes how an operation stands at a time of the store.
func (s *Server) hear(op *ledger.Operation, now time.Time) {
	if s.limiter == nil {
		return
	}
	var until time.Time
	if op.LeaseAlive(now) && (op.State == ledger.Processing || op.Reserved(now)) {
		until = time.Now().Add(op.Grant.LeaseUntil.Sub(now))
	}
	s.limiter.live.hear(op.Scope, op.ID, until)
}
