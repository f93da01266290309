// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
)

// output runs a command to its end.
func output(t *testing.T, env []string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := run(t.Context(), args, env, &out, os.Stderr)
	return out.String(), err
}

func TestChecksShowEveryFault(t *testing.T) {
	bad := written(t, "contracts.yaml", "tools:\n  a: {effect: 1}\n  b: {effect: unsafe, send_within: 3}\n")
	policy := written(t, "policy.yaml", "trust_domain: ledger.test\nscopes: [{name: s, principals: [spiffe://ledger.test/a], tools: [t]}]")
	out, err := output(t, nil, "policy", "check", policy)
	if err != nil || !strings.Contains(out, "spiffe://ledger.test") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err = output(t, nil, "policy", "check", bad); exitCode(err) != 1 {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
	for _, args := range [][]string{{"policy", "check"}, {"policy", "check", policy, bad}} {
		if _, err := output(t, nil, args...); exitCode(err) != 2 {
			t.Errorf("%v: exit code %d, %v", args, exitCode(err), err)
		}
	}
}

func TestVersionSaysWhatTheBinaryWorksWith(t *testing.T) {
	out, err := output(t, nil, "version", "--output", "json")
	if err != nil {
		t.Fatal(err)
	}
	var r release
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Proto != "opsledger.v1" || r.SchemaOwn < 1 || r.SchemaTo != r.SchemaOwn+1 || !strings.HasPrefix(r.Go, "go") {
		t.Errorf("%+v", r)
	}
	if out, err := output(t, nil, "version"); err != nil || !strings.Contains(out, "opsledger.v1") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestTheBuiltInContractsAreOneOfEachKind(t *testing.T) {
	set, err := contract.Parse("devcontracts.yaml", devContracts)
	if err != nil {
		t.Fatal(err)
	}
	for tool, want := range map[ledger.Tool]struct {
		effect ledger.Effect
		method ledger.Method
	}{
		"tickets.create":  {ledger.Unsafe, ledger.MethodProbe},
		"payments.charge": {ledger.Keyed, ledger.MethodProbe},
		"messages.send":   {ledger.Unsafe, ledger.MethodOperator},
	} {
		c, declared := set.Contract(tool)
		if !declared || c.Effect != want.effect || c.Method != want.method || c.EffectWithin == 0 {
			t.Errorf("%s: declared %v, %s, %s, effect within %s", tool, declared, c.Effect, c.Method, c.EffectWithin)
		}
	}
}

func TestMigrateStatusChangesNothing(t *testing.T) {
	store := "sqlite:" + t.TempDir() + "/ledger.db"
	for range 2 {
		out, err := output(t, nil, "migrate", "status", "--store", store)
		if exitCode(err) != 1 || !strings.Contains(out, "schema version 0,") || !strings.Contains(err.Error(), "ledgerd migrate up") {
			t.Fatalf("exit code %d, %v\n%s", exitCode(err), err, out)
		}
	}
	if out, err := output(t, nil, "migrate", "up", "--store", store); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := output(t, nil, "migrate", "status", "--store", store); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, store := range []string{"", "sqlite:", "ledger.db", "mysql://x"} {
		if _, err := output(t, nil, "migrate", "up", "--store", store); exitCode(err) != 2 {
			t.Errorf("%q: exit code %d, %v", store, exitCode(err), err)
		}
	}
}
