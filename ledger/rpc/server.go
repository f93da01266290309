// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/hmac"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// Identify returns the principal of a call, as an interceptor found it in the verified certificate.
type Identify func(ctx context.Context) (ledger.Principal, error)

// Options of a Server. The zero value is usable.
type Options struct {
	// Log; nil: slog.Default().
	Log *slog.Logger
	// Meter for the metrics; nil: the global provider's.
	Meter metric.Meter
	// Strict, asked at each claim, refuses new work of tools without a contract (TOOL_UNKNOWN). What is recorded is replayed and reported
	// as before. Nil: such tools have the default contract.
	Strict func() bool
	// ToolValidFor is how long clients may rely on GetTool; 0: 5 minutes.
	ToolValidFor time.Duration
	// Limiter of live operations; nil: there is no limit.
	Limiter *Limiter
	// ReplayRules are the contracts' own rules on who may see results; nil: there are none.
	ReplayRules ledger.Replays
	// ReplayService asks another system about each single result, so listings and reports, which have many or need none, leave out what
	// it would have to be asked about; nil: nobody is asked.
	ReplayService ledger.Replays
	// Requests says under which specs, and contracts that are not in force any more, requests can be judged.
	Requests fingerprint.Options
}

// Server implements LedgerService. It holds no state of its own besides what its limiter and one metric count, and is safe for concurrent use.
type Server struct {
	pb.UnimplementedLedgerServiceServer

	ledger   *ledger.Ledger
	policy   ledger.Policy
	ring     *fingerprint.Ring
	identify Identify
	log      *slog.Logger
	metrics  *metrics
	strict   func() bool
	validFor time.Duration
	limiter  *Limiter
	// rules and service judge replays; nil: none does.
	rules, service ledger.Replays
	requests       fingerprint.Options
	alike          *lookAlikes
}

