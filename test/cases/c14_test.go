// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Two versions of the contract of card.charge, of which the older one drops trace_id, the newer one sent_at in its place, and reads amounts by
// their value; and a file without a contract of the tool.
var (
	chargeLine = "request: {fields: {amount: {category: amount}, to: {category: recipient}, currency: {category: amount}}}"
	older      = strings.Replace(contractsText, chargeLine, "request: {fields: {amount: {category: amount}}, ignore: [trace_id]}", 1)
	newer      = strings.Replace(contractsText, chargeLine, "request: {fields: {amount: {type: decimal, category: amount}}, ignore: [sent_at]}", 1)
	without    = "tools: {ticket.get: {effect: read}}"
)

// respelled are retries of {"amount":100}: under which contracts they are another request, and in which category.
var respelled = map[string]map[string]string{
	storedBody:                       {},
	`{ "amount" : 1e2 }`:             {},
	`{"amount":"100.0"}`:             {"older": "amount", "none": "other"},
	`{"amount":100,"trace_id":"t2"}`: {"newer": "other", "none": "other"},
	`{"amount":100,"sent_at":2}`:     {"older": "other", "none": "other"},
	otherBody:                        {"older": "amount", "newer": "amount", "none": "other"},
}

// settledAs is what a retry of a record that does not move any more is told.
var settledAs = map[pb.State]string{
	pb.State_STATE_COMPLETED: "REPLAY", pb.State_STATE_FAILED: "FAILED", pb.State_STATE_UNKNOWN: "UNKNOWN",
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// contractsFile writes a file of contracts, and returns its path and the arguments by which ledgerd uses it.
func contractsFile(t *testing.T, text string) (path string, args []string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "contracts.yaml")
	write(t, path, text)
	return path, []string{"--contracts", path, "--reload-interval", "100ms"}
}

// inForce is the version of the contract of card.charge.
func inForce(t *testing.T, n *node) string {
	t.Helper()
	tool, err := n.dial(t, billing).GetTool(within(t), &pb.GetToolRequest{Tool: "card.charge"})
	if err != nil {
		t.Fatal(err)
	}
	return tool.GetContractVersion()
}

// A deploy that changes what of a request counts makes neither a conflict nor a match of what was claimed before it, at whichever process.
func TestC14(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			file, args := contractsFile(t, older)
			e := fresh(t, store, nodeOptions{args: args})
			_, args = contractsFile(t, newer)
			second := e.start(t, nodeOptions{args: args}) // SQLite's file takes two processes, too
			versions := map[string]string{"older": inForce(t, e.node), "newer": inForce(t, second)}
			if versions["older"] == versions["newer"] {
				t.Fatal("both contracts have one version")
			}
			records := map[string][]settled{"older": recordsInEachState(t, e, e.node), "newer": recordsInEachState(t, e, second)}
			for made, all := range records {
				for _, r := range all {
					if got := e.row(t, r.id)["fingerprint_contract"]; r.request.GetKey().GetTool() == "card.charge" && got != versions[made] {
						t.Errorf("%s, under the %s contract: its version is %s, want %s", r.name, made, got, versions[made])
					}
				}
			}
			judged := func(t *testing.T, n *node) {
				t.Helper()
				w := n.dial(t, billing)
				for made, all := range records {
					for _, r := range all {
						judgedBy(t, e, w, made, r)
					}
				}
			}
			t.Run("at the one with the older contracts", func(t *testing.T) { judged(t, e.node) })
			t.Run("at the one with the newer contracts", func(t *testing.T) { judged(t, second) })
			t.Run("after the older ones were replaced", func(t *testing.T) {
				write(t, file, newer)
				eventually(t, "the newer contracts are in force", func() bool { return inForce(t, e.node) == versions["newer"] })
				judged(t, e.node)
			})
			t.Run("after kill -9 and a start", func(t *testing.T) {
				e.node.restart(t)
				judged(t, e.node)
			})
			t.Run("after the tool has lost its contract", func(t *testing.T) {
				write(t, file, without)
				e.node.restart(t)
				judged(t, e.node)
			})
			second.kill(t)
			t.Run("without the version", func(t *testing.T) { withoutVersion(t, e, records["older"], versions["older"]) })
		})
	}
}

