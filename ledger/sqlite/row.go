// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// recordVersion is that of the rows that this release writes. A larger one was written by a newer release.
const recordVersion = 1

// identityArgs follow identityColumns.
func identityArgs(o *ledger.Operation) []any {
	return []any{
		id(o.ID), o.KeyHash[:], string(o.Scope), string(o.Principal), string(o.Tool), string(o.Task), blob(o.SubjectDigest),
		instant(o.IntentTime), instant(o.CreateTime), id(o.Compensates), id(o.Corrects), document(o.DependsOn, len(o.DependsOn) == 0),
		int64(o.Fingerprint.Spec), o.Fingerprint.SecretID, o.Fingerprint.Contract, o.Fingerprint.Digest[:],
		document(o.Fingerprint.Categories, len(o.Fingerprint.Categories) == 0),
	}
}

// mutableArgs follow mutableColumns.
func mutableArgs(o *ledger.Operation) []any {
	return []any{
		int64(recordVersion), int64(o.State), int64(o.Custody), string(o.Custodian), int64(o.QueueReason),
		int64(o.Sequence), int64(o.Version), o.LastHash[:], instant(o.UpdateTime), int64(o.Timeline),
		o.Terms.ContractVersion, int64(o.Terms.Effect), int64(o.Terms.EffectWithin), int64(o.Terms.KeyRetention),
		string(o.Grant.ClaimID), blob(append([]byte{}, o.Grant.WorkerID...)), int64(o.Grant.Epoch), instant(o.Grant.Time), instant(o.Grant.LeaseUntil),
		instant(o.Grant.SendUntil), int64(o.Grant.Lease), o.Grant.Started, o.Grant.Released, o.Grant.UsedApproval, o.Grant.UsedWaiver,
		int64(o.Attempts), int64(o.Starts), o.MayHaveApplied, instant(o.FirstStart), instant(o.LastSend), instant(o.NextCheckTime),
		int64(o.Check.Number), instant(o.Check.Began), instant(o.Check.LeaseUntil), o.Check.Open,
		blob(append([]byte{}, o.TargetSummary...)), document(o.TargetAttributes, len(o.TargetAttributes) == 0), document(o.Result, o.Result == nil), document(o.Failure, o.Failure == nil),
		instant(o.FinalTime), o.NeedsAttention, document(o.CompensatedBy, len(o.CompensatedBy) == 0), document(o.Detail, false),
	}
}

// eventArgs follow insertEvent. What has no id has no command either.
func eventArgs(e *ledger.Event) []any {
	var command, commandID, digest any
	if e.CommandID != "" {
		command, commandID, digest = string(e.Command), e.CommandID, e.CommandDigest
	}
	return []any{id(e.OperationID), int64(e.Sequence), command, commandID, digest, instant(e.Time), e.Body(), e.Hash[:]}
}

func insertArgs(o *ledger.Operation) []any {
	return append(append(mutableArgs(o), identityArgs(o)...), o.KeyHash.DownstreamKey())
}

func updateArgs(was, next *ledger.Operation) []any {
	return append(mutableArgs(next), id(was.ID), int64(was.Sequence), instant(was.Grant.LeaseUntil))
}

