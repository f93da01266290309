// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

// recordVersion is that of the rows that this release writes. A larger one was written by a newer release.
const recordVersion = 1

// scanRow reads allColumns. What can't be read has its id all the same.
func scanRow(row pgx.Row) (ledger.Operation, error) {
	var (
		o                                                         ledger.Operation
		record, queueReason, effect                               int16
		spec                                                      int32
		self, compensates, corrects                               pgtype.UUID
		keyHash, lastHash, digest, summary, worker                []byte
		attributes, result, failure, compensatedBy, detail        []byte
		payload                                                   []byte
		dependsOn, categories                                     []byte
		g, c                                                      = &o.Grant, &o.Check
		stamps                                                    = func(t *time.Time) *stamp { return (*stamp)(t) }
		sequence, version, epoch, check, timeline, attempts, runs int64
	)
	err := row.Scan(
		&record, (*uint8)(&o.State), (*uint8)(&o.Custody), (*string)(&o.Custodian), &queueReason,
		&sequence, &version, &lastHash, stamps(&o.UpdateTime), &timeline,
		&o.Terms.ContractVersion, &effect, (*int64)(&o.Terms.EffectWithin), (*int64)(&o.Terms.KeyRetention),
		(*string)(&g.ClaimID), &worker, &epoch, stamps(&g.Time), stamps(&g.LeaseUntil), stamps(&g.SendUntil), (*int64)(&g.Lease),
		&g.Started, &g.Released, &g.UsedApproval, &g.UsedWaiver,
		&attempts, &runs, &o.MayHaveApplied, stamps(&o.FirstStart), stamps(&o.LastSend), stamps(&o.NextCheckTime),
		&check, stamps(&c.Began), stamps(&c.LeaseUntil), &c.Open,
		&summary, &attributes, &result, &payload, &failure, stamps(&o.FinalTime), &o.NeedsAttention, &compensatedBy, &detail,
		&self, &keyHash, (*string)(&o.Scope), (*string)(&o.Principal), (*string)(&o.Tool), (*string)(&o.Task), &o.SubjectDigest,
		stamps(&o.IntentTime), stamps(&o.CreateTime), &compensates, &corrects, &dependsOn,
		&spec, &o.Fingerprint.SecretID, &o.Fingerprint.Contract, &digest, &categories,
	)
	if errors.As(err, &pgx.ScanArgError{}) {
		return ledger.Operation{}, errDamaged
	}
	if err != nil {
		return ledger.Operation{}, err
	}
	o.ID, o.Compensates, o.Corrects = self.Bytes, compensates.Bytes, corrects.Bytes
	o.Sequence, o.Version, g.Epoch, c.Number = uint64(sequence), uint64(version), uint64(epoch), uint64(check)
	o.Timeline, o.Attempts, o.Starts = uint32(timeline), uint32(attempts), uint32(runs)
	o.TargetSummary, g.WorkerID = string(summary), string(worker)
	o.QueueReason, o.Terms.Effect, o.Fingerprint.Spec = ledger.QueueReason(queueReason), ledger.Effect(effect), uint16(spec)
	copy(o.KeyHash[:], keyHash)
	copy(o.LastHash[:], lastHash)
	copy(o.Fingerprint.Digest[:], digest)
	if record > recordVersion {
		return ledger.Operation{ID: o.ID}, &ledger.Refusal{Err: ledger.ErrRecordTooNew, Operation: identity(&o)}
	}
	// Numbers that no release has written: a scan that refused them would end the whole answer of the server.
	if int16(o.QueueReason) != queueReason || int16(o.Terms.Effect) != effect || int32(o.Fingerprint.Spec) != spec {
		return *identity(&o), errDamaged
	}
	for _, d := range []struct {
		stored []byte
		into   any
	}{
		{attributes, &o.TargetAttributes},
		{result, &o.Result},
		{failure, &o.Failure},
		{compensatedBy, &o.CompensatedBy},
		{detail, &o.Detail},
		{dependsOn, &o.DependsOn},
		{categories, &o.Fingerprint.Categories},
	} {
		if d.stored == nil {
			continue
		}
		if err := json.Unmarshal(d.stored, d.into); err != nil {
			return *identity(&o), errDamaged
		}
	}
	if o.Result != nil {
		o.Result.Payload = payload
	}
	return o, nil
}

