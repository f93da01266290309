// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/rpc"
	"github.com/opsledger/opsledger/recovery"
)

// owners are the EvidenceServices of tools' owners, which are asked with this process' own certificate. There is one connection for each address,
// from when it is first asked until the process ends.
type owners struct {
	material authz.MaterialSource // nil: the process has none, and nobody can be asked
	allowed  recovery.Allowed

	mu    sync.Mutex
	known map[string]*owner
}

// owner is one of them.
type owner struct {
	rpc.Owner
	conn *grpc.ClientConn
	// denied: its address was not to be connected to, when that was last tried.
	denied atomic.Bool
}

// mostAnswered bounds one answer, in bytes.
const mostAnswered = 1 << 20

// Why an owner's service is not asked.
var (
	errNoIdentity = &rpc.Unanswered{Cause: ledger.QueryNotAuthorized, Why: "this process has no certificate to show to it: --tls-cert, --tls-key and --tls-ca"}
	errPlace      = &rpc.Unanswered{Cause: ledger.QueryNotAuthorized, Why: "its address is inside of the operator's network, and probe-allow does not list it"}
	errTarget     = &rpc.Unanswered{Cause: ledger.QueryNotUnderstood, Why: "its address can't be read"}
)

// at is the service at an address.
func (o *owners) at(target string) (*owner, error) {
	if o.material == nil {
		return nil, errNoIdentity
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if known := o.known[target]; known != nil {
		return known, nil
	}
	made := &owner{}
	// The dialer resolves the name itself, and judges what it connects to; it goes through no proxy.
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(target, "dns:///"),
		grpc.WithTransportCredentials(credentials.NewTLS(authz.ClientTLS(o.material, ""))),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			conn, err := o.allowed.Dial(ctx, "tcp", address)
			made.denied.Store(errors.Is(err, recovery.ErrPlace))
			return conn, err
		}),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswered)),
	)
	if err != nil {
		return nil, errTarget
	}
	made.Owner, made.conn = rpc.NewOwner(conn), conn
	if o.known == nil {
		o.known = map[string]*owner{}
	}
	o.known[target] = made
	return made, nil
}

// close hangs up.
func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, known := range o.known {
		_ = known.conn.Close()
	}
	clear(o.known)
}

// why a call has told nothing: a connection that was not to be made looks like one that was lost.
func (o *owner) why(err error) *rpc.Unanswered {
	var u *rpc.Unanswered
	if !errors.As(err, &u) || u.Cause == ledger.QueryUnavailable && o != nil && o.denied.Load() {
		return errPlace
	}
	return u
}

// ownerProbe asks the owner's service what became of an operation.
type ownerProbe struct {
	target   string
	owners   *owners
	contract ledger.Contract
}

// Ask calls it once.
func (p ownerProbe) Ask(ctx context.Context, op *ledger.Operation) recovery.Verdict {
	return p.ask(ctx, rpc.Question{
		OperationID: op.ID.String(), DownstreamKey: op.KeyHash.DownstreamKey(), Tool: op.Tool, Attributes: op.TargetAttributes,
		FirstGrant: op.FirstStart, LastGrant: op.Grant.Time, Epoch: op.Grant.Epoch,
	})
}

func (p ownerProbe) ask(ctx context.Context, q rpc.Question) recovery.Verdict {
	var v recovery.Verdict
	service, err := p.owners.at(p.target)
	if err == nil {
		v.Evidence, v.Observed, err = service.Probe(ctx, q, p.contract)
	}
	if err != nil {
		u := service.why(err)
		v = unanswered(u.Cause, u.Why)
		v.Evidence.RetryAfter = u.After
	}
	return v
}

// ownerInspector asks it about what an operation left.
type ownerInspector struct {
	target string
	owners *owners
}

// Inspect calls it once.
func (i ownerInspector) Inspect(ctx context.Context, original *ledger.Operation) recovery.Look {
	left := original.Result.Resource
	version, gone := "", false
	service, err := i.owners.at(i.target)
	if err == nil {
		version, gone, err = service.Inspect(ctx, original.Tool, left, original.TargetAttributes)
	}
	switch outcome, current := contract.Compare(left, version); {
	case err != nil:
		u := service.why(err)
		return recovery.Look{Outcome: ledger.InspectIndeterminate, Current: current, Cause: u.Cause, RetryAfter: u.After, Why: u.Why}
	case gone:
		return recovery.Look{Outcome: ledger.InspectGone, Current: current}
	default:
		return recovery.Look{Outcome: outcome, Current: current}
	}
}
