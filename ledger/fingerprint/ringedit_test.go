// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestARingIsChangedStepByStep(t *testing.T) {
	ring := testRing(t, "k1", "k1")
	must := func(next *Ring, err error) *Ring {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	added := must(ring.With(testSecret(t, "k2", 2)))
	used := must(added.WithPrimary("k2"))
	left := must(used.Without("k1"))
	for _, c := range []struct {
		ring    *Ring
		primary string
		ids     []string
	}{{ring, "k1", []string{"k1"}}, {added, "k1", []string{"k1", "k2"}}, {used, "k2", []string{"k1", "k2"}}, {left, "k2", []string{"k2"}}} {
		if diff := cmp.Diff(c.ids, c.ring.IDs()); diff != "" || c.ring.PrimaryID() != c.primary || c.ring.Primary().ID() != c.primary {
			t.Errorf("primary %s, want %s; %s", c.ring.PrimaryID(), c.primary, diff)
		}
	}
	if used.Checks()["k1"] != ring.Checks()["k1"] || used.Checks()["k2"] != left.Checks()["k2"] {
		t.Error("a secret has changed")
	}
	for name, err := range map[string]error{
		"an id twice":           errOf(added.With(testSecret(t, "k2", 9))),
		"a secret twice":        errOf(added.With(testSecret(t, "k3", 2))),
		"no secret":             errOf(added.With(Secret{})),
		"an absent primary":     errOf(added.WithPrimary("k3")),
		"without the primary":   errOf(used.Without("k2")),
		"without an absent one": errOf(used.Without("k3")),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestARingIsBounded(t *testing.T) {
	ring := testRing(t, "k1", "k1")
	for i := 2; i <= MaxSecrets; i++ {
		next, err := ring.With(testSecret(t, fmt.Sprint("n", i), byte(100+i)))
		if err != nil {
			t.Fatal(err)
		}
		ring = next
	}
	if _, err := ring.With(testSecret(t, "more", 99)); err == nil {
		t.Errorf("a ring has more than %d", MaxSecrets)
	}
}

// An error about one secret of a file says where it stands.
func TestAReplacementIsRefusedByItsLine(t *testing.T) {
	text := "primary: k2\nsecrets:\n  - {id: k2, secret: " + key2 + "}\n\n  - {id: k1, secret: " + key1 + "}\n"
	next, err := ParseRing("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	ring := testRing(t, "k1", "k1")
	if err := ring.Replace(next); err == nil || !strings.HasPrefix(err.Error(), "f.yaml:5: the secret of the id k1 is another one than before") {
		t.Errorf("%v", err)
	}
	fresh := testRing(t, "k9", "k9")
	if err := fresh.Replace(next); err != nil || fresh.Place("k1") != "f.yaml:5: " || fresh.Place("k9") != "" {
		t.Errorf("%v, %q, %q", err, fresh.Place("k1"), fresh.Place("k9"))
	}
}
