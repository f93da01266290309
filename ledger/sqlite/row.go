// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// recordVersion is that of the rows that this release writes. A larger one was written by a newer release.
const recordVersion = 1

// withIdentity adds what follows identityColumns.
func withIdentity(args []any, o *ledger.Operation) []any {
	return append(args,
		id(o.ID), o.KeyHash[:], string(o.Scope), string(o.Principal), string(o.Tool), string(o.Task), blob(o.SubjectDigest),
		instant(o.IntentTime), instant(o.CreateTime), id(o.Compensates), id(o.Corrects), document(o.DependsOn, len(o.DependsOn) == 0),
		int64(o.Fingerprint.Spec), o.Fingerprint.SecretID, o.Fingerprint.Contract, o.Fingerprint.Digest[:],
		document(o.Fingerprint.Categories, len(o.Fingerprint.Categories) == 0),
	)
}

// withMutable adds what follows mutableColumns.
func withMutable(args []any, o *ledger.Operation) []any {
	return append(args,
		int64(recordVersion), int64(o.State), int64(o.Custody), string(o.Custodian), int64(o.QueueReason),
		int64(o.Sequence), int64(o.Version), o.LastHash[:], instant(o.UpdateTime), int64(o.Timeline),
		o.Terms.ContractVersion, int64(o.Terms.Effect), int64(o.Terms.EffectWithin), int64(o.Terms.KeyRetention),
		string(o.Grant.ClaimID), []byte(o.Grant.WorkerID), int64(o.Grant.Epoch), instant(o.Grant.Time), instant(o.Grant.LeaseUntil),
		instant(o.Grant.SendUntil), int64(o.Grant.Lease), o.Grant.Started, o.Grant.Released, o.Grant.UsedApproval, o.Grant.UsedWaiver,
		int64(o.Attempts), int64(o.Starts), o.MayHaveApplied, instant(o.FirstStart), instant(o.LastSend), instant(o.NextCheckTime),
		int64(o.Check.Number), instant(o.Check.Began), instant(o.Check.LeaseUntil), o.Check.Open,
		[]byte(o.TargetSummary), document(o.TargetAttributes, len(o.TargetAttributes) == 0),
		document(o.Result, o.Result == nil), document(o.Failure, o.Failure == nil),
		instant(o.FinalTime), o.NeedsAttention, document(o.CompensatedBy, len(o.CompensatedBy) == 0), document(o.Detail, false),
	)
}

// commandOf is what asked for an event, all NULL where it has no id.
func commandOf(e *ledger.Event) (command, commandID, digest any) {
	if e != nil && e.CommandID != "" {
		command, commandID, digest = string(e.Command), e.CommandID, e.CommandDigest
	}
	return command, commandID, digest
}

// eventArgs follow insertEvent. What has no id has no command either.
func eventArgs(e *ledger.Event) []any {
	command, commandID, digest := commandOf(e)
	return []any{id(e.OperationID), int64(e.Sequence), command, commandID, digest, instant(e.Time), e.Body(), e.Hash[:]}
}

func insertArgs(o *ledger.Operation) []any {
	args := make([]any, 0, mutableCount+identityCount+1)
	return append(withIdentity(withMutable(args, o), o), o.KeyHash.DownstreamKey())
}

func updateArgs(was, next *ledger.Operation, e *ledger.Event) []any {
	args := make([]any, 0, mutableCount+7)
	command, commandID, digest := commandOf(e)
	return append(withMutable(args, next), id(was.ID), int64(was.Sequence), instant(was.Grant.LeaseUntil), was.LastHash[:], command, commandID, digest)
}

// row is one row of a result, read column by column. What is not of the type that is asked for is damaged: the tables are STRICT.
type row struct {
	values  []driver.Value
	at      int
	damaged bool
}

func (r *row) next() driver.Value {
	v := r.values[r.at]
	r.at++
	return v
}

func (r *row) integer() int64 {
	v, ok := r.next().(int64)
	r.damaged = r.damaged || !ok
	return v
}

// small is an integer that names something.
func (r *row) small() uint8 {
	v := r.integer()
	r.damaged = r.damaged || v != int64(uint8(v))
	return uint8(v)
}

