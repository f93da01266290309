// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// cellar is a real store that can be away, or come back with nothing in it.
type cellar struct {
	ledger.ContractStore
	away  bool
	asked int
}

func newCellar(t *testing.T) *cellar {
	t.Helper()
	c := &cellar{}
	c.empty(t)
	return c
}

// empty puts a new store in its place.
func (c *cellar) empty(t *testing.T) {
	t.Helper()
	s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.ContractStore = s
}

func (c *cellar) SaveContracts(ctx context.Context, versions []ledger.ContractVersion) error {
	if c.away {
		return ledger.ErrStoreUnavailable
	}
	return c.ContractStore.SaveContracts(ctx, versions)
}

func (c *cellar) SavedContract(ctx context.Context, version string) ([]byte, error) {
	if c.asked++; c.away {
		return nil, ledger.ErrStoreUnavailable
	}
	return c.ContractStore.SavedContract(ctx, version)
}

func (c *cellar) has(t *testing.T, version string) bool {
	t.Helper()
	document, err := c.ContractStore.SavedContract(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	return document != nil
}

// parsed is the contract of the one tool that a text declares.
func parsed(t *testing.T, tool ledger.Tool, text string) contract.Contract {
	t.Helper()
	set, err := contract.Parse("contracts.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	c, ok := set.Declared(tool)
	if !ok {
		t.Fatalf("%s has no contract", tool)
	}
	return c
}

func TestContractsAreSavedBeforeTheyAreInForce(t *testing.T) {
	const first, second = "tools: {a: {effect: read}, b: {effect: unsafe}}", "tools: {a: {effect: unsafe}, b: {effect: unsafe}}"
	older, newer, other := parsed(t, "a", first).Version, parsed(t, "a", second).Version, parsed(t, "b", first).Version
	h := newHouse(t, "")
	h.write(t, "contracts.yaml", first)
	declared, reloaders, err := openContracts(h.path("contracts.yaml"), func(string, error) {})
	if err != nil {
		t.Fatal(err)
	}
	inForce := func() string {
		c, _ := declared.Contract("a")
		return c.Version
	}
	store := newCellar(t)
	store.away = true
	if _, err := saveContracts(t.Context(), declared, testRing(t), store, slog.Default()); !errors.Is(err, ledger.ErrStoreUnavailable) {
		t.Errorf("a start while the store is away: %v", err)
	}
	store.away = false
	starting, cancel := context.WithCancel(t.Context())
	if _, err := saveContracts(starting, declared, testRing(t), store, slog.Default()); err != nil {
		t.Fatal(err)
	}
	cancel() // the start is over
	if !store.has(t, older) || !store.has(t, other) || store.has(t, newer) {
		t.Error("what is in force at the start is not what is saved")
	}
	h.write(t, "contracts.yaml", second)
	store.away = true
	if _, err := reloaders[0].Reload(); !errors.Is(err, ledger.ErrStoreUnavailable) || inForce() != older {
		t.Errorf("a reload while the store is away: %v; in force: %s", err, inForce())
	}
	store.away = false
	if changed, err := reloaders[0].Reload(); !changed || err != nil || inForce() != newer || !store.has(t, newer) || !store.has(t, older) {
		t.Errorf("a reload: changed %v, error %v, in force: %s", changed, err, inForce())
	}
	store.empty(t) // a standby that was promoted before it had them
	if changed, err := reloaders[0].Reload(); changed || err != nil || !store.has(t, newer) || !store.has(t, other) {
		t.Errorf("after a failover: changed %v, error %v", changed, err)
	}
	if _, err := saveContracts(t.Context(), &contract.Set{}, testRing(t), &cellar{away: true}, slog.Default()); err != nil {
		t.Errorf("without contracts: %v", err)
	}
}

// testRing lacks what unique rules need.
func testRing(t *testing.T) *fingerprint.Ring {
	t.Helper()
	secret, err := fingerprint.NewRandomSecret("k1")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := fingerprint.NewRing("k1", secret)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// Unique rules need a secret that is asked for when they are to come into force, and not before.
func TestUniqueRulesNeedTheirSecret(t *testing.T) {
	const plain, unique = "tools: {a: {effect: unsafe}}", "tools: {a: {effect: unsafe, request: {fields: {x: {category: x}}}, unique: {by: [x], within: 1m}}}"
	h := newHouse(t, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	h.write(t, "contracts.yaml", unique)
	var usage usageError
	err := run(t.Context(), h.args, nil, io.Discard, io.Discard)
	if !errors.As(err, &usage) || !strings.Contains(err.Error(), "--secrets") || !strings.Contains(err.Error(), "the contract of a has some") {
		t.Errorf("a start: %v", err)
	}
	h.write(t, "contracts.yaml", plain)
	ring := testRing(t)
	for _, has := range []bool{false, true} {
		declared, reloaders, err := openContracts(h.path("contracts.yaml"), func(string, error) {})
		if err != nil {
			t.Fatal(err)
		}
		if has {
			if err := ring.SetUnique(bytes.Repeat([]byte{7}, fingerprint.MinSecretSize)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := saveContracts(t.Context(), declared, ring, newCellar(t), slog.Default()); err != nil {
			t.Fatal(err)
		}
		h.write(t, "contracts.yaml", unique)
		_, err = reloaders[0].Reload()
		c, _ := declared.Contract("a")
		if has != (err == nil) || has != (len(c.Unique) > 0) || !has && !errors.Is(err, fingerprint.ErrNoUniqueSecret) {
			t.Errorf("a reload, the ring has it %t: %v; %d rules are in force", has, err, len(c.Unique))
		}
		h.write(t, "contracts.yaml", plain)
	}
}

// The store knows the secret of slots: a server with another one would let look-alikes through.
func TestTheSecretOfSlotsIsTheStores(t *testing.T) {
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "ledger.db"), sqlite.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	ring := func(unique string) *fingerprint.Ring {
		text := ringText("k1", "k1")
		if unique != "" {
			text += "unique_secret: " + secretText(unique)
		}
		ring, err := fingerprint.ParseRing("secrets.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return ring
	}
	agreed := func(r *fingerprint.Ring) error { return agree(t.Context(), store, "secrets.yaml", r) }
	first, second := ring("k2"), ring("k3")
	for range 2 {
		if err := agreed(first); err != nil {
			t.Errorf("the first one: %v", err)
		}
	}
	if err := agreed(ring("")); err != nil { // its contracts have no unique rules, or do not come into force
		t.Errorf("none: %v", err)
	}
	if err := agreed(second); err == nil || !strings.Contains(err.Error(), "secrets.yaml:4: unique_secret is not the one that the store knows") {
		t.Errorf("another one: %v", err)
	}
	for _, k := range keysOf(first, map[string]ledger.KeptSecret{fingerprint.UniqueID: {Check: first.Checks()[fingerprint.UniqueID]}}, nil) {
		if k.ID == fingerprint.UniqueID && (k.Role != "unique" || k.Store != "same" || k.Records != 0) {
			t.Errorf("keys show %+v", k)
		}
	}
	if err := errors.Join(store.ForgetSecret(t.Context(), fingerprint.UniqueID), agreed(second)); err != nil {
		t.Errorf("after it was forgotten on purpose: %v", err)
	}
}

// dev draws it, and for a ring of an earlier release, too; it never draws it again.
func TestDevKeepsTheSecretOfUniqueRules(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secrets.yaml")
	if err := os.WriteFile(path, testRing(t).RevealYAML(), 0o600); err != nil {
		t.Fatal(err)
	}
	var last []byte
	for i := range 3 {
		ring, err := ensureRing(path)
		if err != nil || !ring.HasUnique() {
			t.Fatalf("%v", err)
		}
		now, err := os.ReadFile(path)
		if err != nil || i > 0 && !bytes.Equal(now, last) {
			t.Errorf("the file has changed: %v", err)
		}
		last = now
	}
}

func TestContractsOfRecordsAreFound(t *testing.T) {
	store := newCellar(t)
	saved := &savedContracts{store: store, log: slog.New(slog.DiscardHandler)}
	c := parsed(t, "a", "tools: {a: {effect: read, request: {ignore: [trace]}}}")
	save := func(version, document string) {
		t.Helper()
		if err := store.ContractStore.SaveContracts(t.Context(), []ledger.ContractVersion{{Version: version, Document: []byte(document)}}); err != nil {
			t.Fatal(err)
		}
	}
	find := func(tool ledger.Tool, version string, want error) {
		t.Helper()
		got, err := saved.find(t.Context(), tool, version)
		_, rulesErr := saved.rules(t.Context(), tool, version)
		if !errors.Is(err, want) || !errors.Is(rulesErr, want) || err == nil && got.Version != version {
			t.Errorf("version %s of %s: %q, %v, %v; want %v", version, tool, got.Version, err, rulesErr, want)
		}
	}
	find("a", c.Version, ledger.ErrRecordTooNew)
	store.away = true
	find("a", c.Version, ledger.ErrStoreUnavailable)
	store.away = false
	save(c.Version, string(contract.Encode(c)))
	find("a", c.Version, nil)
	find("b", c.Version, ledger.ErrStoreUnavailable) // it names another tool's: one of the two is damaged
	store.away, store.asked = true, 0
	find("a", c.Version, nil)
	if store.asked != 0 {
		t.Errorf("the store was asked again %d times", store.asked)
	}
	store.away = false
	save("of-a-newer-form", `{"spec":2,"tool":"a","contract":{"effect":"read"}}`)
	find("a", "of-a-newer-form", ledger.ErrRecordTooNew)
	save("with-a-newer-key", `{"spec":1,"tool":"a","contract":{"effect":"read","of_a_later_release":true}}`)
	find("a", "with-a-newer-key", ledger.ErrRecordTooNew)
	save("not-its-own", string(contract.Encode(c)))
	find("a", "not-its-own", ledger.ErrStoreUnavailable)
	for i := range mostRead + 10 {
		saved.remember(fmt.Sprint("other ", i), c)
	}
	if len(saved.read) != mostRead {
		t.Errorf("%d are in memory", len(saved.read))
	}
}

// What a tool that has lost its contract did under it is shown as that contract said.
func TestReplaysOfToolsThatHaveLostTheirContract(t *testing.T) {
	const none = "default"
	store := newCellar(t)
	version := func(text string) string {
		c := parsed(t, "t", "tools: {t: {effect: read"+text+"}}")
		if err := store.SaveContracts(t.Context(), []ledger.ContractVersion{{Version: c.Version, Document: contract.Encode(c)}}); err != nil {
			t.Fatal(err)
		}
		return c.Version
	}
	open, closed := version(""), version(`, replay: {rule: "caller.principal == 'p1'"}`)
	for name, tt := range map[string]struct {
		made, judged string
		away         bool
		p1, p2       bool
	}{
		"it never had one":                    {none, none, false, true, true},
		"it had one without a rule":           {open, open, false, true, true},
		"it had one with a rule":              {closed, closed, false, true, false},
		"it got a rule later":                 {open, closed, false, true, false},
		"it had a rule, and none later":       {closed, open, false, true, false},
		"it got one with a rule later":        {none, closed, false, true, false},
		"nobody knows what it had":            {"0123456789abcdef", open, false, false, false},
		"nobody knows what it had later":      {none, "0123456789abcdef", false, false, false},
		"the store is away":                   {open, open, true, false, false},
		"the store is away, it never had any": {none, none, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			rules := replayRules{&contract.Set{}, &savedContracts{store: store, log: slog.New(slog.DiscardHandler)}}
			store.away = tt.away
			op := &ledger.Operation{Tool: "t", Fingerprint: ledger.Fingerprint{Contract: tt.made}, Terms: ledger.Terms{ContractVersion: tt.judged}}
			for principal, want := range map[ledger.Principal]bool{"p1": tt.p1, "p2": tt.p2} {
				if got := rules.MayShow(t.Context(), ledger.Viewer{Principal: principal}, op); got != want {
					t.Errorf("%s may see it: %v", principal, got)
				}
			}
		})
	}
	// A tool that has one is shown by that, whatever it had before.
	set, err := contract.Parse("contracts.yaml", []byte("tools: {t: {effect: read}}"))
	if err != nil {
		t.Fatal(err)
	}
	op := &ledger.Operation{Tool: "t", Fingerprint: ledger.Fingerprint{Contract: closed}, Terms: ledger.Terms{ContractVersion: closed}}
	if !(replayRules{contracts: set}).MayShow(t.Context(), ledger.Viewer{Principal: "p2"}, op) {
		t.Error("the contract in force has no rule")
	}
}
