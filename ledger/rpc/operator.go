// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// OperatorOptions of Operators. The zero value is usable.
type OperatorOptions struct {
	// Tools are those that have a contract; nil: none is known.
	Tools func() []ledger.Tool
	// Breakers say whether recovery asks the targets of tools, as far as it ever has; nil: nobody knows.
	Breakers func(ctx context.Context) (map[ledger.Tool]Breaker, error)
}

// Breaker says whether recovery asks a tool's target. The numbers are the contract's.
type Breaker uint8

// The states of a breaker.
const (
	BreakerClosed   = Breaker(pb.BreakerState_BREAKER_STATE_CLOSED)
	BreakerOpen     = Breaker(pb.BreakerState_BREAKER_STATE_OPEN)
	BreakerHalfOpen = Breaker(pb.BreakerState_BREAKER_STATE_HALF_OPEN)
)

// Operators implements OperatorService, for the people who settle by hand and those who check it later. It holds no state of its own.
type Operators struct {
	pb.UnimplementedOperatorServiceServer

	s        *Server
	store    ledger.OperatorStore
	tools    func() []ledger.Tool
	breakers func(ctx context.Context) (map[ledger.Tool]Breaker, error)
}

// NewOperators makes it beside the server that the workers of the same ledger call. The store is that of the ledger.
func NewOperators(s *Server, store ledger.OperatorStore, o OperatorOptions) (*Operators, error) {
	if s == nil || store == nil {
		return nil, errors.New("the service of people needs a server and a store")
	}
	if o.Tools == nil {
		o.Tools = func() []ledger.Tool { return nil }
	}
	if o.Breakers == nil {
		o.Breakers = func(context.Context) (map[ledger.Tool]Breaker, error) { return nil, nil }
	}
	return &Operators{s: s, store: store, tools: o.Tools, breakers: o.Breakers}, nil
}

// RegisterOperators makes a gRPC server serve it.
func RegisterOperators(r grpc.ServiceRegistrar, o *Operators) { pb.RegisterOperatorServiceServer(r, o) }

// having lets through who has one of some roles for some tool. Such a right is by tool, over all scopes: nobody needs a scope for it, and
// operations of other tools are absent.
func (s *Server) having(ctx context.Context, roles ...ledger.Role) (ledger.Principal, ledger.May, error) {
	p, err := s.principal(ctx)
	if err != nil {
		return "", nil, err
	}
	if !slices.ContainsFunc(roles, func(role ledger.Role) bool { return s.policy.HasAnyRole(p, role) }) {
		return "", nil, ledger.ErrRoleRequired
	}
	return p, func(op *ledger.Operation) error {
		if !slices.ContainsFunc(roles, func(role ledger.Role) bool { return s.policy.HasRole(p, role, op.Tool) }) {
			return ledger.ErrOperationNotFound
		}
		return nil
	}, nil
}

// person is who decides by hand.
func (o *Operators) person(ctx context.Context) (ledger.Actor, ledger.May, error) {
	p, may, err := o.s.having(ctx, ledger.RoleOperator)
	return ledger.Actor{Kind: ledger.ActorPerson, Name: p}, may, err
}

// reader is who may look.
func (o *Operators) reader(ctx context.Context) (ledger.Principal, ledger.May, error) {
	return o.s.having(ctx, ledger.RoleOperator, ledger.RoleAuditor)
}

// The bounds of what people write.
const (
	maxRemark  = 4096
	ruleRemark = "must be text of 1 to 4096 bytes, without control characters but line breaks and tabs"

	ruleLookedAt = "must be the version of the operation that was looked at"
)

// remark checks a reason or a note, which is kept in clear.
func (f *form) remark(field, s string) {
	control := func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
	f.want(strings.TrimSpace(s) != "" && len(s) <= maxRemark && utf8.ValidString(s) && !strings.ContainsFunc(s, control), field, ruleRemark)
}

// lookedAt checks the version that a decision rests on.
func (f *form) lookedAt(version uint64) {
	f.want(version > 0, "expected_version", ruleLookedAt)
}

// addressed is what all commands of people about one operation show.
type addressed interface {
	GetOperationId() string
	GetCommandId() string
}

// decide decides a person's command about one operation. What is wrong with the form has been gathered before.
func (o *Operators) decide(
	ctx context.Context, p points, f *form, req addressed, make func(actor ledger.Actor, op *ledger.Operation, c ledger.Contract) (ledger.Command, error),
) (ledger.Answer, error) {
	actor, may, err := o.person(ctx)
	if err != nil {
		return ledger.Answer{}, err
	}
	id := f.operationID("operation_id", req.GetOperationId())
	f.uuid("command_id", req.GetCommandId())
	if err := f.err(); err != nil {
		return ledger.Answer{}, err
	}
	return o.s.do(ctx, p, o.s.under(req.GetCommandId()), id, may, func(op *ledger.Operation, c ledger.Contract) (ledger.Command, error) {
		if err := may(op); err != nil {
			return nil, err
		}
		return make(actor, op, c)
	})
}

// view is an operation as it stands after a command, or the command's refusal.
func (o *Operators) view(ctx context.Context, answer ledger.Answer, err error) (*pb.Operation, error) {
	if err != nil {
		return nil, o.s.fail(ctx, err, false)
	}
	contract, _ := o.s.ledger.Contract(answer.Operation.Tool)
	return encodeOperation(answer.Operation, ledger.Stand(answer.Operation, contract, answer.Now), true), nil
}
