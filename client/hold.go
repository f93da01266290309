// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"

	"github.com/opsledger/opsledger/guard"
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
// answer to the only send. Whoever sends by HTTP lets [OneSend] do all that, and does not call it.
func (c Call) Sending() error {
	if c.hold == nil {
		return ErrNoGrant
	}
	return c.hold.sending(unfollowed)
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
	// poked tells the renewer that there is something new.
	poked chan struct{}
	// ctx is the execution's, whose cause is why it was stopped; stop ends it, and the first cause counts.
	ctx  context.Context
	stop context.CancelCauseFunc

	mu         sync.Mutex
	started    bool
	sendEnd    time.Duration
	leaseEnd   time.Duration
	sent       flight // what was let go, and what became of it
	again      bool   // another send was asked for after one that was let go
	forgotten  bool   // the ledger does not know the grant any more
	attributes map[string]string
	unsaid     map[string]string // attributes that the ledger has not got yet

	// Of a send that OneSend follows:
	connecting  bool // it waits for a connection: until then nothing has left, and the send window still counts
	connections int  // that it was written to, as far as anybody saw
	read        bool // its body was asked for, to be written
}

// flight is a send that was let go, as far as this process can follow it.
type flight int

const (
	none       flight = iota
	withdrawn         // not one byte of it has left, for certain
	unfollowed        // only Execute knows
	underWay
	unanswered
	answered
)

func newHold(now clock) *hold { return &hold{now: now, poked: make(chan struct{}, 1)} }

// begin takes the times of a grant that was asked for at a time. Unless it has started nothing may be sent until it is opened.
func (h *hold) begin(grant *opsledgerv1.Grant, sent time.Duration, started bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started = started
	if guard.FromSending.Off() {
		sent = h.now()
	}
	h.leaseEnd = sent + grant.GetLease().AsDuration()
	h.sendEnd = sent + grant.GetSendWithin().AsDuration()
}

// open lets the request be sent, if there is time left for that.
func (h *hold) open() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.started = true
	return h.closed()
}

func (h *hold) maySend() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.guard()
}

func (h *hold) guard() error {
	switch {
	case h.sent == withdrawn:
		return errNoConnection
	case h.sent != none:
		return ErrSentAlready
	case h.ctx.Err() != nil:
		return context.Cause(h.ctx)
	case !h.started:
		return ErrNotStarted
	default:
		return h.closed()
	}
}

// closed is why no byte may leave any more that has not left yet; nil: it may.
func (h *hold) closed() error {
	switch {
	case h.forgotten:
		return ErrGrantLost
	case h.sendEnd <= h.now():
		return ErrWindowOver
	default:
		return nil
	}
}

// lose: the ledger does not know the grant any more, and may give the operation to somebody else. What has not begun to be sent isn't any more.
// What has goes on, and so does an Execute that may have sent without saying so, each as long as it would have.
func (h *hold) lose() {
	h.mu.Lock()
	h.forgotten = true
	started := h.started
	h.mu.Unlock()
	if !started {
		h.stop(ErrGrantLost)
	}
}

// sending lets the one send go.
func (h *hold) sending(as flight) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	err := h.guard()
	if err == nil {
		h.sent = as
	}
	h.again = h.again || errors.Is(err, ErrSentAlready)
	return err
}

// seeking: net/http looks for a connection.
func (h *hold) seeking() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.connecting = h.connections == 0
}

// connected: what was let go is about to be written to a connection. An error says that it must not be: the execution was stopped, the send
// window is over, or net/http sends it again (resent), which it can't be kept from otherwise. Where whoever is told so can't see to it
// that not one byte is written, it may be.
func (h *hold) connected(resent, surely bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var why error
	switch {
	case h.ctx.Err() != nil:
		why = context.Cause(h.ctx)
	case h.connections > 0 && resent:
		why = ErrSentAlready
	default:
		if why = h.closed(); why == nil {
			h.connecting = false
		}
	}
	if why == nil || !surely {
		h.connections++
	}
	return why
}

// mayRead is asked before a request's body is read to be written: a process that was stopped since it got the connection writes none.
func (h *hold) mayRead() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.read:
		return nil
	case h.ctx.Err() != nil:
		return context.Cause(h.ctx)
	}
	if why := h.closed(); why != nil {
		return why
	}
	h.read = true
	return nil
}

// landed: the request has an answer.
func (h *hold) landed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent, h.connecting = answered, false
}

// lost: the request ended without an answer. It never left if whoever looks for a connection says so (traced), and none came.
func (h *hold) lost(traced bool) (neverLeft bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent, h.connecting = unanswered, false
	if traced && h.connections == 0 && !h.read {
		h.sent = withdrawn
	}
	return h.sent == withdrawn
}

// contradicts says whether something speaks against it that nothing was sent: a connection or an answer was seen, a request is under way,
// one send was followed by the wish for another, or it is said of one request and there was another.
func (h *hold) contradicts(n *notSentError) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch h.sent {
	case none, withdrawn:
		return false
	case underWay, answered:
		return true
	default:
		return h.connections > 0 || h.read || h.again || n.one
	}
}

// once says whether the request is known to have left exactly once, so that what Execute says of it is about that.
func (h *hold) once() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return (h.sent == unfollowed || h.sent == answered) && !h.again && h.connections <= 1
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
	if h.started && (h.sent == none || h.connecting) && h.sendEnd <= end {
		end, why = h.sendEnd, ErrWindowOver
	}
	return end - h.now(), why
}

func (h *hold) leaseLeft() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.leaseEnd - h.now()
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
			h.stop(why)
			return
		}
		timer.Reset(min(left, watchInterval))
	}
}

// The pauses between renewals are a third of what is left of the lease, within these.
const leastRenewal = 250 * time.Millisecond

// renew extends the lease while the execution runs, until the ledger says that it can't be or that the holder must stop.
func (h *hold) renew(ctx context.Context, a *attempt, lease time.Duration) {
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
		case err != nil && reasonGiven(err) == opsledgerv1.ErrorReason_ERROR_REASON_STALE_GRANT:
			h.stop(&StoppedError{Reason: opsledgerv1.WaitReason_WAIT_REASON_SUPERSEDED})
			return
		case lost(err):
			h.lose()
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
				h.stop(&StoppedError{Reason: answer.GetStopReason()})
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

// holdKey finds the grant in the context of an execution, for [OneSend].
type holdKey struct{}

// keep makes the context of an execution, and watches and renews until release is called, which waits for the end of both. An attempt
// without an operation is one without the ledger: there is nothing to renew.
func (h *hold) keep(parent context.Context, a *attempt, lease time.Duration) (ctx context.Context, release func()) {
	h.ctx, h.stop = context.WithCancelCause(parent)
	var running sync.WaitGroup
	running.Go(func() { h.watch(h.ctx) })
	if a.operation != "" {
		running.Go(func() { h.renew(h.ctx, a, lease) })
	}
	return context.WithValue(h.ctx, holdKey{}, h), func() {
		h.stop(ErrNoGrant) // whoever still has its Call sends nothing more
		running.Wait()
	}
}
