// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"
)

// Contracts says which contract is in force for a tool now. A tool without one gets DefaultContract; declared tells which it was.
type Contracts interface {
	Contract(tool Tool) (c Contract, declared bool)
}

// Request digests one request. The versions that a record was made with judge later requests under its key, so a request can be
// digested again under those.
type Request interface {
	// Fingerprint under the versions of a record; nil: under those that new records get. ErrRecordTooNew if it can't; a Lacking if it
	// could after what that fetches. It does no I/O.
	Fingerprint(like *Fingerprint) (Fingerprint, error)
	// SubjectDigest keyed with the secret that a fingerprint names; empty without a subject.
	SubjectDigest(f Fingerprint) ([]byte, error)
	// SubjectDigests under each secret of the ring, to find other operations of the subject; empty without a subject.
	SubjectDigests() [][]byte
	// Slots that the unique rules of the contract in force ask for. A request that does not fit the contract has none: it may be one that an
	// earlier contract has judged, and as a new one it is refused by Fingerprint.
	Slots() ([]UniqueSlot, error)
}

// Lacking is the error of a decision that rests on what only I/O can bring, which no decision does. It wrote nothing; Fetch is called outside
// of it, and it is decided anew.
type Lacking struct {
	// Fetch brings what was lacking, so that the next decision has it. Its error is the command's.
	Fetch func(ctx context.Context) error
}

func (*Lacking) Error() string { return "the decision lacks what has to be fetched before it" }

// May says whether somebody may know of an operation: nil, or a Refusal.
type May func(op *Operation) error

// Prepare makes a command out of the operation as it stands and the contract in force, or refuses its sender. It runs in the
// transaction of the decision, possibly several times, and does no I/O: what it would need that for it asks for by a Lacking.
type Prepare func(op *Operation, c Contract) (Command, error)

// Ledger is the service: read, decide, write if nobody was faster, answer. It holds no state but who waits for what.
type Ledger struct {
	store     Store
	contracts Contracts
	clock     *Clock // nil: the store's is believed
	waiters   waiters
}

// New makes a service on a store.
func New(store Store, contracts Contracts) *Ledger {
	return &Ledger{store: store, contracts: contracts, waiters: newWaiters()}
}

// Watching makes the service notice jumps of the store's clock, and not be deceived by them. It is called before all else.
func (l *Ledger) Watching(c *Clock) *Ledger {
	l.clock = c
	return l
}

// Jumped returns what says by how much the store's clock was set forward since it had shown a time, as far as this process has noticed, given what it
// shows now. The store is asked for that after Jumped was called.
func (l *Ledger) Jumped() func(now, since time.Time) time.Duration {
	asked := l.clock.now()
	return func(now, since time.Time) time.Duration { return l.clock.read(asked, now).gained(since) }
}

// decideLimit bounds how often one command may have to bring a row up to date, or to fetch what it lacks, before it is decided itself.
const decideLimit = 5

// Claim decides a Claim; its Fingerprint, SubjectDigest and Slots are taken from the request.
func (l *Ledger) Claim(ctx context.Context, c Claim, request Request) (Answer, error) {
	var err error
	if c.Slots, err = request.Slots(); err != nil {
		return Answer{}, err
	}
	hash := c.Key.Hash()
	reads := ReadSet{ID: hash.OperationID(), CommandID: string(c.ClaimID), Related: related(c), MayCreate: true, Siblings: &Siblings{
		Scope: c.Key.Scope, Tool: c.Key.Tool, Task: c.Key.Task, SubjectDigests: request.SubjectDigests(),
	}}
	reads.Unknowns = l.unknowns(c.Key.Tool)
	if own, _ := l.contracts.Contract(c.Key.Tool); c.IntentTime.IsZero() && c.asksForgotten(own, time.Time{}) {
		reads.Forgotten = c.Key.Tool
	}
	for _, u := range c.Slots {
		reads.Slots = append(reads.Slots, u.Slot)
	}
	return l.decide(ctx, reads, func(v View) (Command, Contract, error) {
		cmd := c
		var like *Fingerprint
		if v.Current != nil {
			if v.Current.KeyHash != hash {
				return nil, Contract{}, errHashCollision
			}
			like = &v.Current.Fingerprint
		}
		f, err := request.Fingerprint(like)
		if err != nil {
			return nil, Contract{}, err
		}
		contract, _ := l.contracts.Contract(c.Key.Tool)
		if like == nil && f.Contract == "" { // the request may know better: contracts change while it is on its way
			f.Contract = contract.Version
		}
		cmd.Fingerprint = f
		if cmd.SubjectDigest, err = request.SubjectDigest(f); err != nil {
			return nil, Contract{}, err
		}
		if err := visible(c, v, request); err != nil {
			return nil, Contract{}, err
		}
		return cmd, contract, nil
	})
}

