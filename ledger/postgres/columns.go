// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/opsledger/opsledger/ledger"
)

// column is a column of a table as the statements that write know it: its name, its type, and its value of one row, or those of many
// rows as one array. What writes is made of these lists alone, so that a column can't be named in one place and forgotten in another.
type column[R any] struct {
	name, kind string
	one        func(row R) any
	many       func(rows []R) any
	// holds reports whether the database can take the value; nil: whatever it is.
	holds func(R) bool
}

func of[R, T any](name, kind string, get func(R) T) column[R] {
	return column[R]{name: name, kind: kind, one: func(r R) any { return get(r) }, many: func(rows []R) any {
		values := make(elements[T], len(rows))
		for i, r := range rows {
			values[i] = get(r)
		}
		return values
	}}
}

// elements are an array as the driver takes it. It is given pointers: a value would be copied to where an interface can have it, for
// each element of each column. T is a type of pgtype, or octet strings, whose pointers the driver knows to read.
type elements[T any] []T

func (e elements[T]) Dimensions() []pgtype.ArrayDimension {
	return []pgtype.ArrayDimension{{Length: int32(len(e)), LowerBound: 1}}
}

func (e elements[T]) Index(i int) any { return &e[i] }

func (elements[T]) IndexType() any { return new(T) }

// octetString is a bytea; nil is NULL.
type octetString []byte

// BytesValue is the driver's way to read it.
func (o octetString) BytesValue() ([]byte, error) { return o, nil }

func integer[N int16 | int32 | int64](n N) pgtype.Int8 {
	return pgtype.Int8{Int64: int64(n), Valid: true}
}

type (
	operation = *ledger.Operation
	event     = *ledger.Event
)

// swapColumns are what a compare-and-swap looks for, and when the row was due, where that changes. The hash stands for the whole history:
// what was decided on before a failover may not be written over another one of the same length.
var swapColumns = []column[write]{
	of("id", "uuid", func(w write) pgtype.UUID { return uuid(w.id) }),
	of("sequence", "bigint", func(w write) pgtype.Int8 { return integer(int64(w.was.Sequence)) }),
	of("grant_lease_until", "timestamptz", func(w write) pgtype.Timestamptz { return instant(w.was.Grant.LeaseUntil) }),
	of("last_hash", "bytea", func(w write) octetString { return w.was.LastHash[:] }),
	of("was_due", "timestamptz", func(w write) pgtype.Timestamptz { return w.due(w.was, w.next) }),
}

// dueColumns are when the row will be due, where that is something else.
var dueColumns = []column[write]{
	of("next_due", "timestamptz", func(w write) pgtype.Timestamptz { return w.due(w.next, w.was) }),
}

// due is the time of one of the two rows, unless it is that of the other.
func (w write) due(of, other operation) (v pgtype.Timestamptz) {
	if of != nil && (other == nil || !of.NextCheckTime.Equal(other.NextCheckTime)) {
		v = instant(of.NextCheckTime)
	}
	return v
}

// guardColumns are what a write depends on besides its row; the last one is of inserts.
var guardColumns = []column[write]{
	of("guarded", "boolean", func(w write) pgtype.Bool { return pgtype.Bool{Bool: w.guess != nil, Valid: true} }),
	of("unpaused", "boolean", func(w write) pgtype.Bool { return pgtype.Bool{Bool: w.unpaused, Valid: true} }),
	of("unlike", "boolean", func(w write) pgtype.Bool { return pgtype.Bool{Bool: w.unlike, Valid: true} }),
}

func small(name string, get func(operation) int16) column[operation] {
	return of(name, "smallint", func(o operation) pgtype.Int8 { return integer(get(o)) })
}

func big(name string, get func(operation) int64) column[operation] {
	return of(name, "bigint", func(o operation) pgtype.Int8 { return integer(get(o)) })
}

func flag(name string, get func(operation) bool) column[operation] {
	return of(name, "boolean", func(o operation) pgtype.Bool { return pgtype.Bool{Bool: get(o), Valid: true} })
}

