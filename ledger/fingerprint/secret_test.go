// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	key1 = base64.StdEncoding.EncodeToString([]byte("canary-secret-one-0123456789abcdef"))
	key2 = base64.StdEncoding.EncodeToString([]byte("canary-secret-two-0123456789abcdef"))
)

func TestParseRing(t *testing.T) {
	file := "primary: k2\nsecrets:\n  - {id: k1, secret: " + key1 + "}\n  - id: \"k2\"\n    secret: \"" + key2 + "\"\n"
	ring, err := ParseRing("secrets.yaml", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	check := func(ring *Ring) {
		t.Helper()
		if diff := cmp.Diff([]string{"k1", "k2"}, ring.IDs()); diff != "" {
			t.Error(diff)
		}
		if got := ring.Primary(); got.ID() != "k2" || string(got.key()) != "canary-secret-two-0123456789abcdef" {
			t.Errorf("primary is %q", got.ID())
		}
		if got, err := ring.Secret("k1"); err != nil || string(got.key()) != "canary-secret-one-0123456789abcdef" {
			t.Errorf("k1: %v", err)
		}
		if _, err := ring.Secret("k3"); !errors.Is(err, ErrUnknownSecret) {
			t.Errorf("k3: %v", err)
		}
	}
	check(ring)
	again, err := ParseRing("written.yaml", ring.RevealYAML())
	if err != nil {
		t.Fatal(err)
	}
	check(again)
}

func TestTheSecretOfSlotsStays(t *testing.T) {
	const other = "canary-secret-for-slots-0123456789"
	parse := func(unique string) *Ring {
		t.Helper()
		file := "primary: k1\nsecrets:\n  - {id: k1, secret: " + key1 + "}\n"
		if unique != "" {
			file += "unique_secret: " + base64.StdEncoding.EncodeToString([]byte(unique)) + "\n"
		}
		ring, err := ParseRing("secrets.yaml", []byte(file))
		if err != nil {
			t.Fatal(err)
		}
		return ring
	}
	with, without := parse(other), parse("")
	written, err := ParseRing("written.yaml", with.RevealYAML())
	if err != nil {
		t.Fatal(err)
	}
	if s, ok := written.unique(); !ok || string(s.key()) != other || without.HasUnique() {
		t.Error("the secret is not what the file says")
	}
	for name, next := range map[string]*Ring{"another one": parse(other + "x"), "none": without} {
		if err := with.Replace(next); err == nil || !strings.Contains(err.Error(), "unique_secret: must stay") {
			t.Errorf("%s in its place: %v", name, err)
		}
	}
	if s, ok := with.unique(); !ok || string(s.key()) != other {
		t.Error("it was replaced")
	}
	if err := without.Replace(written); err != nil || !without.HasUnique() {
		t.Errorf("the first one: %v", err)
	}
	if err := without.SetUnique([]byte(other + "x")); err == nil {
		t.Error("another one was set")
	}
	secret, err := NewRandomSecret("k2")
	if err != nil {
		t.Fatal(err)
	}
	rotated := with
	for _, step := range []func() (*Ring, error){
		func() (*Ring, error) { return rotated.With(secret) }, func() (*Ring, error) { return rotated.WithPrimary("k2") },
		func() (*Ring, error) { return rotated.Without("k1") },
	} {
		if rotated, err = step(); err != nil {
			t.Fatal(err)
		}
	}
	if rotated.PrimaryID() != "k2" || rotated.Checks()[UniqueID] != with.Checks()[UniqueID] {
		t.Error("a rotation has changed it")
	}
}

func TestParseRingRefuses(t *testing.T) {
	tests := []struct {
		name, file, want string
	}{
		{"empty", "", "f.yaml: must be"},
		{"not YAML", "primary: [" + key1, "f.yaml:2: must be one valid YAML document"},
		{"undefined alias", "primary: *" + "canary-alias", "f.yaml:1: must be one valid YAML document"},
		{"two documents", "primary: k1\nsecrets: [{id: k1, secret: " + key1 + "}]\n---\na: 1\n", "must be one valid YAML document"},
		{"a list", "- " + key1, "f.yaml:1: must be a mapping"},
		{"unknown key", "primary: k1\ncanary-name: 1\nsecrets: []\n", "f.yaml:2: has an unknown key; known are primary, secrets"},
		{"unknown key in an entry", "primary: k1\nsecrets:\n- id: k1\n  secret: " + key1 + "\n  " + key2 + ": 1\n", "f.yaml:5: secrets[0]: has an unknown key"},
		{"key twice", "primary: k1\nprimary: k2\nsecrets: []\n", "f.yaml:2: has the key primary twice"},
		{"no primary", "secrets: [{id: k1, secret: " + key1 + "}]", "f.yaml:1: lacks the key primary"},
		{"null primary", "primary:\nsecrets: [{id: k1, secret: " + key1 + "}]", "f.yaml:1: primary: must be a string"},
		{"number as id", "primary: k1\nsecrets: [{id: 1, secret: " + key1 + "}]", "f.yaml:2: secrets[0].id: must be a string"},
		{"primary of no secret", "primary: canary-k9\nsecrets: [{id: k1, secret: " + key1 + "}]", "f.yaml:1: primary: is not the id"},
		{"no secrets", "primary: k1\nsecrets: []", "f.yaml:2: secrets: must be a list"},
		{"secrets as a mapping", "primary: k1\nsecrets: {k1: " + key1 + "}", "f.yaml:2: secrets: must be a list"},
		{"entry without a secret", "primary: k1\nsecrets: [{id: k1}]", "f.yaml:2: secrets[0]: lacks the key secret"},
		{"id twice", "primary: k1\nsecrets: [{id: k1, secret: " + key1 + "}, {id: k1, secret: " + key2 + "}]", "f.yaml:2: secrets[1].id: is there twice"},
		{"secret twice", "primary: k1\nsecrets: [{id: k1, secret: " + key1 + "}, {id: k2, secret: " + key1 + "}]", "f.yaml:2: secrets[1].secret: is the same"},
		{"id of other characters", "primary: k1\nsecrets: [{id: 'canary k', secret: " + key1 + "}]", "f.yaml:2: secrets[0].id: must be 1 to 64"},
		{"short secret of slots", "primary: k1\nsecrets: [{id: k1, secret: " + key1 + "}]\nunique_secret: " + base64.StdEncoding.EncodeToString([]byte("canary-31-bytes-0123456789abcde")), "f.yaml:3: unique_secret: must have at least 32 bytes"},
		{"secret of slots that may rotate", "primary: k1\nsecrets: [{id: k1, secret: " + key1 + "}]\nunique_secret: " + key1, "f.yaml:3: unique_secret: must be another one"},
		{"secret of slots twice", "primary: k1\nsecrets: [{id: k1, secret: " + key1 + "}]\nunique_secret: " + key2 + "\nunique_secret: " + key2, "f.yaml:4: has the key unique_secret twice"},
		{"not base64", "primary: k1\nsecrets: [{id: k1, secret: canary-secret-one-0123456789abcdef}]", "f.yaml:2: secrets[0].secret: must be base64"},
		{"short", "primary: k1\nsecrets: [{id: k1, secret: " + base64.StdEncoding.EncodeToString([]byte("canary-31-bytes-0123456789abcde")) + "}]", "f.yaml:2: secrets[0].secret: must have at least 32 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseRing("f.yaml", []byte(tt.file))
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %q, want it to have %q", err, tt.want)
			}
			for _, value := range []string{key1, key2, "canary", key1[:8]} {
				if strings.Contains(err.Error(), value) {
					t.Errorf("error shows what the file says: %q", err)
				}
			}
		})
	}
}

