// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"maps"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Call is what Execute is told about the grant. Its copies are the same call.
type Call struct {
	// OperationID is empty in a call without the ledger.
	OperationID string
	// Key goes to the target as the idempotency key: 32 lower-case hex digits, the same for the life of the operation. Empty in a call
	// without the ledger, which only reads.
	Key string
	// Epoch grows with each grant: a fencing token for targets that take one.
	Epoch uint64
	// Precondition is the resource version that a compensation must send along; nil otherwise.
	Precondition *opsledgerv1.ResourceRef

	hold *hold
}

// MaySend says whether the send window is still open and nothing was sent. It declares nothing: see [Call.Sending].
func (c Call) MaySend() bool { return c.hold != nil && c.hold.maySend() == nil }

// Sending declares that the request leaves this process now: call it right before the one send, and return [NotSent] of its error if
// it has one. That is [ErrWindowOver] (the process may have been stopped or the machine suspended since: the context notices up to 200 ms
// later), [ErrNotStarted] in Prepare, or why the execution was stopped. For a second send under one grant it is [ErrSentAlready], which
// makes the outcome unknown, also as [NotSent]: the first one may have left.
//
// From then on the execution's context ends with the lease instead of the send window, and a rejection is definite: it is the
// answer to the only send. Whoever sends by HTTP lets [OneSend] do all that.
func (c Call) Sending() error {
	if c.hold == nil {
		return ErrNoGrant
	}
	return c.hold.sending()
}

// SetAttribute adds a fact for status queries: the job id out of a 202, the request id out of a 504. Only names that the contract
// declares are kept, in clear. It goes to the ledger right away with a renewal of the lease, and with the report of an unknown outcome.
func (c Call) SetAttribute(name, value string) {
	if c.hold != nil {
		c.hold.setAttribute(valid(name), valid(value))
	}
}

// hold is one grant in the hands of one execution: its times, and what was sent under it.
type hold struct {
	now clock
	// poked tells the renewer that there is something new, stop ends the execution's context.
	poked chan struct{}
	stop  context.CancelCauseFunc

	mu          sync.Mutex
	started     bool
	sendEnd     time.Duration
	leaseEnd    time.Duration
	stopped     error
	sends       int  // that were let go
	connections int  // that they were written to, as far as anybody saw
	connecting  bool // what was let go waits for a connection: until then nothing has left, and the send window still counts
	retracted   bool // provably, not one byte of the send that was let go has left
	again       bool // another send was asked for after one that may have left
	attributes  map[string]string
	unsaid      map[string]string // attributes that the ledger has not got yet
}

func newHold(now clock) *hold { return &hold{now: now, poked: make(chan struct{}, 1)} }

// begin takes the times of a grant that was asked for at a time.
func (h *hold) begin(grant *opsledgerv1.Grant, sent time.Duration, started bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started = started
	h.leaseEnd = sent + grant.GetLease().AsDuration()
	if started {
		h.sendEnd = sent + grant.GetSendWithin().AsDuration()
	}
}

func (h *hold) maySend() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guard()
}

func (h *hold) guard() error {
	switch {
	case h.sends > 0:
		return ErrSentAlready
	case h.stopped != nil:
		return h.stopped
	case !h.started:
		return ErrNotStarted
	case h.sendEnd <= h.now():
		return ErrWindowOver
	default:
		return nil
	}
}

func (h *hold) sending() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.guard()
	if err == nil {
		h.sends++
	}
	h.again = h.again || err != nil && h.sends > 0 && !h.retracted
	return err
}

// sendingOn is sending through a transport that says when it has a connection.
func (h *hold) sendingOn() error {
	err := h.sending()
	if err == nil {
		h.mu.Lock()
		h.connecting = true
		h.mu.Unlock()
	}
	return err
}

// sent: something was let go before.
func (h *hold) sent() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sends > 0
}

// connected: what was let go is written to a connection now. One that comes after the send window changes nothing: the window still ends
// the execution.
func (h *hold) connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.connections++
	if h.sendEnd > h.now() {
		h.connecting = false
	}
}

// mayWrite is asked before the first byte of a request's body: a process that was stopped since it got the connection writes nothing.
func (h *hold) mayWrite() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.connecting && h.sendEnd <= h.now() {
		return ErrWindowOver
	}
	return nil
}

// neverLeft: the send that was let go had no connection. False: it had.
func (h *hold) neverLeft() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.retracted, h.connecting = h.connections == 0, false
	return h.retracted
}

// mayHaveLeft: a connection was seen, or one send was followed by the wish for another, whatever Execute says.
func (h *hold) mayHaveLeft() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.connections > 0 || h.again
}

// close ends the grant in this process: whoever still has its Call sends nothing more.
func (h *hold) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped == nil {
		h.stopped = ErrNoGrant
	}
}

// once says whether the request is known to have left exactly once.
func (h *hold) once() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.sends == 1 && !h.retracted && h.connections <= 1
}