func octets(name string, get func(operation) []byte) column[operation] {
	return of(name, "bytea", func(o operation) octetString { return get(o) })
}

func other(name string, get func(operation) ledger.OperationID) column[operation] {
	return of(name, "uuid", func(o operation) pgtype.UUID { return id(get(o)) })
}

// text is never NULL. It holds no U+0000 and nothing that is not UTF-8.
func text(name string, get func(operation) string) column[operation] {
	c := of(name, "text", func(o operation) pgtype.Text { return pgtype.Text{String: get(o), Valid: true} })
	c.holds = func(o operation) bool { return isText(get(o)) }
	return c
}

// stamped is NULL for the zero time.
func stamped(name string, get func(operation) time.Time) column[operation] {
	c := of(name, "timestamptz", func(o operation) pgtype.Timestamptz { return instant(get(o)) })
	c.holds = func(o operation) bool { return isTime(get(o)) }
	return c
}

// identityColumns are written once; no statement updates them. downstream_key is derived from key_hash and not read back.
var identityColumns = []column[operation]{
	of("id", "uuid", func(o operation) pgtype.UUID { return uuid(o.ID) }),
	octets("key_hash", func(o operation) []byte { return o.KeyHash[:] }),
	text("scope", func(o operation) string { return string(o.Scope) }),
	text("principal", func(o operation) string { return string(o.Principal) }),
	text("tool", func(o operation) string { return string(o.Tool) }),
	text("task", func(o operation) string { return string(o.Task) }),
	octets("subject_digest", func(o operation) []byte { return o.SubjectDigest }),
	stamped("intent_time", func(o operation) time.Time { return o.IntentTime }),
	stamped("create_time", func(o operation) time.Time { return o.CreateTime }),
	other("compensates", func(o operation) ledger.OperationID { return o.Compensates }),
	other("corrects", func(o operation) ledger.OperationID { return o.Corrects }),
	octets("depends_on", func(o operation) []byte { return document(o.DependsOn, len(o.DependsOn) == 0) }),
	of("fingerprint_spec", "integer", func(o operation) pgtype.Int8 { return integer(int32(o.Fingerprint.Spec)) }),
	text("fingerprint_secret", func(o operation) string { return o.Fingerprint.SecretID }),
	text("fingerprint_contract", func(o operation) string { return o.Fingerprint.Contract }),
	octets("fingerprint_digest", func(o operation) []byte { return o.Fingerprint.Digest[:] }),
	octets("fingerprint_categories", func(o operation) []byte {
		return document(o.Fingerprint.Categories, len(o.Fingerprint.Categories) == 0)
	}),
}

var downstreamKey = of("downstream_key", "uuid", func(o operation) pgtype.UUID { return downstream(o.KeyHash.DownstreamKey()) })

// downstream is the stored form of a downstream key; what is none fits nothing.
func downstream(key string) (v pgtype.UUID) {
	bytes, err := hex.DecodeString(key)
	if err == nil && len(bytes) == len(v.Bytes) && hex.EncodeToString(bytes) == key {
		v = pgtype.UUID{Bytes: [16]byte(bytes), Valid: true}
	}
	return v
}