func TestNewRandomSecret(t *testing.T) {
	a, err := NewRandomSecret("k1")
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewRandomSecret("k2")
	if err != nil {
		t.Fatal(err)
	}
	if len(a.key()) != MinSecretSize || bytes.Equal(a.key(), b.key()) {
		t.Error("secrets are not random")
	}
	if _, err := NewRandomSecret(""); err == nil {
		t.Error("an empty id is accepted")
	}
	if _, err := NewRing("k1", a, Secret{}); err == nil {
		t.Error("a ring takes the zero secret")
	}
}

func TestNothingPrintsContentOrSecrets(t *testing.T) {
	ring, err := ParseRing("f.yaml", []byte("primary: k1\nsecrets: [{id: k1, secret: "+key1+"}]"))
	if err != nil {
		t.Fatal(err)
	}
	secret := ring.Primary()
	request := mustCanonicalize(t, `{"to":"canary-secret"}`, Rules{})
	// Fields that are not exported: fmt calls no method on them.
	type holder struct {
		secret  Secret
		request Canonical
		ring    *Ring
	}
	held := holder{secret, request, ring}
	var out strings.Builder
	for _, v := range []any{secret, &secret, request, &request, ring, held, &held, []Secret{secret}, map[string]Canonical{"a": request}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(text)
		slog.New(slog.NewTextHandler(&out, nil)).Info("printed", "value", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("printed", "value", v)
	}
	out.WriteString(secret.String() + secret.GoString() + request.String() + request.GoString())
	printed := out.String()
	if !strings.Contains(printed, redacted) {
		t.Error("nothing was printed")
	}
	for _, form := range []string{"canary", key1, fmt.Sprintf("%x", "canary"), fmt.Sprintf("%X", "canary"), strings.Trim(fmt.Sprint([]byte("canary")), "[]")} {
		if strings.Contains(printed, form) {
			t.Errorf("printed %q", form)
		}
	}
}

func TestFingerprintIsLoggedByItsPrefix(t *testing.T) {
	f := Digest(mustCanonicalize(t, `{}`, Rules{}), Relations{}, testSecret(t, "k1", 0))
	var out strings.Builder
	slog.New(slog.NewTextHandler(&out, nil)).Info("claimed", "fingerprint", f)
	if want := "fingerprint.prefix=" + fmt.Sprintf("%x", f.Digest[:4]) + " fingerprint.spec=1 fingerprint.secret_id=k1\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("logged %q, want %q", out.String(), want)
	}
}
