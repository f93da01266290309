// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// rows are what is written, and a mutex.
type rows struct {
	mu     sync.Mutex
	offset time.Duration // of the clock
	written

	// What is left after a failover, and what it makes known.
	kept      written
	keptAt    time.Time
	timeline  uint32
	watermark ledger.Watermark
}

// written is all that the store was told.
type written struct {
	ops    map[ledger.OperationID]ledger.Operation
	events map[ledger.OperationID][]ledger.Event
	slots  map[ledger.Slot]ledger.OperationID
}

func newRows() *rows {
	r := &rows{timeline: 1, written: written{
		ops: map[ledger.OperationID]ledger.Operation{}, events: map[ledger.OperationID][]ledger.Event{}, slots: map[ledger.Slot]ledger.OperationID{},
	}}
	r.kept = r.copied()
	return r
}

func (w written) copied() written {
	c := written{ops: make(map[ledger.OperationID]ledger.Operation, len(w.ops)), events: maps.Clone(w.events), slots: maps.Clone(w.slots)}
	for id := range w.ops {
		op := w.ops[id]
		c.ops[id] = op.Clone()
	}
	for id, all := range c.events {
		c.events[id] = slices.Clip(all) // both go on from here
	}
	return c
}

// store is an honest ledger.Store on them, but that nothing of it survives the process: it passes the suite of all stores.
type store struct {
	*rows
	move   func(time.Time) time.Time
	closed atomic.Bool
}

func (r *rows) open(move func(time.Time) time.Time) *store { return &store{rows: r, move: move} }

func (s *store) now() time.Time {
	now := time.Now().Add(s.offset)
	if s.move != nil {
		now = s.move(now)
	}
	return now.UTC().Truncate(time.Microsecond)
}

func (s *store) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
}

// remember makes what is written now survive what is lost later.
func (s *store) remember() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept, s.keptAt = s.copied(), s.now()
}

// forget loses what was written since.
func (s *store) forget(noticed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = s.kept.copied()
	if noticed {
		s.timeline++
		s.watermark = ledger.Watermark{At: s.now(), LostSince: s.keptAt}
	}
}

// enter takes the lock for one call.
func (s *store) enter(ctx context.Context) (leave func(), err error) {
	if s.closed.Load() {
		return nil, fmt.Errorf("%w: it is closed", ledger.ErrStoreUnavailable)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ledger.ErrStoreUnavailable, err)
	}
	s.mu.Lock()
	return s.mu.Unlock, nil
}

// Update implements ledger.Store. All of it happens under the lock, so no race is ever lost.
func (s *store) Update(ctx context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	view := s.view(reads)
	change, err := decide(view)
	if err != nil || change.Next == nil {
		return err
	}
	if err := s.check(reads.ID, view, change); err != nil {
		return err
	}
	s.write(change)
	return nil
}

// check refuses what does not fit what was read.
func (s *store) check(id ledger.OperationID, view ledger.View, c ledger.Change) error {
	if c.Next.ID != id {
		return errMisfit
	}
	if c.Companion != nil {
		was, ok := view.Related[c.Companion.Next.ID]
		if !ok || c.Companion.Companion != nil || c.Companion.Next.ID == id {
			return errMisfit
		}
		if err := s.follows(&was, *c.Companion); err != nil {
			return err
		}
	}
	for _, taken := range c.Slots {
		switch {
		case c.Event == nil, view.Owners[taken.Slot].ID != taken.From:
			return errMisfit
		case s.slots[taken.Slot] != taken.From:
			return errTaken
		}
	}
	return s.follows(view.Current, c)
}

var (
	errTaken     = fmt.Errorf("%w: the slot is somebody else's", ledger.ErrStoreUnavailable)
	errMisfit    = errors.New("clienttest: the change does not fit what was read")
	errCommanded = fmt.Errorf("%w: this command is in the history", ledger.ErrStoreUnavailable)
)