// mutableColumns are what a change writes, all of them each time.
var mutableColumns = []column[operation]{
	small("record_version", func(operation) int16 { return recordVersion }),
	small("state", func(o operation) int16 { return int16(o.State) }),
	small("custody", func(o operation) int16 { return int16(o.Custody) }),
	text("custodian", func(o operation) string { return string(o.Custodian) }),
	small("queue_reason", func(o operation) int16 { return int16(o.QueueReason) }),
	big("sequence", func(o operation) int64 { return int64(o.Sequence) }),
	big("version", func(o operation) int64 { return int64(o.Version) }),
	octets("last_hash", func(o operation) []byte { return o.LastHash[:] }),
	stamped("update_time", func(o operation) time.Time { return o.UpdateTime }),
	big("timeline", func(o operation) int64 { return int64(o.Timeline) }),
	text("terms_contract", func(o operation) string { return o.Terms.ContractVersion }),
	small("terms_effect", func(o operation) int16 { return int16(o.Terms.Effect) }),
	big("terms_effect_within", func(o operation) int64 { return int64(o.Terms.EffectWithin) }),
	big("terms_key_retention", func(o operation) int64 { return int64(o.Terms.KeyRetention) }),
	text("grant_claim_id", func(o operation) string { return string(o.Grant.ClaimID) }),
	octets("grant_worker_id", func(o operation) []byte { return []byte(o.Grant.WorkerID) }),
	big("grant_epoch", func(o operation) int64 { return int64(o.Grant.Epoch) }),
	stamped("grant_time", func(o operation) time.Time { return o.Grant.Time }),
	stamped("grant_lease_until", func(o operation) time.Time { return o.Grant.LeaseUntil }),
	stamped("grant_send_until", func(o operation) time.Time { return o.Grant.SendUntil }),
	big("grant_lease", func(o operation) int64 { return int64(o.Grant.Lease) }),
	flag("grant_started", func(o operation) bool { return o.Grant.Started }),
	flag("grant_released", func(o operation) bool { return o.Grant.Released }),
	flag("grant_used_approval", func(o operation) bool { return o.Grant.UsedApproval }),
	flag("grant_used_waiver", func(o operation) bool { return o.Grant.UsedWaiver }),
	big("attempts", func(o operation) int64 { return int64(o.Attempts) }),
	big("starts", func(o operation) int64 { return int64(o.Starts) }),
	flag("may_have_applied", func(o operation) bool { return o.MayHaveApplied }),
	stamped("first_start", func(o operation) time.Time { return o.FirstStart }),
	stamped("last_send", func(o operation) time.Time { return o.LastSend }),
	stamped("next_check_time", func(o operation) time.Time { return o.NextCheckTime }),
	big("check_number", func(o operation) int64 { return int64(o.Check.Number) }),
	stamped("check_began", func(o operation) time.Time { return o.Check.Began }),
	stamped("check_lease_until", func(o operation) time.Time { return o.Check.LeaseUntil }),
	flag("check_open", func(o operation) bool { return o.Check.Open }),
	octets("target_summary", func(o operation) []byte { return []byte(o.TargetSummary) }),
	octets("target_attributes", func(o operation) []byte { return document(o.TargetAttributes, len(o.TargetAttributes) == 0) }),
	octets("result", func(o operation) []byte { return resultDocument(o.Result) }),
	octets("result_payload", func(o operation) []byte { return payload(o.Result) }),
	octets("failure", func(o operation) []byte { return document(o.Failure, o.Failure == nil) }),
	stamped("final_time", func(o operation) time.Time { return o.FinalTime }),
	flag("needs_attention", func(o operation) bool { return o.NeedsAttention }),
	octets("compensated_by", func(o operation) []byte { return document(o.CompensatedBy, len(o.CompensatedBy) == 0) }),
	octets("detail", func(o operation) []byte { return document(o.Detail, false) }),
}

// eventColumns are all NULL for a change without an event. The text that an event's hash is made of is not stored: it is made of these
// again, at a third of its size.
var eventColumns = []column[event]{
	of("sequence", "bigint", eventNumber(func(e event) uint64 { return e.Sequence })),
	of("version", "bigint", eventNumber(func(e event) uint64 { return e.Version })),
	of("epoch", "bigint", eventNumber(func(e event) uint64 { return e.Epoch })),
	of("time", "timestamptz", func(e event) (v pgtype.Timestamptz) {
		if e != nil {
			v = instant(e.Time)
		}
		return v
	}),
	of("kind", "smallint", eventNumber(func(e event) uint64 { return uint64(e.Kind) })),
	of("from_state", "smallint", eventNumber(func(e event) uint64 { return uint64(e.FromState) })),
	of("to_state", "smallint", eventNumber(func(e event) uint64 { return uint64(e.ToState) })),
	of("actor_kind", "smallint", eventNumber(func(e event) uint64 { return uint64(e.ActorKind) })),
	eventText("actor", func(e event) string { return string(e.Actor) }),
	eventText("command", func(e event) string { return string(e.Command) }),
	eventText("command_id", func(e event) string { return e.CommandID }),
	eventText("command_digest", func(e event) string { return e.CommandDigest }),
	eventText("contract_version", func(e event) string { return e.ContractVersion }),
	eventBytes("facts", func(e event) []byte { return document(e.Facts, len(e.Facts) == 0) }),
	eventBytes("note", func(e event) []byte { return []byte(e.Note) }),
	eventBytes("previous_hash", func(e event) []byte { return unlessZero(e.PrevHash) }),
	eventBytes("hash", func(e event) []byte { return e.Hash[:] }),
}

