// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// system is what scenarios and properties run on: the decision alone, or the service over a store. A runner over a real store
// implements it with that store's harness.
type system interface {
	// apply sends one command about one operation and answers what its sender would see. It is decided once more, on a fresh
	// read, for as long as it only brought the row up to date.
	apply(id ledger.OperationID, cmd ledger.Command) (ledger.Answer, error)
	now() time.Time
	advance(d time.Duration)
	// read returns an operation and its history; nil: absent.
	read(id ledger.OperationID) (*ledger.Operation, []ledger.Event)
	// mark remembers what is stored; failOver loses what was stored since and begins a new timeline. A lossless one loses nothing,
	// and says so.
	mark()
	failOver(lossless bool)
}

// declared is a set of contracts that a test may correct.
type declared map[ledger.Tool]ledger.Contract

func (d declared) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	c, ok := d[tool]
	if !ok {
		return ledger.DefaultContract(tool), false
	}
	return c, true
}

// shelf is what a store keeps, without the guards of one.
type shelf struct {
	clock     time.Time
	set       time.Duration // how far the store's clock was set
	timeline  uint32
	watermark ledger.Watermark
	ops       map[ledger.OperationID]ledger.Operation
	events    map[ledger.OperationID][]ledger.Event
	slots     map[ledger.Slot]ledger.OperationID
	marked    *shelf
}

var shelfBegins = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func newShelf() *shelf {
	return &shelf{
		clock: shelfBegins, timeline: 1,
		ops: map[ledger.OperationID]ledger.Operation{}, events: map[ledger.OperationID][]ledger.Event{},
		slots: map[ledger.Slot]ledger.OperationID{},
	}
}

func (s *shelf) copied() *shelf {
	c := *s
	c.ops, c.events, c.marked = map[ledger.OperationID]ledger.Operation{}, maps.Clone(s.events), nil
	c.slots = maps.Clone(s.slots)
	for id := range s.ops {
		c.ops[id] = s.ops[id].Clone()
	}
	for id, events := range c.events {
		c.events[id] = slices.Clone(events)
	}
	return &c
}

func (s *shelf) now() time.Time          { return s.clock }
func (s *shelf) shown() time.Time        { return s.clock.Add(s.set) }
func (s *shelf) advance(d time.Duration) { s.clock = s.clock.Add(d) }
func (s *shelf) mark()                   { s.marked = s.copied() }

func (s *shelf) failOver(lossless bool) {
	s.timeline++
	if lossless {
		return
	}
	lost := s.marked
	if lost == nil {
		lost = newShelf()
	}
	lost = lost.copied()
	s.ops, s.events, s.slots = lost.ops, lost.events, lost.slots
	s.watermark = ledger.Watermark{At: s.shown(), LostSince: lost.shown()}
}

func (s *shelf) read(id ledger.OperationID) (*ledger.Operation, []ledger.Event) {
	op, ok := s.ops[id]
	if !ok {
		return nil, nil
	}
	c := op.Clone()
	return &c, slices.Clone(s.events[id])
}

// view reads in one go what a decision needs.
func (s *shelf) view(reads ledger.ReadSet) ledger.View {
	v := ledger.View{Now: s.shown(), Timeline: s.timeline, Watermark: s.watermark, Related: map[ledger.OperationID]ledger.Operation{}}
	current, events := s.read(reads.ID)
	v.Current = current
	for i := range events {
		if reads.CommandID != "" && events[i].CommandID == reads.CommandID {
			v.Prior = append(v.Prior, events[i])
		}
	}
	for _, id := range reads.Related {
		if op, _ := s.read(id); op != nil {
			v.Related[id] = *op
		}
	}
	v.Owners = s.owners(reads.Slots)
	if u := reads.Unknowns; u != nil {
		v.Unknowns = min(s.unknowns(u.Tool), u.Limit)
	}
	if q := reads.Siblings; q != nil {
		v.UnknownSiblings = s.siblings(reads.ID, *q)
	}
	return v
}

func (s *shelf) unknowns(tool ledger.Tool) int {
	n := 0
	for id := range s.ops {
		if op := s.ops[id]; op.Tool == tool && op.State == ledger.Unknown {
			n++
		}
	}
	return n
}

func (s *shelf) owners(slots []ledger.Slot) map[ledger.Slot]ledger.Operation {
	owners := map[ledger.Slot]ledger.Operation{}
	for _, slot := range slots {
		if id, ok := s.slots[slot]; ok {
			owners[slot] = s.ops[id].Clone()
		}
	}
	return owners
}