// follows refuses a change of one row that does not follow what it was, or that no row can have.
func (s *store) follows(was *ledger.Operation, c ledger.Change) error {
	next, e := c.Next, c.Event
	sequence := uint64(0)
	if was != nil {
		sequence = was.Sequence
	}
	switch {
	case was != nil && was.KeyHash != next.KeyHash, was == nil && e == nil, e == nil && next.Sequence != sequence,
		next.State < ledger.Received || next.State > ledger.Retired:
		return errMisfit
	case e == nil:
		return nil
	case e.OperationID != next.ID, e.Sequence != next.Sequence, e.Hash != next.LastHash, e.Sequence != sequence+1:
		return errMisfit
	}
	if e.CommandID != "" && slices.ContainsFunc(s.events[next.ID], func(o ledger.Event) bool {
		return o.CommandID == e.CommandID && o.Command == e.Command && o.CommandDigest == e.CommandDigest
	}) {
		return errCommanded
	}
	return nil
}

func (s *store) view(reads ledger.ReadSet) ledger.View {
	v := ledger.View{Now: s.now(), Timeline: s.timeline, Watermark: s.watermark, Related: map[ledger.OperationID]ledger.Operation{}}
	if op, ok := s.ops[reads.ID]; ok {
		op = op.Clone()
		v.Current = &op
	}
	for _, e := range s.events[reads.ID] {
		if reads.CommandID != "" && e.CommandID == reads.CommandID {
			v.Prior = append(v.Prior, e)
		}
	}
	for _, id := range reads.Related {
		if op, ok := s.ops[id]; ok {
			v.Related[id] = op.Clone()
		}
	}
	if u := reads.Unknowns; u != nil {
		for id := range s.ops {
			if op := s.ops[id]; op.State == ledger.Unknown && op.Tool == u.Tool && v.Unknowns < u.Limit {
				v.Unknowns++
			}
		}
	}
	for _, slot := range reads.Slots {
		if id, ok := s.slots[slot]; ok {
			if v.Owners == nil {
				v.Owners = map[ledger.Slot]ledger.Operation{}
			}
			v.Owners[slot] = s.ops[id].Clone()
		}
	}
	if reads.Siblings != nil {
		v.UnknownSiblings = s.siblings(reads.ID, *reads.Siblings)
	}
	return v
}

// mostSiblings is how many the contract of a store asks for.
const mostSiblings = 32

func (s *store) siblings(self ledger.OperationID, q ledger.Siblings) []ledger.OperationID {
	own := s.ops[self]
	ownAlone := len(q.SubjectDigests) == 1 && len(own.SubjectDigest) > 0 && bytes.Equal(own.SubjectDigest, q.SubjectDigests[0])
	var found []ledger.Operation
	for id := range s.ops {
		op := s.ops[id]
		// What was digested under another secret may be of the same subject.
		mayBe := ownAlone && len(op.SubjectDigest) > 0 && op.Fingerprint.SecretID != own.Fingerprint.SecretID
		if id != self && op.State == ledger.Unknown && op.Scope == q.Scope && op.Tool == q.Tool && op.Task == q.Task &&
			(mayBe || ofSubject(&op, q.SubjectDigests)) {
			found = append(found, op)
		}
	}
	slices.SortFunc(found, byCreation)
	var ids []ledger.OperationID
	for i := range found[:min(len(found), mostSiblings)] {
		ids = append(ids, found[i].ID)
	}
	return ids
}

// ofSubject: without digests, operations that have no subject.
func ofSubject(op *ledger.Operation, digests [][]byte) bool {
	if len(digests) == 0 || len(op.SubjectDigest) == 0 {
		return len(digests) == 0 && len(op.SubjectDigest) == 0
	}
	return slices.ContainsFunc(digests, func(d []byte) bool { return bytes.Equal(d, op.SubjectDigest) })
}

func byCreation(a, b ledger.Operation) int {
	return cmp.Or(a.CreateTime.Compare(b.CreateTime), bytes.Compare(a.ID[:], b.ID[:]))
}