// New makes a server.
func New(l *ledger.Ledger, policy ledger.Policy, ring *fingerprint.Ring, identify Identify, o Options) (*Server, error) {
	if l == nil || policy == nil || ring == nil || identify == nil {
		return nil, errors.New("a server needs a ledger, a policy, a ring of secrets and a source of identity")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.ToolValidFor == 0 {
		o.ToolValidFor = 5 * time.Minute
	}
	if o.Requests.Versions == nil {
		o.Requests.Versions = new(fingerprint.Versions)
	}
	m, err := newMetrics(o.Meter)
	if err != nil {
		return nil, err
	}
	return &Server{
		ledger: l, policy: policy, ring: ring, identify: identify, log: o.Log, metrics: m, strict: o.Strict, validFor: o.ToolValidFor, rules: o.ReplayRules, service: o.ReplayService,
		limiter: o.Limiter, requests: o.Requests, alike: newLookAlikes(),
	}, nil
}

// caller is who calls, by certificate and policy.
type caller struct {
	principal ledger.Principal
	scope     ledger.Scope
	subjects  ledger.SubjectRule
}

func (c caller) actor() ledger.Actor {
	return ledger.Actor{Kind: ledger.ActorWorker, Name: c.principal}
}

func (s *Server) principal(ctx context.Context) (ledger.Principal, error) {
	p, err := s.identify(ctx)
	if err != nil || p == "" { // why is the interceptor's to tell
		return "", ledger.ErrIdentityInvalid
	}
	return p, nil
}

// caller refuses who has no scope.
func (s *Server) caller(ctx context.Context) (caller, error) {
	p, err := s.principal(ctx)
	if err != nil {
		return caller{}, err
	}
	scope, subjects, ok := s.policy.Scope(p)
	if !ok || scope == "" {
		return caller{}, ledger.ErrIdentityInvalid
	}
	return caller{principal: p, scope: scope, subjects: subjects}, nil
}

// reporter is who reports what became of a grant. A scope that was withdrawn since does not make the report untrue: the claim_id proves
// the grant.
func (s *Server) reporter(ctx context.Context) (caller, error) {
	p, err := s.principal(ctx)
	if err != nil {
		return caller{}, err
	}
	scope, subjects, _ := s.policy.Scope(p)
	return caller{principal: p, scope: scope, subjects: subjects}, nil
}

// mayReport lets the report of a grant through. Who has no scope learns nothing but of a grant that it can show.
func (c caller) mayReport(op *ledger.Operation, claimID string) error {
	if c.scope == "" && (claimID == "" || string(op.Grant.ClaimID) != claimID) {
		return ledger.ErrIdentityInvalid
	}
	if c.scope == "" {
		return nil
	}
	return c.sameScope(op)
}

// unknownTo hides from who has no scope that an operation is absent.
func (c caller) unknownTo(err error) error {
	if c.scope == "" && errors.Is(err, ledger.ErrOperationNotFound) {
		return ledger.ErrIdentityInvalid
	}
	return err
}

// maySay checks the right to name a subject, or the duty.
func (c caller) maySay(field, subject string) error {
	rule := ""
	switch {
	case subject != "" && c.subjects == ledger.SubjectForbidden:
		rule = "must be empty: the policy gives the caller no right to act for a subject"
	case subject == "" && c.subjects == ledger.SubjectRequired:
		rule = "must be set: the policy makes the caller act for a subject"
	default:
		return nil
	}
	return &ledger.Refusal{Err: ledger.ErrSubjectNotAllowed, Violations: []ledger.Violation{{Field: field, Rule: rule}}}
}

// sameScope lets a worker's report through; the claim_id proves the rest, and the core hides the operation from who can't show one.
func (c caller) sameScope(op *ledger.Operation) error {
	if op.Scope != c.scope {
		return ledger.ErrOperationNotFound
	}
	return nil
}

// sameSubject lets through who also names the subject of an operation that has one.
func (s *Server) sameSubject(c caller, subject string) ledger.May {
	return func(op *ledger.Operation) error {
		if err := c.sameScope(op); err != nil || len(op.SubjectDigest) == 0 {
			return err
		}
		secret, err := s.ring.Secret(op.Fingerprint.SecretID)
		if err != nil || subject == "" { // who can't be recognised is a stranger
			return ledger.ErrOperationNotFound
		}
		digest := fingerprint.SubjectDigest(subject, secret)
		if !hmac.Equal(digest[:], op.SubjectDigest) {
			return ledger.ErrOperationNotFound
		}
		return nil
	}
}

// holder lets through who may know of an operation by the proof of its latest grant. It judges what can't be read, and so can't be
// judged by its history.
func (c caller) holder(claimID string) ledger.May {
	return func(op *ledger.Operation) error {
		err := c.sameScope(op)
		if err == nil && len(op.SubjectDigest) > 0 && string(op.Grant.ClaimID) != claimID {
			err = ledger.ErrOperationNotFound
		}
		return err
	}
}

// look reads an operation. That one was written by a newer release is told to who may know of it; to others it is absent, as any is.
func (s *Server) look(ctx context.Context, id ledger.OperationID, may ledger.May) (ledger.Operation, ledger.Standing, error) {
	op, st, err := s.ledger.Look(ctx, id, may)
	var r *ledger.Refusal
	if errors.Is(err, ledger.ErrRecordTooNew) && errors.As(err, &r) && r.Operation != nil {
		if refused := may(r.Operation); refused != nil {
			err = refused
		}
	}
	return op, st, err
}

// unreadable is what the sender of a command is told where a record was too new to decide.
func (s *Server) unreadable(ctx context.Context, err error, id ledger.OperationID, may ledger.May) error {
	if !errors.Is(err, ledger.ErrRecordTooNew) {
		return err
	}
	if _, _, refused := s.look(ctx, id, may); refused != nil {
		return refused
	}
	return err
}

// toolAllowed: the policy lets the caller use the tool now, and a strict ledger knows it.
func (s *Server) toolAllowed(c caller, tool ledger.Tool) bool {
	return s.policy.ToolAllowed(c.principal, tool) && !s.unknownTool(tool)
}

func (s *Server) unknownTool(tool ledger.Tool) bool {
	if s.strict == nil || !s.strict() {
		return false
	}
	_, declared := s.ledger.Contract(tool)
	return !declared
}

// whyNotAllowed tells a tool that a strict ledger does not know from one that the policy withholds.
func (s *Server) whyNotAllowed(err error, c caller, tool ledger.Tool) error {
	if errors.Is(err, ledger.ErrToolNotAllowed) && s.policy.ToolAllowed(c.principal, tool) {
		return ledger.ErrToolUnknown
	}
	return err
}

// mayShow: the caller may see what became of an operation, and what it was about, now. Own scope and subject have been checked before. Of
// what is not settled there is no result to protect from its own scope.
func (s *Server) mayShow(ctx context.Context, c caller, subject string, op *ledger.Operation) bool {
	allowed := s.allowed(ctx, c, subject, op)
	if !op.State.Final() {
		return allowed
	}
	if allowed && s.service != nil {
		ctx, cancel := answerInTime(ctx)
		defer cancel()
		allowed = s.service.MayShow(ctx, c.viewer(subject), op)
	}
	s.metrics.replayAuthorized(ctx, allowed)
	return allowed
}

// viewer is the caller as those who judge replays are told of it.
func (c caller) viewer(subject string) ledger.Viewer {
	return ledger.Viewer{Principal: c.principal, Scope: c.scope, Subject: subject}
}

// allowed is what can be said without asking another system.
func (s *Server) allowed(ctx context.Context, c caller, subject string, op *ledger.Operation) bool {
	allowed := s.policy.ToolAllowed(c.principal, op.Tool)
	if !allowed || s.rules == nil || !op.State.Final() {
		return allowed
	}
	return s.rules.MayShow(ctx, c.viewer(subject), op)
}

// show an operation to a worker of its scope, as it stands at a time, without asking another system.
func (s *Server) show(ctx context.Context, c caller, subject string, op *ledger.Operation, now time.Time) (*pb.Operation, ledger.Standing) {
	if op == nil {
		return nil, ledger.Standing{}
	}
	contract, _ := s.ledger.Contract(op.Tool)
	st := ledger.Stand(op, contract, now)
	return encodeOperation(op, st, s.allowed(ctx, c, subject, op) && (s.service == nil || !op.State.Final())), st
}

// fail ends a call with a status. showResource: see there.
func (s *Server) fail(ctx context.Context, err error, showResource bool) error {
	s.metrics.rejected(ctx, rejectionOf(err))
	return fail(ctx, s.log, err, showResource)
}

// waitMargin is what a wait leaves of the call's deadline, so that its last answer arrives.
const waitMargin = 250 * time.Millisecond

// answerInTime leaves a part of the call's deadline for the answer itself: redacted is better than none.
func answerInTime(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, deadline.Add(-waitMargin/4))
}

// patience is how long a call may wait, at most to a little before its deadline.
func patience(ctx context.Context, wait time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline)-waitMargin)
	}
	return max(wait, 0)
}

// Register makes a gRPC server serve it.
func Register(r grpc.ServiceRegistrar, s *Server) { pb.RegisterLedgerServiceServer(r, s) }
