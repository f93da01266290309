// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// insert writes a row as it is, as the first of its key, and returns it as it was meant.
func insert(t *testing.T, s ledger.Store, k ledger.Key, make func(now time.Time) ledger.Operation) ledger.Operation {
	t.Helper()
	var want ledger.Operation
	mustUpdate(t, s, ledger.ReadSet{ID: k.Hash().OperationID()}, func(v ledger.View) (ledger.Change, error) {
		if v.Current != nil {
			return ledger.Change{}, errors.New("there is a row of this key")
		}
		c := step(make(v.Now), note("inserted"), v.Now)
		want = c.Next.Clone()
		return c, nil
	})
	return want
}

// wantSame reads the row back, alone and as part of a decision, a listing and a set of relatives.
func wantSame(t *testing.T, s ledger.Store, want ledger.Operation) {
	t.Helper()
	if diff := cmp.Diff(want, mustGet(t, s, want.ID)); diff != "" {
		t.Errorf("get: %s", diff)
	}
	mustUpdate(t, s, ledger.ReadSet{ID: want.ID, Related: []ledger.OperationID{want.ID}}, func(v ledger.View) (ledger.Change, error) {
		if diff := cmp.Diff(&want, v.Current); diff != "" {
			t.Errorf("current: %s", diff)
		}
		if diff := cmp.Diff(want, v.Related[want.ID]); diff != "" {
			t.Errorf("related: %s", diff)
		}
		return ledger.Change{}, nil
	})
	page, _, err := s.List(t.Context(), ledger.Listing{Scope: want.Scope, SubjectDigests: subjects(want), Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(page, func(o ledger.Operation) bool { return o.ID == want.ID })
	if i < 0 {
		t.Fatal("the operation is not listed")
	}
	if diff := cmp.Diff(want, page[i]); diff != "" {
		t.Errorf("list: %s", diff)
	}
}

func subjects(o ledger.Operation) [][]byte {
	if o.SubjectDigest == nil {
		return nil
	}
	return [][]byte{o.SubjectDigest}
}

// oddStrings differ in nothing that a reader sees, or break those who quote by hand.
var oddStrings = []string{
	"Task", "task", "TASK", "task ", " task", "task\t", "t\u00e4sk", "ta\u0308sk", "\u0130", "i\u0307", "ß", "ss", "\u200btask",
	"K", "k", "\u212a", "\uff2b", "fi", "\ufb01", "I", "i", "\u0131",
	`"`, `'`, `''`, `\`, `\'`, `%`, `_`, `$1`, `?`, `:a`, `;--`, "\U0001D11E", "null", "NULL", "{}", "0", "00", "1e0",
}

func testStrings(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	for _, odd := range append(slices.Clone(oddStrings), strings.Repeat("x", 128)) {
		k := ledger.Key{Scope: ledger.Scope(odd), Tool: ledger.Tool(odd), Task: ledger.Task(odd), Key: odd}
		wantSame(t, s, insert(t, s, k, func(now time.Time) ledger.Operation {
			o := granted(received(k, now), ledger.ClaimID(odd), now)
			o.Principal, o.Custody, o.Custodian = ledger.Principal(odd), ledger.Operator, ledger.Principal(odd)
			o.Fingerprint.SecretID, o.Fingerprint.Contract, o.Terms.ContractVersion = odd, odd, odd
			document := odd + "\x00\u2028\u2029<&>\x7f\ufeff"
			o.TargetSummary, o.Grant.WorkerID = document, document
			o.Fingerprint.Categories = map[string]ledger.CategoryDigest{document: {1}}
			o.TargetAttributes = map[string]string{document: document, "": ""}
			o.Detail.Kept = &ledger.KeptSuccess{ClaimID: ledger.ClaimID(document), Result: ledger.Result{
				Resource: ledger.ResourceRef{ID: document}, Code: document, Payload: []byte{0, 1, 0xff, 0xfe},
				Attributes: map[string]string{document: document},
			}}
			return o
		}))
	}
}

func testLookAlikes(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	for i, odd := range oddStrings {
		for j, part := range []*ledger.Key{
			{Scope: ledger.Scope(odd), Tool: "tool", Task: "shared", Key: "k"},
			{Scope: "shared", Tool: "tool", Task: ledger.Task(odd), Key: "k"},
			{Scope: "shared", Tool: ledger.Tool(odd), Task: "shared", Key: "k"},
		} {
			insert(t, s, *part, func(now time.Time) ledger.Operation {
				o := received(*part, now)
				o.State = ledger.Unknown
				o.SubjectDigest = fmt.Appendf(nil, "subject %d", j)
				o.TargetSummary = fmt.Sprint(i)
				return o
			})
		}
	}
	only := func(what string, i int, found []ledger.Operation, err error) {
		t.Helper()
		if err != nil || len(found) != 1 || found[0].TargetSummary != fmt.Sprint(i) {
			t.Errorf("%s %q: found %d operations: %v", what, oddStrings[i], len(found), err)
		}
	}
	for i, odd := range oddStrings {
		page, _, err := s.List(t.Context(), ledger.Listing{Scope: ledger.Scope(odd), SubjectDigests: [][]byte{[]byte("subject 0")}, Limit: 10})
		only("scope", i, page, err)
		page, _, err = s.List(t.Context(), ledger.Listing{
			Scope: "shared", Task: ledger.Task(odd), SubjectDigests: [][]byte{[]byte("subject 1")}, Limit: 10,
		})
		only("task", i, page, err)
		mustUpdate(t, s, ledger.ReadSet{ID: testID("new"), Siblings: &ledger.Siblings{
			Scope: "shared", Tool: ledger.Tool(odd), Task: "shared", SubjectDigests: [][]byte{[]byte("subject 2")},
		}}, func(v ledger.View) (ledger.Change, error) {
			if len(v.UnknownSiblings) != 1 {
				t.Errorf("tool %q: %d siblings, want 1", odd, len(v.UnknownSiblings))
			}
			return ledger.Change{}, nil
		})
	}
}

// testZeros is about U+0000, which some engines can't store and others end a string at: what holds one is refused, or stays apart from
// what is the same up to it, and without it.
func testZeros(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	of := func(part int, text string) ledger.Key {
		k := ledger.Key{Scope: "scope", Tool: "tool", Task: "task", Key: "key"}
		switch part {
		case 0:
			k.Key = text
		case 1:
			k.Scope = ledger.Scope(text)
		case 2:
			k.Tool = ledger.Tool(text)
		default:
			k.Task = ledger.Task(text)
		}
		return k
	}
	for part, name := range []string{"key", "scope", "tool", "task"} {
		kept := map[ledger.OperationID]ledger.Operation{}
		for _, text := range []string{"a", "ab", "a\x00b", "a\x00c", "a\x00", "\x00a", "\x00"} {
			k := of(part, text)
			id := k.Hash().OperationID()
			err := s.Update(t.Context(), ledger.ReadSet{ID: id}, create(k, "c"))
			switch {
			case err == nil:
				kept[id] = mustGet(t, s, id)
				page, _, err := s.List(t.Context(), ledger.Listing{Scope: k.Scope, Task: k.Task, Limit: 100})
				if err != nil || !slices.ContainsFunc(page, func(o ledger.Operation) bool { return o.ID == id }) {
					t.Errorf("%s %q: it is not listed: %v", name, text, err)
				}
				for _, o := range append(page, kept[id]) {
					if o.Scope != k.Scope || o.Task != k.Task || o.ID == id && (o.Tool != k.Tool || o.KeyHash != k.Hash()) {
						t.Errorf("%s %q: another one came back", name, text)
					}
				}
			case !strings.Contains(text, "\x00"), part == 0: // of the key itself only digests are stored
				t.Errorf("%s %q: %v", name, text, err)
			default:
				if _, _, err := s.Get(t.Context(), id); !errors.Is(err, ledger.ErrOperationNotFound) {
					t.Errorf("%s %q was refused; get: %v, want ErrOperationNotFound", name, text, err)
				}
			}
		}
		for id, want := range kept {
			if diff := cmp.Diff(want, mustGet(t, s, id)); diff != "" {
				t.Errorf("%s: one changed another: %s", name, diff)
			}
		}
	}
}

func testTooNew(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("k"))
	other := mustCreate(t, s, testKey("other"))
	full := mustGet(t, s, id)
	if err := d.Alter(t, id, "record_version = 2"); err != nil {
		t.Fatal(err)
	}
	before := d.Row(t, id)
	want := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ledger.ErrRecordTooNew) {
			t.Errorf("%s: got %v, want ErrRecordTooNew", what, err)
		}
	}
	want("update by the process that wrote it before", s.Update(t.Context(), ledger.ReadSet{ID: id}, change(note("n"), unchanged)))
	s = d.Open(t, Options{})
	_, _, err := s.Get(t.Context(), id)
	want("get", err)
	// Enough comes along to judge who may be told.
	var r *ledger.Refusal
	if !errors.As(err, &r) || r.Operation == nil {
		t.Fatalf("the refusal %v does not say of which record it is", err)
	}
	full.Sequence, full.Version, full.LastHash, full.Timeline = 0, 0, [32]byte{}, 0
	full.State, full.Custody, full.Terms, full.TargetSummary = 0, 0, ledger.Terms{}, ""
	full.Attempts, full.Starts, full.FirstStart, full.LastSend, full.NextCheckTime = 0, 0, time.Time{}, time.Time{}, time.Time{}
	full.Grant = ledger.Grant{ClaimID: full.Grant.ClaimID}
	if diff := cmp.Diff(full, *r.Operation); diff != "" {
		t.Errorf("get: %s", diff)
	}
	for _, q := range []ledger.Listing{{}, {Task: "task-1"}, {UpdatedAfter: time.Unix(1, 0)}} {
		q.Scope, q.Limit = "scope-a", 10
		page, _, err := s.List(t.Context(), q)
		i := slices.IndexFunc(page, func(o ledger.Operation) bool { return o.ID == id })
		if err != nil || len(page) != 2 || i < 0 {
			t.Fatalf("list: %d operations: %v", len(page), err)
		}
		if diff := cmp.Diff(full, page[i]); diff != "" {
			t.Errorf("list: %s", diff)
		}
	}
	never := func(ledger.View) (ledger.Change, error) {
		t.Error("decided on a record that can't be read")
		return ledger.Change{}, nil
	}
	want("update", s.Update(t.Context(), ledger.ReadSet{ID: id}, never))
	want("related", s.Update(t.Context(), ledger.ReadSet{ID: other, Related: []ledger.OperationID{id}}, never))
	if d.Row(t, id) != before {
		t.Error("the row has changed")
	}
	mustUpdate(t, s, ledger.ReadSet{ID: other}, change(note("others go on"), unchanged))
}

