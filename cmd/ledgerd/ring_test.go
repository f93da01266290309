// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// secretText is a secret as a ring's file has it, another one for each name.
func secretText(name string) string {
	return base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("canary-"+name), 8))
}

// ringText is a ring's file. An id is "k1", or "k1=name" with the secret of another name.
func ringText(primary string, ids ...string) string {
	text := fmt.Sprintf("primary: %s\nsecrets:\n", primary)
	for _, id := range ids {
		id, name, given := strings.Cut(id, "=")
		if !given {
			name = id
		}
		text += fmt.Sprintf("  - {id: %s, secret: %q}\n", id, secretText(name))
	}
	return text
}

// sameAgain claims a key again, which must be in progress: its request is the record's, under whatever secret.
func sameAgain(t *testing.T, client pb.LedgerServiceClient, key string) {
	t.Helper()
	if answer, err := client.Claim(call(t), claim(key)); err != nil || answer.GetInProgress() == nil {
		t.Errorf("%s again: %v, %v", key, answer, err)
	}
}

func newKey(t *testing.T, client pb.LedgerServiceClient, key string) {
	t.Helper()
	if answer, err := client.Claim(call(t), claim(key)); err != nil || answer.GetGranted() == nil {
		t.Errorf("%s: %v, %v", key, answer, err)
	}
}

// wantMetrics fails for each line that the metrics lack, and for each after "no ", that they have.
func (r *running) wantMetrics(lines ...string) {
	r.t.Helper()
	_, metrics := r.get("/metrics")
	for _, line := range lines {
		line, never := strings.CutPrefix(line, "no ")
		if strings.Contains(metrics, line) == never {
			r.t.Errorf("metrics: want %q, unless never (%v)", line, never)
		}
	}
}

func secretIs(metric, id, value string) string {
	return fmt.Sprintf("ledger_fingerprint_secret_%s{ledger_fingerprint_secret_id=%q} %s", metric, id, value)
}

func TestTheRingIsReloadedAndRotated(t *testing.T) {
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, store(t))
			h.write(t, "secrets.yaml", ringText("k1", "k1"))
			r := start(t, nil, append(h.args, "--migrations", "apply")...)
			client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
			newKey(t, client, "a")
			r.wantMetrics(secretIs("primary", "k1", "1"), secretIs("uses_total", "k1", "1"), `no ledger_fingerprint_secret_id="k2"`)
			reloaded := 0
			reload := func(text string) {
				t.Helper()
				h.write(t, "secrets.yaml", text)
				r.signals <- syscall.SIGHUP
				reloaded++
				r.log.waitForAll(t, `"kind":"secrets"}`, reloaded)
			}
			reload(ringText("k1", "k1", "k2"))
			newKey(t, client, "b")
			sameAgain(t, client, "a")
			r.wantMetrics(secretIs("primary", "k1", "1"), secretIs("primary", "k2", "0"), secretIs("uses_total", "k1", "3"), secretIs("uses_total", "k2", "0"))
			reload(ringText("k2", "k1", "k2"))
			newKey(t, client, "c")
			for _, key := range []string{"a", "b", "c"} {
				sameAgain(t, client, key)
			}
			r.wantMetrics(secretIs("primary", "k1", "0"), secretIs("primary", "k2", "1"), secretIs("uses_total", "k1", "5"), secretIs("uses_total", "k2", "2"))
			out, err := output(t, nil, "keys", "--store-file", h.path("store"), "--secrets", h.path("secrets.yaml"))
			if err != nil || !strings.Contains(out, "\nk1  kept     ") || !strings.Contains(out, "  same   2\nk2  primary  ") || !strings.HasSuffix(out, "  same   1\n") {
				t.Errorf("keys: %v\n%s", err, out)
			}
			wantHidden(t, r, out)
		})
	}
}

// wantHidden fails if the log, the metrics or a text show a part of a secret.
func wantHidden(t *testing.T, r *running, texts ...string) {
	t.Helper()
	log, _ := r.log.read()
	_, metrics := r.get("/metrics")
	for _, text := range append(texts, log, metrics) {
		for _, id := range []string{"k1", "k2", "k3", "other"} {
			if strings.Contains(text, secretText(id)[:12]) || strings.Contains(text, "canary") {
				t.Errorf("a secret is shown:\n%s", text)
			}
		}
	}
}

