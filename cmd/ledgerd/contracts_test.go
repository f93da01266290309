// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/opsledger/opsledger/ledger/contract"
)

// checked runs "contracts check" to its end.
func checked(t *testing.T, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, talk bytes.Buffer
	err = run(t.Context(), append([]string{"contracts", "check"}, args...), env, &out, &talk)
	return out.String(), talk.String(), err
}

func TestContractsAreCheckedFileByFile(t *testing.T) {
	good := written(t, "contracts.yaml", "tools: {mail.send: {effect: unsafe, compensation: {tool: mail.recall, require_unchanged: false}}}")
	bad := written(t, "contracts.yaml", "tools:\n  a: {effect: 1}\n  b: {effect: unsafe, send_within: 3}\n")
	out, talk, err := checked(t, nil, good)
	if err != nil || !strings.HasPrefix(out, good+": ok\n") || !strings.Contains(out, "mail.send  UNSAFE  OPERATOR") {
		t.Errorf("%v\n%s", err, out)
	}
	if !strings.Contains(talk, "warning: "+good+":1: mail.send: compensation.tool has no contract") {
		t.Errorf("no warning: %s", talk)
	}
	if out, _, err = checked(t, []string{"LEDGERD_CONTRACTS=" + good}); err != nil || !strings.Contains(out, ": ok\n") {
		t.Errorf("by the environment: %v\n%s", err, out)
	}
	out, _, err = checked(t, nil, good, bad)
	if exitCode(err) != 1 || !strings.Contains(err.Error(), bad+":2: a: effect must be") || !strings.Contains(err.Error(), bad+":3: b: send_within must be") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
	if !strings.Contains(out, good+": ok\n") || strings.Contains(out, bad) {
		t.Errorf("the good one is not ok, or the bad one is: %s", out)
	}

	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "tools: {a: {effect: read}}", "b.yaml": "tools: {b: {effect: unsafe}}", "c.yaml": "tools: {a: {effect: unsafe}}"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, _, err = checked(t, nil, dir)
	if exitCode(err) != 1 || !strings.Contains(err.Error(), "c.yaml:1: a: the tool has two contracts, the other one at "+filepath.Join(dir, "a.yaml")+":1") {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
	if !strings.Contains(out, "a.yaml: ok\n") || !strings.Contains(out, "b.yaml: ok\n") || strings.Contains(out, "c.yaml: ok") {
		t.Errorf("%s", out)
	}
	if _, _, err = checked(t, nil, filepath.Join(dir, "none.yaml")); exitCode(err) != 1 || !strings.Contains(err.Error(), "none.yaml: no such file") {
		t.Errorf("a missing file: exit code %d, %v", exitCode(err), err)
	}
	for _, args := range [][]string{{}, {"--prnt", "a"}, {good, "--print", "mail.recall"}} {
		if _, _, err := checked(t, nil, args...); exitCode(err) != 2 {
			t.Errorf("%v: exit code %d, %v", args, exitCode(err), err)
		}
	}
}

func TestWhatIsPrintedIsTheContractThatHolds(t *testing.T) {
	file := written(t, "contracts.yaml", "tools: {mail.send: {effect: unsafe, lease: {default: 5s}}, other: {effect: read}}")
	out, _, err := checked(t, nil, file, "--print", "mail.send")
	if err != nil || !strings.Contains(out, "send_within: 5s\n") || !strings.Contains(out, "method: operator\n") || strings.Contains(out, "other") {
		t.Errorf("%v\n%s", err, out)
	}
	short, err := contract.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	long, err := contract.Parse("printed", []byte(out))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := short.Contract("mail.send")
	if b, _ := long.Contract("mail.send"); a.Version != b.Version {
		t.Errorf("printed, it is %s, and was %s", b.Version, a.Version)
	}
}

func TestTheSchemaIsPrinted(t *testing.T) {
	out, err := output(t, nil, "contracts", "schema")
	if err != nil || !json.Valid([]byte(out)) || !strings.Contains(out, "2020-12") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestABrokenFileOfADirectoryLeavesTheOldContractsInForceAndIsCounted(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	dir := h.path("contracts")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h.write(t, "contracts/a.yaml", "tools: {tickets.create: {effect: unsafe, lease: {default: 7s}}}")
	r := start(t, nil, append(h.args, "--contracts", dir)...)
	h.write(t, "contracts/b.yaml", "tools:\n  mail.send: {effect: 4711}")
	r.signals <- syscall.SIGHUP
	r.log.waitFor(t, `"kind":"contracts","error":`)
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `ledger_reloads_total{ledger_reload_kind="contracts",ledger_reload_result="refused"} 1`) {
		t.Errorf("not counted:\n%s", metrics)
	}
	h.write(t, "contracts/b.yaml", "tools:\n  mail.send: {effect: unsafe}")
	r.signals <- syscall.SIGHUP
	r.log.waitFor(t, `"kind":"contracts"}`)
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `ledger_reloads_total{ledger_reload_kind="contracts",ledger_reload_result="applied"} 1`) {
		t.Errorf("not counted:\n%s", metrics)
	}
}