func (s *store) write(c ledger.Change) {
	next := c.Next.Clone()
	if was, ok := s.ops[next.ID]; ok { // identity is written once
		next.KeyHash, next.Scope, next.Principal, next.Tool, next.Task = was.KeyHash, was.Scope, was.Principal, was.Tool, was.Task
		next.SubjectDigest, next.Fingerprint = was.SubjectDigest, was.Fingerprint
		next.IntentTime, next.CreateTime = was.IntentTime, was.CreateTime
		next.Compensates, next.Corrects, next.DependsOn = was.Compensates, was.Corrects, was.DependsOn
	}
	s.ops[next.ID] = next
	if c.Event != nil {
		s.events[next.ID] = append(s.events[next.ID], *c.Event)
	}
	if c.Companion != nil {
		s.write(*c.Companion)
	}
	for _, taken := range c.Slots {
		s.slots[taken.Slot] = next.ID
	}
}

// Get implements ledger.Store.
func (s *store) Get(ctx context.Context, id ledger.OperationID) (ledger.Operation, time.Time, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return ledger.Operation{}, time.Time{}, err
	}
	defer leave()
	op, ok := s.ops[id]
	if !ok {
		return ledger.Operation{}, time.Time{}, ledger.ErrOperationNotFound
	}
	return op.Clone(), s.now(), nil
}

// ByDownstreamKey implements ledger.Store.
func (s *store) ByDownstreamKey(ctx context.Context, key string) (ledger.OperationID, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return ledger.OperationID{}, err
	}
	defer leave()
	for id := range s.ops {
		if s.ops[id].KeyHash.DownstreamKey() == key {
			return id, nil
		}
	}
	return ledger.OperationID{}, ledger.ErrOperationNotFound
}

// List implements ledger.Store.
func (s *store) List(ctx context.Context, q ledger.Listing) ([]ledger.Operation, time.Time, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer leave()
	at := func(op *ledger.Operation) time.Time {
		if q.UpdatedAfter.IsZero() {
			return op.CreateTime
		}
		return op.UpdateTime
	}
	order := func(a, b ledger.Operation) int {
		return cmp.Or(at(&a).Compare(at(&b)), bytes.Compare(a.ID[:], b.ID[:]))
	}
	after := ledger.Operation{ID: q.AfterID, CreateTime: q.AfterTime, UpdateTime: q.AfterTime}
	var found []ledger.Operation
	for id := range s.ops {
		op := s.ops[id]
		if op.Scope == q.Scope && (q.Task == "" || op.Task == q.Task) && (len(q.States) == 0 || slices.Contains(q.States, op.State)) &&
			ofSubject(&op, q.SubjectDigests) &&
			(q.UpdatedAfter.IsZero() || op.UpdateTime.After(q.UpdatedAfter)) && (q.AfterTime.IsZero() || order(op, after) > 0) {
			found = append(found, op.Clone())
		}
	}
	slices.SortFunc(found, order)
	return found[:min(len(found), q.Limit)], s.now(), nil
}

// Due implements ledger.Store.
func (s *store) Due(ctx context.Context, q ledger.DueQuery) (ledger.DuePage, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return ledger.DuePage{}, err
	}
	defer leave()
	order := func(a, b ledger.DuePosition) int {
		return cmp.Or(a.Time.Compare(b.Time), bytes.Compare(a.ID[:], b.ID[:]))
	}
	var due []ledger.DuePosition
	for id := range s.ops {
		p := ledger.DuePosition{Time: s.ops[id].NextCheckTime, ID: id}
		if !p.Time.IsZero() && !p.Time.After(s.now()) && order(p, q.After) > 0 && !slices.Contains(q.Without, s.ops[id].Tool) {
			due = append(due, p)
		}
	}
	slices.SortFunc(due, order)
	if len(due) <= q.Limit {
		return ledger.DuePage{Due: due}, nil
	}
	return ledger.DuePage{Due: due[:q.Limit], End: due[q.Limit-1]}, nil
}

// Events implements ledger.Store.
func (s *store) Events(ctx context.Context, id ledger.OperationID) ([]ledger.Event, error) {
	leave, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return slices.Clone(s.events[id]), nil
}

// Ready implements ledger.Store.
func (s *store) Ready(ctx context.Context) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	leave()
	return nil
}

// Close implements ledger.Store.
func (s *store) Close() error {
	s.closed.Store(true)
	return nil
}