// unknowns are counted of a tool only whose contract bounds them.
func (l *Ledger) unknowns(tool Tool) *Unknowns {
	if contract, _ := l.contracts.Contract(tool); contract.MaxUnknown > 0 {
		return &Unknowns{Tool: tool, Limit: contract.MaxUnknown}
	}
	return nil
}

// errHashCollision can't happen while SHA-256 holds: two keys whose first 122 bits are equal.
var errHashCollision = errors.New("two keys have one operation id")

func related(c Claim) []OperationID {
	ids := append([]OperationID(nil), c.DependsOn...)
	for _, id := range []OperationID{c.Compensates, c.Corrects} {
		if !id.IsZero() {
			ids = append(ids, id)
		}
	}
	return ids
}

// visible refuses relations to what the caller can't see, the same as to what does not exist.
func visible(c Claim, v View, request Request) error {
	for _, id := range related(c) {
		op, ok := v.Related[id]
		if !ok && v.Current.refersTo(id) { // it was seen when that was written, and has been forgotten since
			continue
		}
		ownSubject := len(op.SubjectDigest) == 0 ||
			slices.ContainsFunc(request.SubjectDigests(), func(d []byte) bool { return bytes.Equal(d, op.SubjectDigest) })
		if !ok || op.Scope != c.Key.Scope || !ownSubject {
			field := "depends_on"
			switch id {
			case c.Compensates:
				field = "compensates"
			case c.Corrects:
				field = "corrects"
			}
			return InvalidField(field, "must name operations that the caller can see")
		}
	}
	return nil
}

// Do decides any other command about one operation. The command's own claim_id or command_id is given beside it, because earlier events
// under it are read before the command is made.
func (l *Ledger) Do(ctx context.Context, id OperationID, commandID string, prepare Prepare) (Answer, error) {
	return l.do(ctx, ReadSet{ID: id, CommandID: commandID}, prepare)
}

// Start decides a Start. Its guards look at other operations, which the row names: what it names never changes.
func (l *Ledger) Start(ctx context.Context, id OperationID, claimID ClaimID, prepare Prepare) (Answer, error) {
	op, _, err := l.store.Get(ctx, id)
	if err != nil {
		return Answer{}, err
	}
	reads := ReadSet{
		ID: id, CommandID: string(claimID),
		Related:  related(Claim{DependsOn: op.DependsOn, Compensates: op.Compensates, Corrects: op.Corrects}),
		Siblings: &Siblings{Scope: op.Scope, Tool: op.Tool, Task: op.Task},
		Unknowns: l.unknowns(op.Tool),
	}
	if len(op.SubjectDigest) > 0 {
		reads.Siblings.SubjectDigests = [][]byte{op.SubjectDigest}
	}
	return l.do(ctx, reads, prepare)
}

func (l *Ledger) do(ctx context.Context, reads ReadSet, prepare Prepare) (Answer, error) {
	return l.decide(ctx, reads, func(v View) (Command, Contract, error) {
		if v.Current == nil {
			return nil, Contract{}, &Refusal{Err: ErrOperationNotFound}
		}
		contract, _ := l.contracts.Contract(v.Current.Tool)
		cmd, err := prepare(v.Current, contract)
		return cmd, contract, err
	})
}

// decide runs a command against the store until it is decided itself.
func (l *Ledger) decide(ctx context.Context, reads ReadSet, prepare func(View) (Command, Contract, error)) (Answer, error) {
	for range decideLimit {
		var answer Answer
		var changed bool
		asked := l.clock.now()
		err := l.store.Update(ctx, reads, func(v View) (Change, error) {
			cmd, contract, err := prepare(v)
			if err != nil {
				return Change{}, err
			}
			if err := complete(v, reads, cmd, contract); err != nil {
				return Change{}, err
			}
			if r, ok := cmd.(Retire); ok {
				cmd = Retire{Actor: r.Actor, Referenced: r.Referenced || referenced(v)}
			}
			related := l.relatedTo(v, reads, cmd, contract)
			related.Jumps = l.clock.read(asked, v.Now)
			var change Change
			change, answer, err = Decide(v.Current, related, cmd, contract, v.Now)
			changed = change.Next != nil
			return change, err
		})
		if more := (*unread)(nil); errors.As(err, &more) {
			reads.Related = slices.Concat(reads.Related, more.ids)
			reads.Forgotten = more.forgotten
			continue
		}
		if lacking := (*Lacking)(nil); errors.As(err, &lacking) {
			if err := lacking.Fetch(ctx); err != nil {
				return Answer{}, err
			}
			continue
		}
		if err != nil {
			return Answer{}, err
		}
		if changed {
			l.waiters.wake(reads.ID)
		}
		switch {
		case answer.Again:
		case answer.Hidden:
			return Answer{}, &Refusal{Err: ErrOperationNotFound}
		default:
			return answer, nil
		}
	}
	return Answer{}, &Refusal{Err: ErrStoreUnavailable, RetryAfter: time.Second}
}