// testConstraints writes behind the store's back what no correct release writes: the database refuses it.
func testConstraints(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("processing"))
	done := insert(t, s, testKey("completed"), func(now time.Time) ledger.Operation {
		o := granted(received(testKey("completed"), now), "c", now)
		o.State, o.Result, o.FinalTime, o.Grant.LeaseUntil = ledger.Completed, &ledger.Result{}, now, time.Time{}
		return o
	}).ID
	for _, c := range []struct {
		id  ledger.OperationID
		set string
	}{
		{id, "state = 0"},
		{id, "state = 7"},
		{id, "state = 3"}, // no result
		{id, "state = 3, result = detail"},
		{id, "state = 4"}, // no failure
		{id, "state = 4, failure = detail"},
		{id, "result = detail"},
		{id, "failure = detail"},
		{id, "final_time = update_time"},
		{id, "grant_claim_id = ''"},
		{id, "grant_lease_until = NULL"},
		{id, "grant_send_until = NULL"},
		{id, "grant_started = FALSE"},
		{id, "first_start = NULL"},
		{id, "starts = 0"},
		{id, "starts = 2"}, // more than attempts
		{id, "starts = -1"},
		{id, "custody = 0"},
		{id, "custody = 4"},
		{id, "custody = 2"}, // no reason
		{id, "queue_reason = 1"},
		{id, "custody = 3"}, // nobody
		{id, "custodian = 'somebody'"},
		{id, "sequence = 0"},
		{id, "version = 0"},
		{id, "version = 2"}, // more than sequence
		{id, "timeline = 0"},
		{id, "record_version = 0"},
		{id, "check_open = TRUE"},
		{id, "create_time = next_check_time"}, // after its last update
		{id, "scope = ''"},
		{id, "tool = ''"},
		{id, "task = ''"},
		{id, "principal = ''"},
		{id, "last_hash = detail"},
		{id, "key_hash = detail"},
		{id, "fingerprint_digest = detail"},
		{id, "downstream_key = 'short'"},
		{id, "state = NULL"},
		{id, "detail = NULL"},
		{done, "result = NULL"},
		{done, "final_time = NULL"},
		{done, "failure = detail"},
		{done, "custody = 2, queue_reason = 1"},
		{done, "custody = 3, custodian = 'somebody'"},
		{done, "state = 2"},
		{done, "state = 5"},
	} {
		if err := d.Alter(t, c.id, c.set); err == nil {
			t.Errorf("%s: the database takes it", c.set)
		}
	}
	// The store says so, and does not retry for ever.
	err := s.Update(t.Context(), ledger.ReadSet{ID: id}, change(note(""), func(o *ledger.Operation, _ time.Time) { o.Custody = ledger.Operator }))
	if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("got %v, want an error that no retry mends", err)
	}
	mustVerify(t, s, id)
}