// judgedBy retries a record with each body, and expects what the contract says under which it was made.
func judgedBy(t *testing.T, e *env, w *worker, made string, r settled) {
	t.Helper()
	if r.request.GetKey().GetTool() != "card.charge" {
		made = "none"
	}
	bodies, before := slices.Sorted(maps.Keys(respelled)), e.snapshot(t, r.id)
	for _, body := range bodies {
		category := respelled[body][made]
		if category == "" {
			continue
		}
		_, err := w.tryClaim(t, sameKey(r.request, body))
		if conflict := detail[*pb.FingerprintConflict](err); !slices.Equal(conflict.GetCategories(), []string{category}) || conflict.GetOperationId() != r.id {
			t.Errorf("%s, made under %s, other than %s: %v, want a conflict in %s", r.name, made, body, err, category)
		}
	}
	e.wantUnchanged(t, r.id, before)
	for _, body := range bodies {
		if respelled[body][made] != "" {
			continue
		}
		answer, err := w.tryClaim(t, sameKey(r.request, body))
		want := settledAs[r.state]
		if err != nil || answer.GetOperation().GetId() != r.id || want != "" && outcome(answer) != want {
			t.Errorf("%s, made under %s, the same as %s: %v, %v", r.name, made, body, answer, err)
		}
		if answer.GetCompleted().GetRedacted() {
			t.Errorf("%s, made under %s: redacted, though no contract has a rule", r.name, made)
		}
	}
}

// withoutVersion takes a version away from the store while nobody remembers it: what was made under it is neither the same nor another
// request then. It is judged again when the version is back.
func withoutVersion(t *testing.T, e *env, records []settled, version string) {
	was := e.rows(t, "SELECT document FROM contracts WHERE version = $1", version)
	if len(was) != 1 {
		t.Fatalf("the store has the version %d times", len(was))
	}
	document, err := hex.DecodeString(was[0]["document"])
	if err != nil {
		t.Fatal(err)
	}
	e.node.restart(t)
	w := e.node.dial(t, billing)
	tooNew := func(t *testing.T) {
		t.Helper()
		for _, r := range records {
			if r.request.GetKey().GetTool() != "card.charge" {
				judgedBy(t, e, w, "older", r) // no version is needed for it
				continue
			}
			before := e.snapshot(t, r.id)
			for body := range respelled {
				_, err := w.tryClaim(t, sameKey(r.request, body))
				wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW)
			}
			e.wantUnchanged(t, r.id, before)
		}
	}
	change := func(sql string, args ...any) {
		t.Helper()
		if n := e.exec(t, sql, args...); n != 1 {
			t.Fatalf("%s: %d rows", sql, n)
		}
	}
	change("DELETE FROM contracts WHERE version = $1", version)
	t.Run("it is not there", tooNew)
	newerForm := strings.Replace(string(document), `"spec":1`, `"spec":2`, 1)
	if newerForm == string(document) {
		t.Fatal("the document does not say its form")
	}
	change("INSERT INTO contracts (version, document, create_time) SELECT $1, $2, max(create_time) FROM contracts", version, []byte(newerForm))
	t.Run("it is in a newer form", tooNew)
	change("UPDATE contracts SET document = $1 WHERE version = $2", document, version)
	t.Run("it is back", func(t *testing.T) {
		for _, r := range records {
			judgedBy(t, e, w, "older", r)
		}
	})
}

// A set that can't be saved does not come into force: its records could not be judged by it later.
func TestC14ContractsThatCanNotBeSaved(t *testing.T) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			file, args := contractsFile(t, older)
			e := fresh(t, store, nodeOptions{args: args})
			before := inForce(t, e.node)
			release := e.holdContracts(t)
			write(t, file, newer)
			if err := e.node.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the reload is refused", func() bool {
				return e.node.metric(t, "ledger_reloads_total", `kind="contracts"`, `result="refused"`) == 1
			})
			if got := inForce(t, e.node); got != before {
				t.Errorf("version %s is in force, though it could not be saved", got)
			}
			release()
			eventually(t, "the contracts are in force", func() bool { return inForce(t, e.node) != before })
			for _, version := range []string{before, inForce(t, e.node)} {
				if n := len(e.rows(t, "SELECT version FROM contracts WHERE version = $1", version)); n != 1 {
					t.Errorf("version %s is in the store %d times", version, n)
				}
			}
		})
	}
}

// holdContracts keeps ledgerd from saving contracts until the returned function is called.
func (e *env) holdContracts(t *testing.T) (release func()) {
	t.Helper()
	conn, err := e.db(t).Conn(within(t))
	if err != nil {
		t.Fatal(err)
	}
	run := func(sql string) {
		t.Helper()
		if _, err := conn.ExecContext(context.WithoutCancel(t.Context()), sql); err != nil {
			t.Fatal(err)
		}
	}
	if e.store == "sqlite" {
		run("BEGIN IMMEDIATE")
	} else {
		run("BEGIN")
		run("LOCK TABLE contracts IN ACCESS EXCLUSIVE MODE")
	}
	return func() { run("ROLLBACK") }
}