func (s *shelf) siblings(self ledger.OperationID, q ledger.Siblings) []ledger.OperationID {
	var found []ledger.OperationID
	for id := range s.ops {
		op := s.ops[id]
		subject := len(q.SubjectDigests) == 0 && len(op.SubjectDigest) == 0 ||
			slices.ContainsFunc(q.SubjectDigests, func(d []byte) bool { return slices.Equal(d, op.SubjectDigest) })
		if id != self && op.State == ledger.Unknown && op.Scope == q.Scope && op.Tool == q.Tool && op.Task == q.Task && subject {
			found = append(found, id)
		}
	}
	slices.SortFunc(found, func(a, b ledger.OperationID) int { return slices.Compare(a[:], b[:]) })
	return found
}

func (s *shelf) write(c ledger.Change) {
	if c.Next == nil {
		return
	}
	s.ops[c.Next.ID] = c.Next.Clone()
	if c.Event != nil {
		s.events[c.Next.ID] = append(s.events[c.Next.ID], *c.Event)
	}
	if c.Companion != nil {
		s.write(*c.Companion)
	}
	for _, slot := range c.Slots {
		if s.slots[slot.Slot] != slot.From {
			panic("a slot is taken from somebody else than its owner")
		}
		s.slots[slot.Slot] = c.Next.ID
	}
}

// decideSystem runs on the decision alone.
type decideSystem struct {
	*shelf
	contracts declared
}

func (s decideSystem) apply(id ledger.OperationID, cmd ledger.Command) (ledger.Answer, error) {
	for range 4 {
		v := s.view(ledger.ReadSet{ID: id, CommandID: idOf(cmd)})
		contract, _ := s.contracts.Contract(s.toolOf(id, cmd))
		change, answer, err := ledger.Decide(v.Current, s.related(id, v, cmd), cmd, contract, v.Now)
		if err != nil {
			return ledger.Answer{}, err
		}
		s.write(change)
		switch {
		case answer.Again:
		case answer.Hidden:
			return ledger.Answer{}, ledger.ErrOperationNotFound
		default:
			return answer, nil
		}
	}
	return ledger.Answer{}, ledger.ErrStoreUnavailable
}

func (s decideSystem) toolOf(id ledger.OperationID, cmd ledger.Command) ledger.Tool {
	if c, ok := cmd.(ledger.Claim); ok {
		return c.Key.Tool
	}
	return s.ops[id].Tool
}

func (s decideSystem) related(id ledger.OperationID, v ledger.View, cmd ledger.Command) ledger.Related {
	rel := ledger.Related{Timeline: v.Timeline, Watermark: v.Watermark, Prior: v.Prior}
	row := s.ops[id]
	switch c := cmd.(type) {
	case ledger.Claim:
		for _, u := range c.Slots {
			rel.Owners = s.owners(append(slices.Collect(maps.Keys(rel.Owners)), u.Slot))
		}
		row = ledger.Operation{
			Scope: c.Key.Scope, Tool: c.Key.Tool, Task: c.Key.Task, SubjectDigest: c.SubjectDigest,
			Compensates: c.Compensates, Corrects: c.Corrects, DependsOn: c.DependsOn,
		}
	case ledger.Start:
	default:
		return rel
	}
	contract, _ := s.contracts.Contract(row.Tool)
	rel.ToolSaturated = contract.MaxUnknown > 0 && s.unknowns(row.Tool) >= contract.MaxUnknown
	q := ledger.Siblings{Scope: row.Scope, Tool: row.Tool, Task: row.Task}
	if len(row.SubjectDigest) > 0 {
		q.SubjectDigests = [][]byte{row.SubjectDigest}
	}
	rel.UnknownSiblings = s.siblings(id, q)
	for _, dep := range row.DependsOn {
		rel.Dependencies = append(rel.Dependencies, s.ops[dep])
	}
	for _, original := range []ledger.OperationID{row.Compensates, row.Corrects} {
		op, _ := s.read(original)
		if op == nil {
			continue
		}
		rel.Original = op
		contract, _ := s.contracts.Contract(op.Tool)
		rel.OriginalContract = &contract
		rel.OriginalIrreversible = contract.Irreversible
		for _, other := range op.CompensatedBy {
			if o := s.ops[other]; other != id && o.State != ledger.Failed && o.State != ledger.Retired {
				rel.OtherCompensations = append(rel.OtherCompensations, other)
			}
		}
	}
	return rel
}

