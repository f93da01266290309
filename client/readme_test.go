// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program is what stands around the lines of README.md: a ledger in memory, an API and a task.
const program = `package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
)

type (
	TicketRequest struct{ Title string }
	Ticket        struct{ ID string }
	service       struct{ err error }
	work          struct {
		ID      string
		Decided time.Time
	}
)

func (s service) Create(_ context.Context, key string, r TicketRequest) (Ticket, error) {
	fmt.Println("sent", r.Title, "with a key of", len(key))
	return Ticket{"T-1"}, s.err
}

func (work) Park(operation string) error {
	fmt.Println("parked an operation of", len(operation))
	return nil
}

func use(t Ticket) error {
	fmt.Println("use", t.ID)
	return nil
}

func open(ctx context.Context, ledger *client.Ledger, api service, task work, request TicketRequest) error {
LINES
}

func main() {
	l, err := clienttest.Open(clienttest.Options{})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer l.Close()
	now, request := time.Now(), TicketRequest{"disk full"}
	for _, call := range []error{
		open(context.Background(), l.Client(), service{}, work{"task-1", now}, request),
		open(context.Background(), l.Client(), service{}, work{"task-1", now}, request), // again: a replay, without a value
		open(context.Background(), l.Client(), service{errors.New("504")}, work{"task-2", now}, request),
		open(context.Background(), l.Client(), service{}, work{"task-1", now}, TicketRequest{"another"}),
	} {
		fmt.Println("error:", call)
	}
}
`

const said = `sent disk full with a key of 32
use T-1
use 
sent disk full with a key of 32
parked an operation of 36
error: <nil>
error: <nil>
error: <nil>
error: nothing was sent: FINGERPRINT_CONFLICT: other
`

// TestREADME: the lines of README.md that show the use of this package compile and run as printed, and go doc shows the same.
func TestREADME(t *testing.T) {
	const readme = "../README.md"
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	var lines string
	for _, block := range strings.Split(string(text), "```go\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		if strings.Contains(block, "client.Do(") {
			lines = block
		}
	}
	if lines == "" {
		t.Fatal("README.md shows no use of client.Do")
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for line := range strings.Lines(string(doc)) {
		if code, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "//\t"); ok {
			documented = append(documented, code)
		} else if len(documented) > 0 && line == "//\n" {
			documented = append(documented, "")
		}
	}
	if got := strings.TrimSpace(strings.Join(documented, "\n")); got != strings.TrimSpace(lines) {
		t.Errorf("go doc shows:\n%s\nREADME.md:\n%s", got, lines)
	}
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(strings.Replace(program, "LINES", lines, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(bounded(t), "go", "run", file).CombinedOutput() // the working directory is in the module
	if err != nil || string(out) != said {
		t.Errorf("the program ended with %v and said:\n%s\nwant:\n%s", err, out, said)
	}
}