func (h *hold) setAttribute(name, value string) {
	h.mu.Lock()
	if h.attributes == nil {
		h.attributes, h.unsaid = map[string]string{}, map[string]string{}
	}
	h.attributes[name], h.unsaid[name] = value, value
	h.mu.Unlock()
	select {
	case h.poked <- struct{}{}:
	default:
	}
}

func (h *hold) allAttributes() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.attributes)
}

// end is what ends the execution next, and how long it is until then.
func (h *hold) end() (time.Duration, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end, why := h.leaseEnd, error(ErrLeaseOver)
	if h.started && (h.sends == 0 || h.connecting) && h.sendEnd <= end {
		end, why = h.sendEnd, ErrWindowOver
	}
	return end - h.now(), why
}

func (h *hold) leaseLeft() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leaseEnd - h.now()
}

// over ends the execution; the first cause counts.
func (h *hold) over(why error) {
	h.mu.Lock()
	if h.stopped == nil {
		h.stopped = why
	}
	h.mu.Unlock()
	h.stop(why)
}

// watchInterval is how long after a suspension an execution may not have noticed that its time is over: timers count no suspension,
// so the clock is read again. [Call.Sending] reads it at once.
const watchInterval = 200 * time.Millisecond

// watch ends the context with the send window, or once something was sent with the lease.
func (h *hold) watch(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		left, why := h.end()
		if left <= 0 {
			h.over(why)
			return
		}
		timer.Reset(min(left, watchInterval))
	}
}

// The pauses between renewals are a third of what is left of the lease, within these.
const leastRenewal = 250 * time.Millisecond

// renew extends the lease while the execution runs, until the ledger says that it can't be or that the holder must stop.
func (h *hold) renew(ctx context.Context, a attempt, lease time.Duration) {
	request := &opsledgerv1.RenewRequest{OperationId: a.operation, ClaimId: a.claimID}
	if lease > 0 {
		request.Lease = durationpb.New(lease)
	}
	extend, failures := true, 0
	for {
		next := h.leaseLeft() / 3
		if failures > 0 {
			next = min(next, grown(failures, maxPause))
		}
		timer := time.NewTimer(max(next, leastRenewal))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			if !extend && failures == 0 {
				continue
			}
		case <-h.poked:
			timer.Stop()
		}
		h.mu.Lock()
		request.TargetAttributes = h.unsaid
		h.unsaid = map[string]string{}
		h.mu.Unlock()
		sent := h.now()
		call, cancel := context.WithTimeout(ctx, a.ledger.callTimeout)
		answer, err := a.ledger.service.Renew(call, request)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && ReasonOf(refused(err)) == opsledgerv1.ErrorReason_ERROR_REASON_STALE_GRANT:
			h.over(&StoppedError{Reason: opsledgerv1.WaitReason_WAIT_REASON_SUPERSEDED})
			return
		case err != nil:
			switch {
			case passes(err):
				h.unsay(request.GetTargetAttributes())
			case len(request.GetTargetAttributes()) == 0:
				return // the lease ends by itself
			} // else they are refused for their form, perhaps
			failures++
			continue
		}
		failures = 0
		h.renewed(sent, answer.GetLease().AsDuration())
		if answer.GetStop() {
			// A lease that can't be extended any more is still one until it ends.
			if answer.GetStopReason() != opsledgerv1.WaitReason_WAIT_REASON_LEASE_OVER || answer.GetLease().AsDuration() <= 0 {
				h.over(&StoppedError{Reason: answer.GetStopReason()})
				return
			}
			extend = false
		}
	}
}

// unsay keeps attributes for the next renewal that did not arrive with this one.
func (h *hold) unsay(attributes map[string]string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, value := range attributes {
		if _, newer := h.unsaid[name]; !newer {
			h.unsaid[name] = value
		}
	}
}

func (h *hold) renewed(sent, lease time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if lease > 0 {
		h.leaseEnd = sent + lease
	}
}

// execution is the context of Prepare and Execute. Its deadline, for transports that pass one on, moves as what ends it does.
type execution struct {
	context.Context
	hold *hold
}

// Deadline is the earlier of the parent's and the end of the send window or lease.
func (e execution) Deadline() (time.Time, bool) {
	left, _ := e.hold.end()
	at := time.Now().Add(left)
	if d, ok := e.Context.Deadline(); ok && d.Before(at) {
		at = d
	}
	return at, true
}

type holdKey struct{}

// Value finds the grant for [OneSend].
func (e execution) Value(key any) any {
	if key == (holdKey{}) {
		return e.hold
	}
	return e.Context.Value(key)
}

// keep makes the context of an execution, and watches and renews until release is called, which waits for the end of both. An attempt
// without an operation is one without the ledger: there is nothing to renew.
func (h *hold) keep(parent context.Context, a attempt, lease time.Duration) (ctx context.Context, release func()) {
	inner, stop := context.WithCancelCause(parent)
	h.stop = stop
	var running sync.WaitGroup
	running.Go(func() { h.watch(inner) })
	if a.operation != "" {
		running.Go(func() { h.renew(inner, a, lease) })
	}
	return execution{inner, h}, func() {
		h.close()
		stop(context.Canceled)
		running.Wait()
	}
}