// scanRow reads allColumns.
func scanRow(rows *sql.Rows) (ledger.Operation, error) {
	var (
		o                                                         ledger.Operation
		record                                                    int64
		self, compensates, corrects                               []byte
		keyHash, lastHash, digest, summary, worker                []byte
		attributes, result, failure, compensatedBy, detail        []byte
		dependsOn, categories                                     []byte
		g, c                                                      = &o.Grant, &o.Check
		stamps                                                    = func(t *time.Time) *stamp { return (*stamp)(t) }
		sequence, version, epoch, check, timeline, attempts, runs int64
	)
	err := rows.Scan(
		&record, (*uint8)(&o.State), (*uint8)(&o.Custody), (*string)(&o.Custodian), (*uint8)(&o.QueueReason),
		&sequence, &version, &lastHash, stamps(&o.UpdateTime), &timeline,
		&o.Terms.ContractVersion, (*uint8)(&o.Terms.Effect), (*int64)(&o.Terms.EffectWithin), (*int64)(&o.Terms.KeyRetention),
		(*string)(&g.ClaimID), &worker, &epoch, stamps(&g.Time), stamps(&g.LeaseUntil), stamps(&g.SendUntil), (*int64)(&g.Lease),
		&g.Started, &g.Released, &g.UsedApproval, &g.UsedWaiver,
		&attempts, &runs, &o.MayHaveApplied, stamps(&o.FirstStart), stamps(&o.LastSend), stamps(&o.NextCheckTime),
		&check, stamps(&c.Began), stamps(&c.LeaseUntil), &c.Open,
		&summary, &attributes, &result, &failure, stamps(&o.FinalTime), &o.NeedsAttention, &compensatedBy, &detail,
		&self, &keyHash, (*string)(&o.Scope), (*string)(&o.Principal), (*string)(&o.Tool), (*string)(&o.Task), &o.SubjectDigest,
		stamps(&o.IntentTime), stamps(&o.CreateTime), &compensates, &corrects, &dependsOn,
		&o.Fingerprint.Spec, &o.Fingerprint.SecretID, &o.Fingerprint.Contract, &digest, &categories,
	)
	if err != nil {
		return ledger.Operation{}, err
	}
	copy(o.ID[:], self)
	copy(o.Compensates[:], compensates)
	copy(o.Corrects[:], corrects)
	o.Sequence, o.Version, g.Epoch, c.Number = uint64(sequence), uint64(version), uint64(epoch), uint64(check)
	o.Timeline, o.Attempts, o.Starts = uint32(timeline), uint32(attempts), uint32(runs)
	o.TargetSummary, g.WorkerID = string(summary), string(worker)
	copy(o.KeyHash[:], keyHash)
	copy(o.LastHash[:], lastHash)
	copy(o.Fingerprint.Digest[:], digest)
	if record > recordVersion {
		return ledger.Operation{}, tooNew(&o)
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
			return ledger.Operation{}, errDamaged
		}
	}
	return o, nil
}

// tooNew refuses what a newer release wrote, with as much of it as no release changes the meaning of: who may know of it, its place in
// a listing, and its holder.
func tooNew(o *ledger.Operation) error {
	return &ledger.Refusal{Err: ledger.ErrRecordTooNew, Operation: &ledger.Operation{
		ID: o.ID, KeyHash: o.KeyHash, Scope: o.Scope, Principal: o.Principal, Tool: o.Tool, Task: o.Task, SubjectDigest: o.SubjectDigest,
		CreateTime: o.CreateTime, UpdateTime: o.UpdateTime,
		Fingerprint: ledger.Fingerprint{
			Spec: o.Fingerprint.Spec, SecretID: o.Fingerprint.SecretID, Contract: o.Fingerprint.Contract, Digest: o.Fingerprint.Digest,
		},
		Grant: ledger.Grant{ClaimID: o.Grant.ClaimID},
	}}
}

// listed keeps a record of a newer release in its place, without a state.
func listed(o ledger.Operation, err error) (ledger.Operation, error) {
	var r *ledger.Refusal
	if errors.As(err, &r) && r.Operation != nil {
		return *r.Operation, nil
	}
	return o, err
}

// document is the stored form of a value, NULL when it is unset. It can't fail: the values have no channels, functions or cycles.
func document(v any, unset bool) any {
	if unset {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("sqlite: %T is not a document", v))
	}
	return b
}

// blob stores nil as NULL and nothing else.
func blob(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

func id(v ledger.OperationID) any {
	if v.IsZero() {
		return nil
	}
	return v[:]
}

func instant(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}

// stamp scans microseconds, NULL as the zero time.
type stamp time.Time

// Scan is database/sql's way to scan into a type of one's own.
func (s *stamp) Scan(v any) error {
	switch v := v.(type) {
	case nil:
		*s = stamp{}
	case int64:
		*s = stamp(time.UnixMicro(v).UTC())
	default:
		return errDamaged
	}
	return nil
}

// collect reads all rows by scan, and closes them.
func collect[T any](rows *sql.Rows, scan func(*sql.Rows) (T, error)) (_ []T, err error) {
	defer func() {
		if closeErr := rows.Close(); err == nil {
			err = closeErr
		}
	}()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// scanListed reads allColumns, also of what a newer release wrote.
func scanListed(rows *sql.Rows) (ledger.Operation, error) { return listed(scanRow(rows)) }

func scanEvent(rows *sql.Rows) (ledger.Event, error) {
	var body, hash []byte
	if err := rows.Scan(&body, &hash); err != nil {
		return ledger.Event{}, err
	}
	var sum [32]byte
	copy(sum[:], hash)
	e, err := ledger.ParseEvent(body, sum)
	if errors.Is(err, ledger.ErrRecordTooNew) {
		return ledger.Event{}, err
	}
	if err != nil {
		return ledger.Event{}, errDamaged
	}
	return e, nil
}

func scanID(rows *sql.Rows) (ledger.OperationID, error) {
	var b []byte
	err := rows.Scan(&b)
	var op ledger.OperationID
	copy(op[:], b)
	return op, err
}