// identity is as much of a row as no release changes the meaning of: who may know of it, its place in a listing, and its holder.
func identity(o *ledger.Operation) *ledger.Operation {
	return &ledger.Operation{
		ID: o.ID, KeyHash: o.KeyHash, Scope: o.Scope, Principal: o.Principal, Tool: o.Tool, Task: o.Task, SubjectDigest: o.SubjectDigest,
		CreateTime: o.CreateTime, UpdateTime: o.UpdateTime,
		Fingerprint: ledger.Fingerprint{
			Spec: o.Fingerprint.Spec, SecretID: o.Fingerprint.SecretID, Contract: o.Fingerprint.Contract, Digest: o.Fingerprint.Digest,
		},
		Grant: ledger.Grant{ClaimID: o.Grant.ClaimID},
	}
}

// listed keeps a record of a newer release in its place, without a state.
func listed(o ledger.Operation, err error) (ledger.Operation, error) {
	var r *ledger.Refusal
	if errors.As(err, &r) && r.Operation != nil {
		return *r.Operation, nil
	}
	return o, err
}

// resultDocument is a result without its payload, payload the other part: JSON would make it longer by a third.
func resultDocument(r *ledger.Result) []byte {
	if r == nil {
		return nil
	}
	rest := *r
	rest.Payload = nil
	return document(rest, false)
}

func payload(r *ledger.Result) []byte {
	if r == nil {
		return nil
	}
	return r.Payload
}

// document is the stored form of a value, NULL when it is unset. It can't fail: the values have no channels, functions or cycles.
func document(v any, unset bool) []byte {
	if unset {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("postgres: %T is not a document", v))
	}
	return b
}

func id(v ledger.OperationID) pgtype.UUID { return pgtype.UUID{Bytes: v, Valid: !v.IsZero()} }

func instant(t time.Time) pgtype.Timestamptz { return pgtype.Timestamptz{Time: t, Valid: !t.IsZero()} }

// stamp scans a time, NULL as the zero time.
type stamp time.Time

// ScanTimestamptz is pgx's way to scan into a type of one's own.
func (s *stamp) ScanTimestamptz(v pgtype.Timestamptz) error {
	*s = stamp{}
	if v.Valid {
		*s = stamp(v.Time.UTC())
	}
	return nil
}

// scanEvent reads the operation's id and eventColumns, after what before names.
func scanEvent(row pgx.Row, before ...any) (ledger.Event, error) {
	var (
		e                           ledger.Event
		operation                   pgtype.UUID
		sequence, version, epoch    int64
		kind, from, to, actor       int16
		facts, note, previous, hash []byte
	)
	err := row.Scan(append(before, &operation, &sequence, &version, &epoch, (*stamp)(&e.Time), &kind, &from, &to, &actor,
		(*string)(&e.Actor), (*string)(&e.Command), &e.CommandID, &e.CommandDigest, &e.ContractVersion, &facts, &note, &previous, &hash)...)
	if errors.As(err, &pgx.ScanArgError{}) {
		return ledger.Event{}, errDamaged
	}
	if err != nil {
		return ledger.Event{}, err
	}
	e.OperationID, e.Note = operation.Bytes, string(note)
	e.Sequence, e.Version, e.Epoch = uint64(sequence), uint64(version), uint64(epoch)
	e.Kind, e.FromState, e.ToState, e.ActorKind = ledger.EventKind(kind), ledger.State(from), ledger.State(to), ledger.ActorKind(actor)
	copy(e.PrevHash[:], previous)
	copy(e.Hash[:], hash)
	if facts != nil {
		if err := json.Unmarshal(facts, &e.Facts); err != nil {
			return ledger.Event{}, errDamaged
		}
	}
	if err := e.Check(); err != nil && !errors.Is(err, ledger.ErrRecordTooNew) {
		return ledger.Event{}, errDamaged
	} else if err != nil {
		return ledger.Event{}, err
	}
	return e, nil
}

func collectEvents(rows pgx.Rows) ([]ledger.Event, error) {
	return pgx.AppendRows([]ledger.Event(nil), rows, func(row pgx.CollectableRow) (ledger.Event, error) { return scanEvent(row) })
}

// collectListed reads allColumns, also of what a newer release wrote.
func collectListed(rows pgx.Rows) ([]ledger.Operation, error) {
	return pgx.AppendRows([]ledger.Operation(nil), rows, func(row pgx.CollectableRow) (ledger.Operation, error) { return listed(scanRow(row)) })
}

func collectIDs(rows pgx.Rows) ([]ledger.OperationID, error) {
	return pgx.AppendRows([]ledger.OperationID(nil), rows, func(row pgx.CollectableRow) (ledger.OperationID, error) {
		var u pgtype.UUID
		err := row.Scan(&u)
		return u.Bytes, err
	})
}