// unread ends a decision that needs operations which only what was read could name: they are read, too, and it is decided anew. The original's row
// names all its compensations, and one more is a change of that row, by which a write that has missed it is lost.
type unread struct {
	ids       []OperationID
	forgotten Tool
}

func (u *unread) Error() string { return "more has to be read" }

// others are the compensations of the same original.
func others(v View, reads ReadSet, original OperationID) []OperationID {
	return without(v.Related[original].CompensatedBy, []OperationID{reads.ID})
}

// complete tells what has to be read besides.
func complete(v View, reads ReadSet, cmd Command, own Contract) error {
	_, compensates, _ := relations(v, cmd)
	more := &unread{others(v, reads, compensates), reads.Forgotten}
	switch c := cmd.(type) {
	case Claim:
		if v.Current == nil && c.asksForgotten(own, v.Now) {
			more.forgotten = c.Key.Tool
		}
	case Retire:
		more.ids = v.Current.CompensatedBy
	}
	if more.ids = without(more.ids, reads.Related); len(more.ids) > 0 || more.forgotten != reads.Forgotten {
		return more
	}
	return nil
}

// referenced reports whether a compensation may still need its original.
func referenced(v View) bool {
	return slices.ContainsFunc(v.Current.CompensatedBy, func(id OperationID) bool { op, ok := v.Related[id]; return ok && op.live() })
}

// relations of the operation that a Claim or Start may grant.
func relations(v View, cmd Command) (dependsOn []OperationID, compensates, corrects OperationID) {
	switch c := cmd.(type) {
	case Claim:
		return c.DependsOn, c.Compensates, c.Corrects
	case Start:
		return v.Current.DependsOn, v.Current.Compensates, v.Current.Corrects
	default:
		return nil, OperationID{}, OperationID{}
	}
}

// relatedTo turns what was read into what a decision needs.
func (l *Ledger) relatedTo(v View, reads ReadSet, cmd Command, own Contract) Related {
	rel := Related{Timeline: v.Timeline, Watermark: v.Watermark, Forgotten: v.Forgotten, Prior: v.Prior, UnknownSiblings: v.UnknownSiblings, Owners: v.Owners}
	rel.ToolSaturated = own.MaxUnknown > 0 && v.Unknowns >= own.MaxUnknown
	switch c := cmd.(type) {
	case Claim:
		rel.ToolPaused = v.Paused.Has(c.Key.Tool)
	case Start:
		rel.ToolPaused = v.Paused.Has(v.Current.Tool)
	}
	deps, compensates, corrects := relations(v, cmd)
	for _, id := range deps {
		dep, ok := v.Related[id]
		if !ok && v.Current != nil && v.Current.Attempts > 0 { // it had completed when that was granted, and has been forgotten since
			continue
		}
		rel.Dependencies = append(rel.Dependencies, dep)
	}
	if op, ok := v.Related[firstOf(compensates, corrects)]; ok {
		contract, _ := l.contracts.Contract(op.Tool)
		rel.Original, rel.OriginalContract, rel.OriginalIrreversible = &op, &contract, contract.Irreversible
	}
	for _, id := range others(v, reads, compensates) {
		if op, ok := v.Related[id]; !ok || op.counts() { // what has been forgotten may have had an effect
			rel.OtherCompensations = append(rel.OtherCompensations, id)
		}
	}
	return rel
}

func firstOf(a, b OperationID) OperationID {
	if a.IsZero() {
		return b
	}
	return a
}

// Look reads one operation and how it stands. It writes nothing.
func (l *Ledger) Look(ctx context.Context, id OperationID, may May) (Operation, Standing, error) {
	op, now, err := l.store.Get(ctx, id)
	if err != nil {
		return Operation{}, Standing{}, err
	}
	if err := may(&op); err != nil {
		return Operation{}, Standing{}, err
	}
	contract, _ := l.contracts.Contract(op.Tool)
	return op, Stand(&op, contract, now), nil
}

// ByDownstreamKey finds an operation by what its target knows of it.
func (l *Ledger) ByDownstreamKey(ctx context.Context, key string) (OperationID, error) {
	return l.store.ByDownstreamKey(ctx, key)
}

// List returns a page of operations of one scope, with the store's time.
func (l *Ledger) List(ctx context.Context, q Listing) ([]Operation, time.Time, error) {
	return l.store.List(ctx, q)
}

// Events returns the history of one operation.
func (l *Ledger) Events(ctx context.Context, id OperationID) ([]Event, error) {
	return l.store.Events(ctx, id)
}

// Contract in force for a tool, and whether it is declared.
func (l *Ledger) Contract(tool Tool) (Contract, bool) { return l.contracts.Contract(tool) }
