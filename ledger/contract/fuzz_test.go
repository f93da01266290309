// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// longestName is the longest text of a file that an error may repeat: a tool's name. Fields of a request may be longer, and are names, too.
const longestName = 128

// FuzzContracts: whatever a file holds, it is good or its faults have a place and repeat no value; what is good survives being
// stored, printed and read again.
func FuzzContracts(f *testing.F) {
	for _, file := range []string{"testdata/full.yaml", "testdata/design.yaml", "../../cmd/ledgerd/devcontracts.yaml"} {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, c := range badContracts {
		f.Add([]byte(c.file()))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = Decode(data) // it must not panic either
		set, err := Parse("c.yaml", data)
		if err != nil {
			placed(t, err)
			repeatsNothing(t, err, data)
			return
		}
		for _, tool := range set.Tools() {
			c, _ := set.Declared(tool)
			d, err := Decode(Encode(c))
			if err != nil || d.Version != c.Version {
				t.Fatalf("stored as %s: %v, %s, was %s", Encode(c), err, d.Version, c.Version)
			}
			printed, err := c.YAML()
			if err != nil {
				t.Fatal(err)
			}
			again, err := Parse("printed.yaml", printed)
			if err != nil {
				t.Fatalf("%v\n%s", err, printed)
			}
			if e, _ := again.Declared(tool); !bytes.Equal(Encode(e), Encode(c)) {
				t.Fatalf("printed, it is another one:\n%s\n%s", Encode(c), Encode(e))
			}
		}
	})
}

func placed(t *testing.T, err error) {
	t.Helper()
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		t.Fatalf("not a list of faults: %v", err)
	}
	for _, err := range joined.Unwrap() {
		var fault *Error
		if !errors.As(err, &fault) || fault.File != "c.yaml" || fault.Line < 1 && !strings.HasPrefix(fault.Rule, "must have at most") {
			t.Errorf("a fault without a place: %v", err)
		}
	}
}

func repeatsNothing(t *testing.T, err error, data []byte) {
	t.Helper()
	var document yaml.Node
	if yaml.Load(data, &document) != nil {
		return
	}
	text := err.Error()
	for _, v := range values(&document) {
		// No message of ours is as long as that without a space that is not in it.
		if len(v) > longestName && strings.Contains(text, v) {
			t.Errorf("a fault repeats a value: %s", text)
		}
	}
}

// values are the texts of a document that are no keys.
func values(node *yaml.Node) []string {
	switch node.Kind {
	case yaml.ScalarNode:
		return []string{node.Value}
	case yaml.AliasNode:
		return nil
	}
	var out []string
	for i, child := range node.Content {
		if node.Kind != yaml.MappingNode || i%2 == 1 {
			out = slices.Concat(out, values(child))
		}
	}
	return out
}

// FuzzAnswers: whatever a target answers, it is one finding, and what is found is named and within its bounds.
func FuzzAnswers(f *testing.F) {
	f.Add(200, []byte(`{"data":[{"id":"ch_1","revision":3,"state":"done","amount":10.0,"to":"x","created":"2026-11-29T12:00:03Z"}]}`))
	f.Add(200, []byte(`{"data":[]}`))
	f.Add(404, []byte(`<html>`))
	f.Add(200, []byte(`[[[{"data":18446744073709551617}]]]`))
	probe := fullContract(f).Probe.HTTP
	op := someOperation()
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		v := probe.Judge(Answer{Status: status, Body: body}, op)
		ev := v.Evidence
		found := ev.Result != nil && ev.Result.Resource.ID != "" && len(ev.Result.Resource.ID) <= longestResource && len(v.Observed) <= maxObserved
		if ev.Finding == 0 || (ev.Result != nil) != found || found != (v.Observed != nil) {
			t.Errorf("%+v", v)
		}
		if v.Observed != nil {
			if _, err := decode(v.Observed); err != nil {
				t.Errorf("observed %s: %v", v.Observed, err)
			}
		}
	})
}