func TestABrokenOrUnfitRingLeavesTheOldInForce(t *testing.T) {
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, store(t))
			h.write(t, "secrets.yaml", ringText("k1", "k1"))
			r := start(t, nil, append(h.args, "--migrations", "apply")...)
			client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
			newKey(t, client, "a")
			good := ringText("k2", "k1", "k2")
			h.write(t, "secrets.yaml", good)
			r.signals <- syscall.SIGHUP
			r.log.waitFor(t, `"kind":"secrets"}`)
			newKey(t, client, "b")
			file := h.path("secrets.yaml")
			refused := 0
			for _, c := range []struct{ name, text, want string }{
				{"no YAML", "primary: [", file + ":2: must be one valid YAML document"},
				{"no primary", strings.Replace(good, "primary: k2", "", 1), file + ":2: lacks the key primary"},
				{"two primaries", "primary: k1\n" + good, file + ":2: has the key primary twice"},
				{"a primary that is not there", ringText("k9", "k1", "k2"), file + ":1: primary: is not the id of one of the secrets"},
				{"an id twice", ringText("k2", "k1", "k2", "k2=other"), file + ":5: secrets[2].id: is there twice"},
				{"a secret under two ids", ringText("k2", "k1", "k2", "k3=k1"), file + ":5: secrets[2].secret: is the same as another one's"},
				{"another secret under an id", ringText("k2", "k1=other", "k2", "k3"), file + ":3: the secret of the id k1 is not the one that the store knows"},
				{"without a secret that has records", ringText("k2", "k2", "k3"), file + ": lacks the secret of the id k1, which records in the store may need"},
				{"nothing", "", file + ": must be"},
			} {
				t.Run(c.name, func(t *testing.T) {
					h.write(t, "secrets.yaml", c.text)
					r.signals <- syscall.SIGHUP
					refused++
					r.log.waitForAll(t, `"kind":"secrets","error":`, refused)
					if log, _ := r.log.read(); !strings.Contains(log, `"error":"`+c.want) {
						t.Errorf("not told %q:\n%s", c.want, log)
					}
					r.wantMetrics(fmt.Sprintf(`ledger_reloads_total{ledger_reload_kind="secrets",ledger_reload_result="refused"} %d`, refused),
						secretIs("primary", "k1", "0"), secretIs("primary", "k2", "1"), `no ledger_fingerprint_secret_id="k3"`)
					sameAgain(t, client, "a")
					sameAgain(t, client, "b")
					newKey(t, client, strings.ReplaceAll(c.name, " ", "-"))
				})
			}
			// What was refused has left nothing behind: a ring with another secret under the id k3 is good.
			h.write(t, "secrets.yaml", ringText("k2", "k1", "k2", "k3=k4"))
			r.signals <- syscall.SIGHUP
			r.log.waitForAll(t, `"kind":"secrets"}`, 2)
			r.wantMetrics(secretIs("primary", "k3", "0"))
			wantHidden(t, r)
		})
	}
}

func TestServersWithOtherSecretsOnOneStoreAreRefused(t *testing.T) {
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, store(t))
			h.write(t, "secrets.yaml", ringText("k1", "k1"))
			args := append(h.args, "--migrations", "apply")
			one := start(t, nil, args...)
			newKey(t, pb.NewLedgerServiceClient(dial(t, one.at.GRPC, h.as(t, agentA))), "a")
			second := func(text string) error {
				h.write(t, "second.yaml", text)
				_, err := output(t, nil, append(args, "--secrets", h.path("second.yaml"))...)
				return err
			}
			for text, want := range map[string]string{
				ringText("k1", "k1=other"):       "second.yaml:3: the secret of the id k1 is not the one that the store knows",
				ringText("k2", "k2", "k1=other"): "second.yaml:4: the secret of the id k1 is not the one that the store knows",
				ringText("k2", "k2"):             "second.yaml: lacks the secret of the id k1",
			} {
				if err := second(text); exitCode(err) != 2 || !strings.Contains(err.Error(), want) {
					t.Errorf("exit code %d, %v; want %s", exitCode(err), err, want)
				}
			}
			// One that got a new secret first does not shut out who has not got it, until records have it.
			h.write(t, "second.yaml", ringText("k1", "k1", "k2"))
			two := start(t, nil, append(args, "--secrets", h.path("second.yaml"))...)
			third := start(t, nil, args...)
			h.write(t, "secrets.yaml", ringText("k1", "k1", "k2=other"))
			third.signals <- syscall.SIGHUP
			third.log.waitFor(t, "secrets.yaml:4: the secret of the id k2 is not the one that the store knows")
			h.write(t, "second.yaml", ringText("k2", "k1", "k2"))
			two.signals <- syscall.SIGHUP
			two.log.waitFor(t, `"kind":"secrets"}`)
			if err := second(ringText("k1", "k1")); exitCode(err) != 2 || !strings.Contains(err.Error(), "lacks the secret of the id k2") {
				t.Errorf("exit code %d, %v", exitCode(err), err)
			}
			wantHidden(t, one)
			wantHidden(t, third)
		})
	}
}

// A store that can't be asked leaves the old ring in force; the file counts as soon as it can.
func TestARingWaitsForTheStore(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	h.write(t, "secrets.yaml", ringText("k1", "k1"))
	r := start(t, nil, append(h.args, "--reload-interval", "100ms")...)
	h.change(t, "ALTER TABLE fingerprint_secrets RENAME TO away")
	h.write(t, "secrets.yaml", ringText("k2", "k1", "k2"))
	r.log.waitFor(t, `"kind":"secrets","error":`)
	r.wantMetrics(secretIs("primary", "k1", "1"), `no ledger_fingerprint_secret_id="k2"`)
	h.change(t, "ALTER TABLE away RENAME TO fingerprint_secrets")
	r.log.waitFor(t, `"kind":"secrets"}`)
	r.wantMetrics(secretIs("primary", "k2", "1"))
}

func TestTheSpecOfNewRecordsIsOneThatIsKnown(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	for _, n := range []string{"0", "-1", "2", "32768"} {
		_, err := output(t, nil, append(h.args, "--fingerprint-write-spec", n)...)
		if exitCode(err) != 2 || !strings.Contains(err.Error(), "--fingerprint-write-spec (LEDGERD_FINGERPRINT_WRITE_SPEC): must be a spec that this binary knows: 1") {
			t.Errorf("%s: exit code %d, %v", n, exitCode(err), err)
		}
	}
	if _, err := os.Stat(strings.TrimPrefix(h.store(t), sqliteScheme)); err == nil {
		t.Error("the store was opened")
	}
	start(t, []string{"LEDGERD_FINGERPRINT_WRITE_SPEC=1"}, h.args...)
}
