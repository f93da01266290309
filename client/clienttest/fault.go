// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"context"
	"path"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Method is a call to the ledger.
type Method string

// The methods that a worker calls.
const (
	Claim       Method = "Claim"
	Start       Method = "Start"
	Renew       Method = "Renew"
	Complete    Method = "Complete"
	MarkUnknown Method = "MarkUnknown"
	Lookup      Method = "Lookup"
	GetTool     Method = "GetTool"
)

// Fault is what goes wrong with one call.
type Fault int

// The faults.
const (
	// Unavailable: refused before anything was decided.
	Unavailable Fault = iota + 1
	// LostRequest: the call never arrives; the caller waits until its time is over.
	LostRequest
	// LostResponse: the call is decided and stored; the caller waits for the answer until its time is over.
	LostResponse
	// CrashBeforeCommit: the ledger goes down before anything was stored, until Restart.
	CrashBeforeCommit
	// CrashAfterCommit: the call is decided and stored, and the ledger goes down before it answers, until Restart.
	CrashAfterCommit
	// ForgetBefore: the ledger has forgotten, as by Forget, when the call arrives.
	ForgetBefore
	// ForgetAfter: the call is decided and answered, and what it has stored is forgotten, as by Forget.
	ForgetAfter
)

// Inject makes the next call of the method meet the fault; several meet the calls after it in their order.
func (l *Ledger) Inject(m Method, faults ...Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[m] = append(l.faults[m], faults...)
}

// Stop takes the ledger down: every call is refused with UNAVAILABLE. What is stored stays.
func (l *Ledger) Stop() { l.setDown(true) }

// Restart brings it up again.
func (l *Ledger) Restart() { l.setDown(false) }

func (l *Ledger) setDown(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
}

// Remember makes what is stored now survive what Forget loses. Without it, that is nothing.
func (l *Ledger) Remember() { l.store.remember() }

// Forget is a failover of the ledger's database that loses what was stored since Remember. The ledger notices it, as ledgerd does: what it
// still has and is not settled becomes unknown when it is next touched, and so does a key that comes anew and was intended before, unless
// its tool only reads.
func (l *Ledger) Forget() { l.store.forget(true) }

// ForgetUnnoticed is the same where nobody tells the ledger: what was lost is granted to whoever claims it next.
func (l *Ledger) ForgetUnnoticed() { l.store.forget(false) }

// Calls is how many calls of a method arrived, those that met a fault among them.
func (l *Ledger) Calls(m Method) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[m]
}

// next counts a call, and takes its fault.
func (l *Ledger) next(m Method) (fault Fault, down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls[m]++
	if planned := l.faults[m]; len(planned) > 0 && !l.down {
		fault, l.faults[m] = planned[0], planned[1:]
	}
	return fault, l.down
}

var errDown = status.Error(codes.Unavailable, "the ledger for tests is down")

func (l *Ledger) fail(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := Method(path.Base(info.FullMethod))
	if l.options.Arrived != nil {
		l.options.Arrived(method)
	}
	fault, down := l.next(method)
	switch {
	case down, fault == Unavailable:
		return nil, errDown
	case fault == CrashBeforeCommit:
		l.Stop()
		return nil, errDown
	case fault == LostRequest:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case fault == ForgetBefore:
		l.Forget()
	}
	answer, err := handler(ctx, req)
	if l.options.Decided != nil && err == nil {
		l.options.Decided(method)
	}
	switch fault {
	case LostResponse:
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	case CrashAfterCommit:
		l.Stop()
		return nil, errDown
	case ForgetAfter:
		l.Forget()
	}
	return answer, err
}