func unlessZero(hash [32]byte) []byte {
	if hash == ([32]byte{}) {
		return nil
	}
	return hash[:]
}

func eventNumber(get func(event) uint64) func(event) pgtype.Int8 {
	return func(e event) (v pgtype.Int8) {
		if e != nil {
			v = pgtype.Int8{Int64: int64(get(e)), Valid: true}
		}
		return v
	}
}

func eventBytes(name string, get func(event) []byte) column[event] {
	return of(name, "bytea", func(e event) octetString {
		if e == nil {
			return nil
		}
		return get(e)
	})
}

func eventText(name string, get func(event) string) column[event] {
	c := of(name, "text", func(e event) (v pgtype.Text) {
		if e != nil {
			v = pgtype.Text{String: get(e), Valid: true}
		}
		return v
	})
	c.holds = func(e event) bool { return e == nil || isText(get(e)) }
	return c
}

// isText: PostgreSQL's text can't hold everything that a Go string can.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// lastYear is the last one that a timestamptz holds in whole; the first one is far before all that the ledger knows.
const lastYear = 294275

func isTime(t time.Time) bool { return t.IsZero() || t.Year() >= 0 && t.Year() <= lastYear }

func holdsAll[R any](columns []column[R], row R) bool {
	for _, c := range columns {
		if c.holds != nil && !c.holds(row) {
			return false
		}
	}
	return true
}

// names of columns, each behind a prefix.
func names[R any](prefix string, columns ...[]column[R]) string {
	var list []string
	for _, some := range columns {
		for _, c := range some {
			list = append(list, prefix+c.name)
		}
	}
	return strings.Join(list, ", ")
}

// shape is how a statement that writes gets its rows: as one parameter per column, or as arrays, of which it takes one element after
// another. The former costs a third less where there is one row, the latter a tenth where there are many.
type shape struct {
	value func(param int, kind string) string
	// from numbers many rows; number is that of one, and match finds the number that has an id.
	from, number, match string
	// among narrows a column to the elements of a parameter, where there are many: for engines that distribute rows by it, and for plans that
	// can't come to read a whole index for each row.
	among func(column string, param int, kind string) string
}

var (
	oneRow = shape{
		value: func(param int, kind string) string { return fmt.Sprintf("$%d::%s", param, kind) },
		among: func(string, int, string) string { return "" },
	}
	manyRows = shape{
		value:  func(param int, kind string) string { return fmt.Sprintf("($%d::%s[])[n]", param, kind) },
		from:   ` FROM generate_subscripts($1::uuid[], 1) AS n`,
		number: `, n`,
		match:  ` JOIN generate_subscripts($1::uuid[], 1) AS n ON ($1::uuid[])[n] = i.id`,
		among: func(column string, param int, kind string) string {
			return fmt.Sprintf(" AND %s = ANY($%d::%s[])", column, param, kind)
		},
	}
)

// values are what the columns are set to, by parameters from that one on.
func values[R any](s shape, from int, columns []column[R]) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		list[i] = s.value(from+i, c.kind)
	}
	return strings.Join(list, ", ")
}

// args follow values.
func args[R any](to []any, columns []column[R], rows []R) []any {
	for _, c := range columns {
		if len(rows) <= single {
			to = append(to, c.one(rows[0]))
		} else {
			to = append(to, c.many(rows))
		}
	}
	return to
}

// single is how many rows are written in the shape of one. Tests make it 0.
var single = 1
