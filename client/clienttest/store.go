// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// store is a map and a mutex: an honest ledger.Store, but that nothing of it survives the process.
type store struct {
	mu     sync.Mutex
	offset time.Duration // of its clock
	ops    map[ledger.OperationID]ledger.Operation
	events map[ledger.OperationID][]ledger.Event
}

func newStore() *store {
	return &store{ops: map[ledger.OperationID]ledger.Operation{}, events: map[ledger.OperationID][]ledger.Event{}}
}

func (s *store) now() time.Time { return time.Now().Add(s.offset).UTC().Truncate(time.Microsecond) }

func (s *store) advance(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
}

// Update implements ledger.Store. All of it happens under the lock, so no race is ever lost.
func (s *store) Update(_ context.Context, reads ledger.ReadSet, decide func(ledger.View) (ledger.Change, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	change, err := decide(s.view(reads))
	if err != nil {
		return err
	}
	s.write(change)
	return nil
}

func (s *store) view(reads ledger.ReadSet) ledger.View {
	v := ledger.View{Now: s.now(), Timeline: 1, Related: map[ledger.OperationID]ledger.Operation{}}
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
	if reads.Siblings != nil {
		v.UnknownSiblings = s.siblings(reads.ID, *reads.Siblings)
	}
	return v
}

// mostSiblings is how many the contract of a store asks for.
const mostSiblings = 32

func (s *store) siblings(self ledger.OperationID, q ledger.Siblings) []ledger.OperationID {
	var found []ledger.Operation
	for id := range s.ops {
		op := s.ops[id]
		if id != self && op.State == ledger.Unknown && op.Scope == q.Scope && op.Tool == q.Tool && op.Task == q.Task &&
			ofSubject(&op, q.SubjectDigests) {
			found = append(found, op)
		}
	}
	slices.SortFunc(found, byCreation)
	ids := make([]ledger.OperationID, 0, len(found))
	for i := range found {
		ids = append(ids, found[i].ID)
	}
	return ids[:min(len(ids), mostSiblings)]
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
}

// Get implements ledger.Store.
func (s *store) Get(_ context.Context, id ledger.OperationID) (ledger.Operation, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, ok := s.ops[id]
	if !ok {
		return ledger.Operation{}, time.Time{}, ledger.ErrOperationNotFound
	}
	return op.Clone(), s.now(), nil
}

// ByDownstreamKey implements ledger.Store.
func (s *store) ByDownstreamKey(_ context.Context, key string) (ledger.OperationID, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.ops {
		if s.ops[id].KeyHash.DownstreamKey() == key {
			return id, nil
		}
	}
	return ledger.OperationID{}, ledger.ErrOperationNotFound
}

// List implements ledger.Store.
func (s *store) List(_ context.Context, q ledger.Listing) ([]ledger.Operation, time.Time, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
			(len(op.SubjectDigest) == 0 || len(q.SubjectDigests) > 0 && ofSubject(&op, q.SubjectDigests)) &&
			(q.UpdatedAfter.IsZero() || op.UpdateTime.After(q.UpdatedAfter)) && (q.AfterTime.IsZero() || order(op, after) > 0) {
			found = append(found, op.Clone())
		}
	}
	slices.SortFunc(found, order)
	return found[:min(len(found), q.Limit)], s.now(), nil
}

// Due implements ledger.Store.
func (s *store) Due(_ context.Context, after ledger.DuePosition, limit int) ([]ledger.DuePosition, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := func(a, b ledger.DuePosition) int {
		return cmp.Or(a.Time.Compare(b.Time), bytes.Compare(a.ID[:], b.ID[:]))
	}
	var due []ledger.DuePosition
	for id := range s.ops {
		p := ledger.DuePosition{Time: s.ops[id].NextCheckTime, ID: id}
		if !p.Time.IsZero() && !p.Time.After(s.now()) && order(p, after) > 0 {
			due = append(due, p)
		}
	}
	slices.SortFunc(due, order)
	return due[:min(len(due), limit)], nil
}

// Events implements ledger.Store.
func (s *store) Events(_ context.Context, id ledger.OperationID) ([]ledger.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events[id]), nil
}

// Ready implements ledger.Store.
func (s *store) Ready(context.Context) error { return nil }

// Close implements ledger.Store.
func (s *store) Close() error { return nil }
