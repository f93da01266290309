// SPDX-License-Identifier: Apache-2.0

package client

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMatchZero: the outcome that comes with an error is nothing that anybody could take for done.
func TestMatchZero(t *testing.T) {
	if got := variant(Outcome[ticket]{}); got != "not understood recorded=false" {
		t.Errorf("got %q", got)
	}
}

// TestForgottenVariant: a program that names all variants compiles, one that forgets unknown does not.
func TestForgottenVariant(t *testing.T) {
	const program = `package main

import "github.com/opsledger/opsledger/client"

func main() {
	var out client.Outcome[int]
	_ = client.Match(out,
		func(client.Done[int]) error { return nil },
		func(client.Rejection) error { return nil },
		func(client.Unknown) error { return nil },
	)
}
`
	forgetful := strings.Replace(program, "\t\tfunc(client.Unknown) error { return nil },\n", "", 1)
	for name, tt := range map[string]struct {
		source string
		want   string // of what the compiler says; empty: it compiles
	}{
		"all":     {program, ""},
		"forgets": {forgetful, "not enough arguments in call to client.Match"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(tt.source), 0o600); err != nil {
				t.Fatal(err)
			}
			// vet checks types without linking; the working directory is in the module.
			text, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput()
			if (err == nil) != (tt.want == "") || !strings.Contains(string(text), tt.want) {
				t.Errorf("got %v, %s; want %q", err, text, tt.want)
			}
		})
	}
}