// idOf is the claim_id or command_id under which a command is asked for.
func idOf(cmd ledger.Command) string {
	switch c := cmd.(type) {
	case ledger.Claim:
		return string(c.ClaimID)
	case ledger.Start:
		return string(c.ClaimID)
	case ledger.Renew:
		return string(c.ClaimID)
	case ledger.Complete:
		return string(c.ClaimID)
	case ledger.MarkUnknown:
		return string(c.ClaimID)
	case ledger.Cancel:
		return string(c.ClaimID)
	case ledger.BeginCheck:
		return string(c.CommandID)
	case ledger.Reconcile:
		return string(c.CommandID)
	case ledger.TakeOver:
		return string(c.CommandID)
	case ledger.HandBack:
		return string(c.CommandID)
	case ledger.Resolve:
		return string(c.CommandID)
	case ledger.Approve:
		return string(c.CommandID)
	case ledger.CheckNow:
		return string(c.CommandID)
	case ledger.Note:
		return string(c.CommandID)
	default:
		return ""
	}
}

// memoryStore is an honest double of a store: one process, one lock, a clock that the test moves.
type memoryStore struct {
	mu    sync.Mutex
	shelf *shelf
}

var _ ledger.Store = (*memoryStore)(nil)

func (m *memoryStore) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ctx.Err() != nil {
		return ledger.ErrStoreUnavailable
	}
	change, err := decide(m.shelf.view(reads))
	if err != nil {
		return err
	}
	m.shelf.write(change)
	return nil
}

func (m *memoryStore) Get(_ context.Context, id ledger.OperationID) (ledger.Operation, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	op, _ := m.shelf.read(id)
	if op == nil {
		return ledger.Operation{}, time.Time{}, ledger.ErrOperationNotFound
	}
	return *op, m.shelf.shown(), nil
}

func (m *memoryStore) ByDownstreamKey(_ context.Context, key string) (ledger.OperationID, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.shelf.ops {
		if op := m.shelf.ops[id]; op.KeyHash.DownstreamKey() == key {
			return id, nil
		}
	}
	return ledger.OperationID{}, ledger.ErrOperationNotFound
}

func (m *memoryStore) Events(_ context.Context, id ledger.OperationID) ([]ledger.Event, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, events := m.shelf.read(id)
	return events, nil
}

// The service's decisions need no lists; the time is read by them.
func (m *memoryStore) List(context.Context, ledger.Listing) ([]ledger.Operation, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return nil, m.shelf.shown(), nil
}

func (m *memoryStore) Due(context.Context, ledger.DueQuery) (ledger.DuePage, error) {
	return ledger.DuePage{}, ledger.ErrStoreUnavailable
}

func (m *memoryStore) Ready(context.Context) error { return nil }
func (m *memoryStore) Close() error                { return nil }

// ledgerSystem runs on the service over a store in memory. Its clock and its failovers are the shelf's.
type ledgerSystem struct {
	*shelf
	served
}

func newLedgerSystem(contracts declared) ledgerSystem {
	s := newShelf()
	return ledgerSystem{shelf: s, served: served{ledger.New(&memoryStore{shelf: s}, contracts)}}
}

// served sends commands to the service.
type served struct{ service *ledger.Ledger }

func (s served) apply(id ledger.OperationID, cmd ledger.Command) (ledger.Answer, error) {
	if c, ok := cmd.(ledger.Claim); ok {
		digested := digestedRequest{fingerprint: c.Fingerprint, subject: c.SubjectDigest, slots: c.Slots}
		c.Fingerprint, c.SubjectDigest, c.Slots = ledger.Fingerprint{}, nil, nil
		return s.service.Claim(context.Background(), c, digested)
	}
	prepare := func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return cmd, nil }
	if start, ok := cmd.(ledger.Start); ok {
		return s.service.Start(context.Background(), id, start.ClaimID, prepare)
	}
	return s.service.Do(context.Background(), id, underID(cmd), prepare)
}

// underID is the claim_id or command_id of a command, if it has one.
func underID(cmd ledger.Command) string {
	v := reflect.ValueOf(cmd)
	for _, field := range []string{"ClaimID", "CommandID"} {
		if f := v.FieldByName(field); f.IsValid() {
			return f.String()
		}
	}
	return ""
}

// digestedRequest is a request whose digests are known.
type digestedRequest struct {
	fingerprint ledger.Fingerprint
	subject     []byte
	slots       []ledger.UniqueSlot
}

func (r digestedRequest) Slots() ([]ledger.UniqueSlot, error) { return r.slots, nil }

func (r digestedRequest) Fingerprint(*ledger.Fingerprint) (ledger.Fingerprint, error) {
	return r.fingerprint, nil
}

func (r digestedRequest) SubjectDigest(ledger.Fingerprint) ([]byte, error) { return r.subject, nil }

func (r digestedRequest) SubjectDigests() [][]byte {
	if len(r.subject) == 0 {
		return nil
	}
	return [][]byte{r.subject}
}
