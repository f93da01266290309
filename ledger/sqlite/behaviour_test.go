// SPDX-License-Identifier: Apache-2.0

package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// nothing is a decision that writes nothing.
func nothing(ledger.View) (ledger.Change, error) { return ledger.Change{}, nil }

func TestFileIsPrivateAndCommitsAreDurable(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, sqlite.Options{})
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(d.path), "*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("files %q, want at least the database and its log: %v", files, err)
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v: %v", filepath.Ext(name), info.Mode(), err)
		}
	}
	for pragma, want := range map[string]any{"journal_mode": "wal", "synchronous": int64(2)} {
		for _, got := range sqlite.Pragma(t, s, pragma) {
			if got != want {
				t.Errorf("%s is %v, want %v", pragma, got, want)
			}
		}
	}
}

func TestSchemaVersions(t *testing.T) {
	d := data{path: filepath.Join(t.TempDir(), "ledger.db")}
	s, other := d.open(t, sqlite.Options{}), d.open(t, sqlite.Options{})
	if err := s.Ready(t.Context()); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("without a schema: got %v, want ErrStoreUnavailable", err)
	}
	var group sync.WaitGroup
	for _, s := range []*sqlite.Store{s, other} { // processes that start at once
		group.Go(func() {
			if err := s.Migrate(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	db := d.raw(t)
	defer func() { _ = db.Close() }()
	for version, ok := range map[int]bool{0: false, 1: true, 2: true, 3: false} {
		if _, err := db.ExecContext(t.Context(), "UPDATE meta SET schema_version = ?", version); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{
			"ready":  s.Ready(t.Context()),
			"update": s.Update(t.Context(), ledger.ReadSet{}, nothing),
		} {
			if ok != (err == nil) || err != nil && !errors.Is(err, ledger.ErrStoreUnavailable) {
				t.Errorf("schema %d, %s: %v", version, what, err)
			}
			if !ok && !strings.Contains(err.Error(), fmt.Sprint("version ", version)) {
				t.Errorf("schema %d, %s: %v does not say so", version, what, err)
			}
		}
	}
}

func TestTimelineAndWatermarkAreRead(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, sqlite.Options{})
	want := ledger.Watermark{At: time.UnixMicro(1767323045000001).UTC(), LostSince: time.UnixMicro(1767225600000000).UTC()}
	db := d.raw(t)
	defer func() { _ = db.Close() }()
	_, err := db.ExecContext(t.Context(), "UPDATE meta SET timeline = 4000000000, watermark_time = ?, watermark_lost_since = ?",
		want.At.UnixMicro(), want.LostSince.UnixMicro())
	if err != nil {
		t.Fatal(err)
	}
	err = s.Update(t.Context(), ledger.ReadSet{}, func(v ledger.View) (ledger.Change, error) {
		if v.Timeline != 4000000000 || v.Watermark != want {
			t.Errorf("timeline %d, watermark %v", v.Timeline, v.Watermark)
		}
		return ledger.Change{}, nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLockedFileIsUnavailableInTime(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, sqlite.Options{})
	sqlite.SetBound(s, 100*time.Millisecond)
	db := d.raw(t)
	defer func() { _ = db.Close() }()
	other, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	if err := create(t.Context(), s, "k"); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("got %v, want ErrStoreUnavailable", err)
	}
	if err := s.Ready(t.Context()); err != nil {
		t.Errorf("who only reads does not wait: %v", err)
	}
	if err := s.Update(t.Context(), ledger.ReadSet{}, nothing); err != nil {
		t.Errorf("nor who has nothing to write: %v", err)
	}
	sqlite.SetBound(s, time.Minute)
	done := make(chan error)
	go func() { done <- create(t.Context(), s, "k") }()
	if _, err := other.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("after the lock is gone: %v", err)
	}
}

// TestFollowerMissesNothing: who follows what has changed is not led past a change whose time is earlier and whose commit is later.
func TestFollowerMissesNothing(t *testing.T) {
	s := harness{}.new(t).open(t, sqlite.Options{})
	begin := time.Now().Add(-time.Hour)
	follow := func() int {
		page, _, err := s.List(t.Context(), ledger.Listing{Scope: "scope-a", UpdatedAfter: begin, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page {
			begin = o.UpdateTime
		}
		return len(page)
	}
	decided, written := make(chan struct{}), make(chan error)
	proceed := make(chan struct{})
	go func() {
		written <- s.Update(t.Context(), ledger.ReadSet{ID: idOf("slow")}, func(v ledger.View) (ledger.Change, error) {
			close(decided)
			<-proceed
			return inserting("slow", "create")(v)
		})
	}()
	<-decided
	if err := create(t.Context(), s, "fast"); err != nil {
		t.Fatal(err)
	}
	if n := follow(); n != 0 {
		t.Errorf("%d changes are shown while an earlier one may come", n)
	}
	close(proceed)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if n := follow(); n != 2 {
		t.Errorf("%d changes are shown afterwards, want 2", n)
	}
}

// TestDueIndexKeepsNothing is why the due scan needs no low-water mark: what is not due any more is not read.
func TestDueIndexKeepsNothing(t *testing.T) {
	d := harness{}.new(t)
	s := d.open(t, sqlite.Options{})
	due := func(at time.Time) {
		var group sync.WaitGroup
		for i := range 400 {
			group.Go(func() {
				name := fmt.Sprint("due ", i)
				err := s.Update(t.Context(), ledger.ReadSet{ID: idOf(name)}, func(v ledger.View) (ledger.Change, error) {
					if v.Current == nil {
						c, err := inserting(name, "create")(v)
						c.Next.NextCheckTime = at
						return c, err
					}
					return changing("checked", func(o *ledger.Operation) { o.NextCheckTime = at })(v)
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	}
	pages := func() int { return count(t, d, "SELECT count(*) FROM dbstat WHERE name = 'operations_due'") }
	due(time.Now())
	if n := pages(); n < 3 {
		t.Fatalf("the index has %d pages: too few to show anything", n)
	}
	due(time.Time{})
	if n := pages(); n != 1 {
		t.Errorf("the index of what is due has %d pages when nothing is, want its root alone", n)
	}
}

func TestErrorsHoldNoValues(t *testing.T) {
	d := harness{}.New(t).(data)
	s := d.open(t, sqlite.Options{})
	k := ledger.Key{Scope: "scope-a", Tool: "tickets.create", Task: "canary-task", Key: "k"}
	hash := k.Hash()
	err := s.Update(t.Context(), ledger.ReadSet{ID: hash.OperationID()}, func(v ledger.View) (ledger.Change, error) {
		next := ledger.Operation{
			ID: hash.OperationID(), KeyHash: hash, Scope: k.Scope, Tool: k.Tool, Task: k.Task, Principal: "canary-agent",
			Custodian: "canary-person", CreateTime: v.Now, UpdateTime: v.Now, Timeline: 1, State: ledger.Received, Custody: ledger.Automation,
			Sequence: 1, Version: 1,
		}
		e := ledger.Event{OperationID: next.ID, Sequence: 1, Version: 1, Time: v.Now, Kind: ledger.EventNote, Note: "canary-note"}
		e.Seal(next.LastHash)
		next.LastHash = e.Hash
		return ledger.Change{Next: &next, Event: &e}, nil
	})
	if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) || strings.Contains(err.Error(), "canary") {
		t.Errorf("got %v, want a refusal without values", err)
	}
	if _, err := sqlite.Open(t.Context(), t.TempDir(), sqlite.Options{}); err == nil {
		t.Error("a directory is taken for a file")
	}
}