func (r *row) boolean() bool { return r.integer() != 0 }

func (r *row) text() string {
	v, ok := r.next().(string)
	r.damaged = r.damaged || !ok
	return v
}

// blob is nil for NULL.
func (r *row) blob() []byte {
	v := r.next()
	b, ok := v.([]byte)
	r.damaged = r.damaged || (!ok && v != nil)
	return b
}

func (r *row) id() (id ledger.OperationID) {
	copy(id[:], r.blob())
	return id
}

func (r *row) digest() (d [32]byte) {
	copy(d[:], r.blob())
	return d
}

// time is stored in microseconds, the zero time as NULL.
func (r *row) time() time.Time {
	switch v := r.next().(type) {
	case nil:
	case int64:
		return time.UnixMicro(v).UTC()
	default:
		r.damaged = true
	}
	return time.Time{}
}

// scanRow reads allColumns.
func scanRow(r *row) (ledger.Operation, error) {
	var o ledger.Operation
	record := r.integer()
	o.State, o.Custody, o.Custodian, o.QueueReason = ledger.State(r.small()), ledger.Custody(r.small()), ledger.Principal(r.text()), ledger.QueueReason(r.small())
	o.Sequence, o.Version, o.LastHash, o.UpdateTime, o.Timeline = uint64(r.integer()), uint64(r.integer()), r.digest(), r.time(), uint32(r.integer())
	o.Terms = ledger.Terms{
		ContractVersion: r.text(), Effect: ledger.Effect(r.small()),
		EffectWithin: time.Duration(r.integer()), KeyRetention: time.Duration(r.integer()),
	}
	o.Grant = ledger.Grant{
		ClaimID: ledger.ClaimID(r.text()), WorkerID: string(r.blob()), Epoch: uint64(r.integer()), Time: r.time(), LeaseUntil: r.time(),
		SendUntil: r.time(), Lease: time.Duration(r.integer()), Started: r.boolean(), Released: r.boolean(),
		UsedApproval: r.boolean(), UsedWaiver: r.boolean(),
	}
	o.Attempts, o.Starts, o.MayHaveApplied = uint32(r.integer()), uint32(r.integer()), r.boolean()
	o.FirstStart, o.LastSend, o.NextCheckTime = r.time(), r.time(), r.time()
	o.Check = ledger.Check{Number: uint64(r.integer()), Began: r.time(), LeaseUntil: r.time(), Open: r.boolean()}
	o.TargetSummary = string(r.blob())
	attributes, result, failure := r.blob(), r.blob(), r.blob()
	o.FinalTime, o.NeedsAttention = r.time(), r.boolean()
	compensatedBy, detail := r.blob(), r.blob()
	o.ID, o.KeyHash = r.id(), ledger.KeyHash(r.digest())
	o.Scope, o.Principal, o.Tool, o.Task = ledger.Scope(r.text()), ledger.Principal(r.text()), ledger.Tool(r.text()), ledger.Task(r.text())
	o.SubjectDigest, o.IntentTime, o.CreateTime, o.Compensates, o.Corrects = r.blob(), r.time(), r.time(), r.id(), r.id()
	dependsOn := r.blob()
	o.Fingerprint = ledger.Fingerprint{Spec: uint16(r.integer()), SecretID: r.text(), Contract: r.text(), Digest: r.digest()}
	categories := r.blob()
	if r.damaged {
		return ledger.Operation{}, errDamaged
	}
	if record > recordVersion {
		return ledger.Operation{}, &ledger.Refusal{Err: ledger.ErrRecordTooNew, Operation: identity(&o)}
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

// scanListed reads allColumns, also of what a newer release wrote.
func scanListed(r *row) (ledger.Operation, error) { return listed(scanRow(r)) }

func scanEvent(r *row) (ledger.Event, error) {
	body, sum := r.blob(), r.digest()
	e, err := ledger.ParseEvent(body, sum)
	if errors.Is(err, ledger.ErrRecordTooNew) {
		return ledger.Event{}, err
	}
	if err != nil {
		return ledger.Event{}, errDamaged
	}
	return e, nil
}

func scanID(r *row) (ledger.OperationID, error) { return r.id(), nil }
