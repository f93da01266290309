// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// toolCache remembers of tools that only read what is needed to execute them without the ledger, for as long as it allowed.
type toolCache struct {
	mu    sync.Mutex
	reads map[string]readTool
}

type readTool struct {
	sendWithin, lease time.Duration
	fresh, until      time.Duration // by the ledger's clock
}

func (c *toolCache) get(tool string) readTool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads[tool]
}

func (c *toolCache) put(tool string, t readTool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reads == nil {
		c.reads = map[string]readTool{}
	}
	c.reads[tool] = t
}

// Tool asks what a client needs of a tool's contract, and remembers that the tool only reads as long as the ledger vouches for it: until
// then, [Do] executes it also while the ledger can't be reached. Do itself asks when it executes such a tool; a process that wants to
// know it from the beginning asks at its start. An error is an [*Error].
func (l *Ledger) Tool(ctx context.Context, tool string) (*opsledgerv1.GetToolResponse, error) {
	sent := l.now()
	call, cancel := context.WithTimeout(ctx, l.callTimeout)
	defer cancel()
	answer, err := l.service.GetTool(call, &opsledgerv1.GetToolRequest{Tool: tool})
	if err != nil {
		return nil, refused(callTool, err)
	}
	if answer.GetEffect() == opsledgerv1.Effect_EFFECT_READ {
		vouched := answer.GetValidFor().AsDuration()
		l.tools.put(tool, readTool{
			sendWithin: answer.GetSendWithin().AsDuration(), lease: answer.GetMaxLease().AsDuration(),
			fresh: sent + vouched/2, until: sent + vouched,
		})
	} else {
		l.tools.put(tool, readTool{})
	}
	return answer, nil
}

// learnTimeout is the most that asking for a tool may add to a call, which goes on meanwhile.
const learnTimeout = 2 * time.Second

// learning asks for the tool of a call beside it.
type learning struct {
	ledger  *Ledger
	running sync.WaitGroup
	asked   bool
}

func (l *Ledger) learning() *learning { return &learning{ledger: l} }

// ask asks for the tool if the ledger shows that it only reads and what is known of it is getting old.
func (n *learning) ask(ctx context.Context, op *opsledgerv1.Operation) {
	if n.asked || op.GetEffect() != opsledgerv1.Effect_EFFECT_READ || n.ledger.now() < n.ledger.tools.get(op.GetTool()).fresh {
		return
	}
	n.asked = true
	n.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), learnTimeout)
		defer cancel()
		// Not to know it only means to fail closed later.
		_, _ = n.ledger.Tool(ctx, op.GetTool())
	})
}

func (n *learning) wait() { n.running.Wait() }

// withoutLedger executes what only reads while the ledger can't be reached. Not done: it is another failure, or another tool.
func (r *run[Req, Res]) withoutLedger(ctx context.Context, away error) (out Outcome[Res], done bool, _ error) {
	known, now := r.ledger.tools.get(r.effect.Tool), r.ledger.now()
	if r.earlier != nil || !passes(away) || ctx.Err() != nil || known.until <= now || !loosest(r.effect.Hint) {
		return out, false, nil
	}
	grant := &opsledgerv1.Grant{SendWithin: durationpb.New(known.sendWithin), Lease: durationpb.New(known.lease)}
	h := newHold(r.ledger.now)
	h.begin(grant, now, r.effect.Prepare == nil)
	within, release := h.keep(ctx, &attempt{}, 0)
	call := callOf(grant, h)
	req, err := r.prepare(within, call, release)
	if err == nil {
		err = h.open()
	}
	if err != nil {
		release()
		return out, true, unsent(err)
	}
	value, err := r.execute(within, call, req, release)
	release()
	if err == nil {
		return Outcome[Res]{done: &Done[Res]{Value: value, HasValue: true, WithoutLedger: true}}, true, nil
	}
	switch s := saidBy(within, err); {
	case s.never != nil && !h.contradicts(s.never):
		return out, true, unsent(s.never.err)
	case s.rejected != nil && s.rejected.definite():
		return Outcome[Res]{rejected: &Rejection{Failure: s.rejected.failure, WithoutLedger: true}}, true, nil
	default:
		return Outcome[Res]{unknown: &Unknown{Reason: ReasonUnknown, WithoutLedger: true, Cause: toldCause(s.err)}}, true, nil
	}
}

// loosest: a hint that does not make the tool more than one that reads.
func loosest(hint opsledgerv1.Effect) bool { return hint <= opsledgerv1.Effect_EFFECT_READ }
