// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const (
	// claimSends is how often a claim is sent whose answer does not come; gRPC's own resends of UNAVAILABLE come on top.
	claimSends = 3
	// claimDraws is how many claim ids one question may need: one that the ledger calls used up is drawn anew.
	claimDraws = 3
	// firstLookup and longestLookup are how long one Lookup may wait.
	firstLookup   = time.Second
	longestLookup = 10 * time.Second
	// leastLookup is the time that one must have left: a ledger refuses what it can hardly answer in time.
	leastLookup = 75 * time.Millisecond
	// firstPause and maxPause are the pauses between attempts to reach somebody.
	firstPause = 100 * time.Millisecond
	maxPause   = 2 * time.Second
	// personPause is the longest pause between looks at what waits for a person.
	personPause = 15 * time.Second
)

// claims asks the ledger for one operation until there is an answer to act on.
type claims struct {
	ledger  *Ledger
	request *opsledgerv1.ClaimRequest
	wait    time.Duration
	until   time.Duration // when the waiting ends, by the ledger's clock; 0: it has not begun
	last    *opsledgerv1.ClaimResponse
	rounds  int
}

func newClaims(l *Ledger, request *opsledgerv1.ClaimRequest, wait time.Duration) *claims {
	c := &claims{ledger: l, request: request, wait: wait}
	c.drawAnew()
	return c
}

// drawAnew draws the next claim id, in memory and at random. It never leaves this call of Do, and each grant that is received is used up
// by drawing the next one: so a grant that is marked as resent, too, has not been used.
func (c *claims) drawAnew() { c.request.ClaimId = uuid.NewString() }

// ask claims, and waits where somebody else has to move first, until the operation is granted, there is nothing to wait for, or
// the time is up. The time that it returns is the one right before the send that was answered: what is left in a grant counts from there.
func (c *claims) ask(ctx context.Context) (*opsledgerv1.ClaimResponse, time.Duration, error) {
	for draws := 1; ; {
		answer, sent, err := c.ledger.claim(ctx, c.request)
		switch {
		case err == nil && !waits(answer):
			c.last, c.rounds = nil, 0
			return answer, sent, nil
		case err == nil:
			c.last = answer
		case usedUp(err) && draws < claimDraws:
			draws++
			c.drawAnew()
			continue
		case c.last == nil || !passes(err) && ctx.Err() == nil:
			return nil, 0, err
		}
		if !c.patience(ctx, c.last, err != nil) {
			return c.last, 0, nil
		}
	}
}

// waits says whether it is worth waiting for: that somebody else moves it without anybody having sent something meanwhile that is
// not known to be there. An unknown outcome is one that a caller has to know at once, unless a person has it in hand.
func waits(answer *opsledgerv1.ClaimResponse) bool {
	switch reason, wait := reasonOf(answer); reason {
	case ReasonInProgress, ReasonAwaitingApproval, ReasonBlocked, ReasonWaiting:
		return true
	case ReasonUnknown:
		return wait.GetReason() == opsledgerv1.WaitReason_WAIT_REASON_HELD_BY_OPERATOR
	default:
		return false
	}
}

// usedUp: the claim id was granted before and is over, without this process having learned of it.
func usedUp(err error) bool {
	switch reasonGiven(err) {
	case opsledgerv1.ErrorReason_ERROR_REASON_STALE_GRANT, opsledgerv1.ErrorReason_ERROR_REASON_LEASE_OVER:
		return true
	default:
		return false
	}
}

// claim sends the claim until an answer comes.
func (l *Ledger) claim(ctx context.Context, c *opsledgerv1.ClaimRequest) (*opsledgerv1.ClaimResponse, time.Duration, error) {
	for n := 1; ; n++ {
		sent := l.now()
		call, cancel := context.WithTimeout(ctx, l.callTimeout)
		answer, err := l.service.Claim(call, c)
		cancel()
		lost := status.Code(err) == codes.DeadlineExceeded && ctx.Err() == nil
		if !lost || n == claimSends {
			return answer, sent, err
		}
	}
}

// patience waits until it is worth claiming again; false: the time for that is over. Away: the ledger was not there just now.
func (c *claims) patience(ctx context.Context, answer *opsledgerv1.ClaimResponse, away bool) bool {
	switch {
	case c.wait < 0:
		return false
	case c.wait == 0:
	default:
		if c.until == 0 {
			c.until = c.ledger.now() + c.wait
		}
		left := c.until - c.ledger.now()
		if left <= 0 {
			return false
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, left)
		defer cancel()
	}
	c.rounds++
	reason, wait := reasonOf(answer)
	if c.rounds > 1 && !pause(ctx, grown(c.rounds-2, maxPause)) { // an operation that comes and goes is not asked for without a pause
		return false
	}
	switch id := answer.GetOperation().GetId(); {
	case away:
		return pause(ctx, grown(c.rounds, maxPause))
	case id == "" || reason == ReasonBlocked: // nothing is stored, or it waits for another one: only a claim looks at that
		return pause(ctx, min(max(wait.GetRetryAfter().AsDuration(), grown(c.rounds, maxPause)), personPause))
	default:
		return c.look(ctx, answer)
	}
}

// look waits with Lookup until it no longer stands as it did, or until the time at which the ledger said to ask again. One Lookup waits
// until there is something to do; that an execution has become unknown is nothing to do, so each of them waits for a bounded time.
func (c *claims) look(ctx context.Context, answer *opsledgerv1.ClaimResponse) bool {
	_, stood := reasonOf(answer)
	until := c.ledger.now() + stood.GetRetryAfter().AsDuration()
	for n := 0; ; n++ {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < leastLookup {
			<-ctx.Done()
			return false
		}
		wait := grownFrom(firstLookup, n, longestLookup)
		if stood.GetRetryAfter() != nil {
			wait = max(min(wait, until-c.ledger.now()), 0)
		}
		asked := c.ledger.now()
		call, cancel := context.WithTimeout(ctx, c.ledger.callTimeout+wait)
		found, err := c.ledger.service.Lookup(call, &opsledgerv1.LookupRequest{
			Selector: &opsledgerv1.LookupRequest_OperationId{OperationId: answer.GetOperation().GetId()},
			Subject:  c.request.GetKey().GetSubject(), Wait: durationpb.New(wait),
		})
		cancel()
		person := found.GetNextAction() == opsledgerv1.NextAction_NEXT_ACTION_WAIT_FOR_PERSON
		over := stood.GetRetryAfter() != nil && c.ledger.now() >= until
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil && !passes(err), err == nil && (over || found.GetWaiting().GetReason() != stood.GetReason()):
			return true // a claim tells what it is
		case err == nil && !person && wait > 0 && c.ledger.now()-asked >= wait/2:
			continue
		}
		// A person takes longer than a server should hold a call for; and the ledger may be away, or drain and hold no call.
		if !pause(ctx, grown(n, personPause)) {
			return false
		}
	}
}

// grown is the pause after n attempts.
func grown(n int, most time.Duration) time.Duration { return grownFrom(firstPause, n, most) }

func grownFrom(first time.Duration, n int, most time.Duration) time.Duration {
	return min(first<<min(n, 10), most)
}

// pause waits; false: the context has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