// testPossibleRows writes one of each kind that the ledger has: the constraints must not refuse them.
func testPossibleRows(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	for name, adjust := range map[string]func(o *ledger.Operation, now time.Time){
		"registered": func(*ledger.Operation, time.Time) {},
		"reserved": func(o *ledger.Operation, now time.Time) {
			*o = granted(*o, "c", now)
			o.State, o.Starts, o.Grant.Started = ledger.Received, 0, false
			o.Grant.SendUntil, o.FirstStart, o.LastSend = time.Time{}, time.Time{}, time.Time{}
		},
		"a reservation that is marked unknown": func(o *ledger.Operation, now time.Time) {
			o.State, o.Attempts, o.Grant = ledger.Unknown, 1, ledger.Grant{ClaimID: "c", Epoch: 1, Time: now}
		},
		"not executed": func(o *ledger.Operation, now time.Time) {
			*o = granted(*o, "c", now)
			o.State, o.Grant.LeaseUntil, o.Grant.Released = ledger.Received, time.Time{}, true
		},
		"unknown, lease over": func(o *ledger.Operation, now time.Time) {
			*o = granted(*o, "c", now)
			o.State, o.Check = ledger.Unknown, ledger.Check{Number: 1<<16 + 1, Began: now, LeaseUntil: now, Open: true}
		},
		"unknown, in the queue": func(o *ledger.Operation, now time.Time) {
			*o = granted(*o, "c", now)
			o.State, o.Custody, o.QueueReason, o.NextCheckTime = ledger.Unknown, ledger.Queued, ledger.NoMethod, time.Time{}
		},
		"behind the watermark": func(o *ledger.Operation, now time.Time) {
			o.State, o.MayHaveApplied, o.FirstStart = ledger.Unknown, true, now.Add(-time.Hour)
		},
		"held while it runs": func(o *ledger.Operation, now time.Time) {
			*o = granted(*o, "c", now)
			o.Custody, o.Custodian = ledger.Operator, "spiffe://test/person"
		},
		"completed": func(o *ledger.Operation, now time.Time) {
			*o = granted(*o, "c", now)
			o.State, o.Result, o.FinalTime = ledger.Completed, &ledger.Result{}, now
		},
		"completed by a person, never started": func(o *ledger.Operation, now time.Time) {
			o.State, o.Result, o.FinalTime = ledger.Completed, &ledger.Result{}, now
		},
		"failed, and contradicted": func(o *ledger.Operation, now time.Time) {
			o.State, o.Failure, o.FinalTime, o.NeedsAttention = ledger.Failed, &ledger.Failure{Kind: ledger.Abandoned}, now, true
		},
		"retired": func(o *ledger.Operation, now time.Time) {
			o.State, o.FinalTime = ledger.Retired, now
		},
		"retired, with its failure": func(o *ledger.Operation, now time.Time) {
			o.State, o.FinalTime, o.Failure = ledger.Retired, now, &ledger.Failure{Kind: ledger.Declined}
		},
	} {
		k := testKey(name)
		wantSame(t, s, insert(t, s, k, func(now time.Time) ledger.Operation {
			o := received(k, now)
			adjust(&o, now)
			return o
		}))
	}
}

func testDamaged(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	id := mustCreate(t, s, testKey("k"))
	if err := d.Alter(t, id, "last_hash = key_hash"); err != nil {
		t.Fatal(err)
	}
	events, err := s.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if ledger.VerifyChain(events, mustGet(t, s, id).LastHash) == nil {
		t.Error("a history that does not end at its row verifies")
	}
	if err := d.Alter(t, id, "detail = key_hash"); err != nil {
		t.Fatal(err)
	}
	s = d.Open(t, Options{}) // one that has not written the row itself
	_, _, err = s.Get(t.Context(), id)
	wantUnavailable(t, "get", err)
	wantUnavailable(t, "update", s.Update(t.Context(), ledger.ReadSet{ID: id}, change(note(""), unchanged)))
}
