// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opsledger/opsledger/client"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// deskContracts: a message can't be looked up, and takes effect within three seconds if ever; a refund wants two persons.
const deskContracts = `
tools:
  messages.send:
    effect: unsafe
    lease: {default: 1s, max: 1s, total: 1s}
    send_within: 1s
    recovery: {method: operator, effect_within: 3s, guide: "Search the outbox by key."}
  refunds.make:
    effect: unsafe
    lease: {default: 1s, max: 1s, total: 1s}
    send_within: 1s
    recovery: {method: operator, effect_within: 1s}
    resolve: {second_person: true}
`

// deskPolicy: the development ledger's, and a second person.
const deskPolicy = `
trust_domain: dev.local
scopes:
  - {name: "{principal}", principals: [spiffe://dev.local/agent/agent-a], tools: ["*"]}
roles:
  - {role: operator, principals: [spiffe://dev.local/agent/operator, spiffe://dev.local/agent/agent-b], tools: ["*"]}
`

// The texts that no output may have: what a worker named its effects and sent, and what it was answered.
const (
	canaryStep    = "step-canary-7f3a"
	canaryBody    = "body-canary-91cc"
	canaryPayload = "payload-canary-55d0"
)

// office is a ledger, a worker, and people who type.
type office struct {
	stage
	ledger devLedger
	server *child
	worker *client.Ledger

	mu  sync.Mutex
	all bytes.Buffer // whatever was printed
}

func openOffice(t *testing.T) *office {
	t.Helper()
	program := buildLedgerd(t)
	o := &office{stage: newStage(t)}
	dir := t.TempDir()
	files := map[string]string{"contracts.yaml": deskContracts, "policy.yaml": deskPolicy}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(dir, "state")
	var err error
	o.server, err = begin(t.Context(), []string{
		program, "dev", "--state-dir", state, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0",
		"--contracts", filepath.Join(dir, "contracts.yaml"), "--policy", filepath.Join(dir, "policy.yaml"),
	}, os.Environ(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.server.kill)
	if o.ledger, err = ready(t.Context(), o.server, state); err != nil {
		t.Fatal(err)
	}
	if o.worker, err = client.Dial(t.Context(), o.ledger.access()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = o.worker.Close() })
	return o
}

// typed is what came of a command line.
type typed struct {
	out, talk string
	code      int
}

// lines of standard output.
func (r typed) lines() []string { return strings.Split(strings.TrimSuffix(r.out, "\n"), "\n") }

// types runs a command line as a process, as one of the people; the line is split as a shell does.
func (o *office) types(t *testing.T, who, stdin, line string) typed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	args := shellWords(line)
	if len(args) < 2 || args[0] != "ledgerctl" {
		t.Fatalf("%q is no command of ours", line)
	}
	cmd := o.ledgerctl(ctx, args[1:]...)
	me := o.ledger.Identities[who]
	cmd.Env = append(slices.Clone(cmd.Env), "LEDGERCTL_ENDPOINT="+o.ledger.GRPCAddr, "LEDGERCTL_CERT="+me.CertFile, "LEDGERCTL_KEY="+me.KeyFile, "LEDGERCTL_CA="+o.ledger.CAFile)
	var out, talk bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &talk
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", line, err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all.Write(out.Bytes())
	o.all.Write(talk.Bytes())
	r := typed{out.String(), talk.String(), cmd.ProcessState.ExitCode()}
	t.Logf("%s> %s\n%s%s(exit %d)", who, line, r.out, r.talk, r.code)
	return r
}

// must is types where the exit code is known.
func (o *office) must(t *testing.T, code int, who, stdin, line string) typed {
	t.Helper()
	r := o.types(t, who, stdin, line)
	if r.code != code {
		t.Fatalf("%s: exit code %d, want %d", line, r.code, code)
	}
	return r
}

// printed is the command that a line of an output gives, with the words in capitals filled in.
func printed(t *testing.T, r typed, label string, fill ...string) string {
	t.Helper()
	for _, line := range r.lines() {
		if command, ok := strings.CutPrefix(line, label+": "); ok {
			return strings.NewReplacer(fill...).Replace(command)
		}
	}
	t.Fatalf("no line %q in:\n%s", label, r.out)
	return ""
}

// told is how a worker's call ended.
type told struct {
	done, executed bool
	resource       string
	unknown        client.Unknown
}

// send does a worker's effect, whose outcome can't be seen unless it shall succeed.
func (o *office) send(t *testing.T, tool, task string, succeed bool) (r told) {
	t.Helper()
	effect := client.Effect[map[string]string, string]{
		Tool: tool, Wait: client.NoWait, Schema: "m/1",
		Execute: func(_ context.Context, call client.Call, _ map[string]string) (string, error) {
			r.executed = true
			if err := call.Sending(); err != nil {
				return "", client.NotSent(err)
			}
			if !succeed {
				return "", errors.New("the answer is lost")
			}
			return canaryPayload, nil
		},
		Resource: func(string) *pb.ResourceRef { return &pb.ResourceRef{Type: "message", Id: "M-sent"} },
		Summary:  func(map[string]string) string { return "to +31•••••12" },
	}
	out, err := client.Do(t.Context(), o.worker, effect, client.Intent{Task: task, Step: canaryStep, Time: time.Now()}, map[string]string{"body": canaryBody})
	if err != nil {
		t.Fatal(err)
	}
	client.Match(out,
		func(d client.Done[string]) error {
			r.done, r.resource = true, d.Result.GetResource().GetId()
			return nil
		},
		func(f client.Rejection) error { t.Errorf("rejected: %v", f.Err()); return nil },
		func(u client.Unknown) error { r.unknown = u; return nil })
	return r
}

// lost makes an operation whose outcome nobody knows, and returns its id when it waits for a person.
func (o *office) lost(t *testing.T, tool, task string) string {
	t.Helper()
	r := o.send(t, tool, task, false)
	if r.done || !r.executed {
		t.Fatalf("%+v", r)
	}
	if op := r.unknown.Operation; op.GetCustody() != pb.Custody_CUSTODY_QUEUED {
		t.Fatalf("it is not queued for a person: %v", op)
	}
	return r.unknown.OperationID
}

// settle waits until a search counts, as op get says.
func (o *office) settle(t *testing.T, id string) {
	t.Helper()
	for range 100 {
		var v struct {
			ReadTime  time.Time
			Operation struct{ SettleTime, LeaseExpireTime time.Time }
		}
		r := o.must(t, exitOK, person, "", "ledgerctl op get -o json "+id)
		if err := json.Unmarshal([]byte(r.out), &v); err != nil {
			t.Fatal(err)
		}
		left := v.Operation.SettleTime.Sub(v.ReadTime)
		if left < 0 {
			return
		}
		timer := time.NewTimer(left + time.Millisecond)
		select {
		case <-timer.C:
		case <-t.Context().Done():
			t.Fatal("it did not settle")
		}
	}
	t.Fatal("it did not settle")
}

// TestPersonSettles: a message that can't be looked up waits for a person, who takes it over, finds it, and says so by typing what is
// printed; the worker's retry gets the result, and sends nothing.
func TestPersonSettles(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	id := o.lost(t, "messages.send", "order-1")

	queue := o.must(t, exitOK, person, "", "ledgerctl queue --tool messages.send")
	contains(t, queue.lines()[0], "1 operation waiting for a person")
	contains(t, queue.out, id, "NO_METHOD", "to +31•••••12")
	view := o.must(t, exitOK, person, "", printed(t, queue, "next"))
	contains(t, view.lines()[0], "UNKNOWN for ", "it may have happened", "Do not retry with a new key")
	contains(t, view.out, "Search the outbox by key.", "the chain is whole")

	// What another one has decided or a worker has said is not to be overlooked: the version is part of what is typed.
	o.must(t, exitUsage, person, "", "ledgerctl op resolve "+id+" --happened --external-id M-1 --note x")
	o.must(t, exitConflict, person, "", "ledgerctl op resolve "+id+"@2 --happened --external-id M-1 --note x") // nobody has it

	takeOver := printed(t, view, "next", "WHY", "on call")
	o.must(t, exitOK, person, "", takeOver+" --command-id 0b9e7a30-3c62-4f8e-9a41-5a3d8e0a6c11")
	o.must(t, exitOK, person, "", takeOver+" --command-id 0b9e7a30-3c62-4f8e-9a41-5a3d8e0a6c11") // sent again: done once
	contains(t, o.must(t, exitConflict, person, "", takeOver).talk, "it is not any more what you looked at", "TAKEN_OVER", "on call")

	mine := o.must(t, exitOK, person, "", "ledgerctl queue --mine")
	contains(t, mine.out, id, "  you  ")
	if again := o.send(t, "messages.send", "order-1", true); again.executed || again.done {
		t.Fatalf("a worker did it while a person has it: %+v", again)
	}
	view = o.must(t, exitOK, person, "", printed(t, mine, "next"))
	done := o.must(t, exitOK, person, "", printed(t, view, "if you find it", "--external-id ID", "--external-id M-1 --type message", "WHAT YOU FOUND", "in the outbox"))
	contains(t, done.lines()[0], "recorded: it happened")

	if again := o.send(t, "messages.send", "order-1", true); again.executed || !again.done || again.resource != "M-1" {
		t.Errorf("the worker's retry: %+v, want a replay of M-1", again)
	}
	timeline := o.must(t, exitOK, person, "", printed(t, done, "next"))
	contains(t, timeline.lines()[0], "COMPLETED", "message M-1")
	contains(t, timeline.out, "TAKEN_OVER", "“on call”", "RESOLVED", "“in the outbox”")
	contains(t, o.must(t, exitOK, person, "", "ledgerctl op find --resource M-1").out, id)
	o.must(t, exitNotFound, person, "", "ledgerctl op find --resource M-2")
	o.must(t, exitNotFound, person, "", "ledgerctl op get 61aaa169-a267-8cb1-80a8-5787851e9e63")
	o.must(t, exitOK, person, "", "ledgerctl op get --wait 10s "+id)
	contains(t, o.must(t, exitOK, person, "", "ledgerctl queue").lines()[0], "0 operations")
	o.noCanary(t)
}

// TestREADME: the commands of README.md for people do what it says, typed in its order.
func TestREADME(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, _ := strings.Cut(string(text), "### When a person is needed\n")
	_, part, _ = strings.Cut(part, "```console\n")
	part, _, _ = strings.Cut(part, "```")
	lines := strings.Split(strings.TrimSpace(part), "\n")
	if len(lines) < 8 {
		t.Fatalf("README.md shows no commands for people: %q", lines)
	}
	o := openOffice(t)
	id := o.lost(t, "messages.send", "order-1")
	theirs := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	ages := regexp.MustCompile(`\b\d+s\b`)
	for n := 0; n+1 < len(lines); n += 2 {
		line := strings.Replace(lines[n], "$ go run ./cmd/ledgerctl ", "ledgerctl ", 1)
		r := o.must(t, exitOK, person, "", theirs.ReplaceAllString(line, id))
		if got, want := ages.ReplaceAllString(r.lines()[0], "0s"), ages.ReplaceAllString(lines[n+1], "0s"); got != want {
			t.Errorf("%s says %q, README.md %q", line, got, want)
		}
	}
	if again := o.send(t, "messages.send", "order-1", true); again.executed || again.resource != "M-1001" {
		t.Errorf("the worker's retry: %+v, want a replay of M-1001", again)
	}
}

// TestNeverHappened: that it never happened is believed of a search that began when nothing could arrive any more; then the same key runs
// again.
func TestNeverHappened(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	id := o.lost(t, "messages.send", "order-1")
	o.must(t, exitOK, person, "", "ledgerctl op take-over "+id+" --reason x")
	early := o.must(t, exitOK, person, "", "ledgerctl op get "+id)
	contains(t, early.out, "if you do not: only a search that begins at ")
	var v struct{ ReadTime string }
	if err := json.Unmarshal([]byte(o.must(t, exitOK, person, "", "ledgerctl op get -o json "+id).out), &v); err != nil {
		t.Fatal(err)
	}
	deny := "ledgerctl op resolve " + id + "@" + version(t, early) + " --not-happened --note x --search-time "
	refused := o.must(t, exitConflict, person, "", deny+v.ReadTime)
	contains(t, refused.talk, "too early", "next: ledgerctl op get "+id)
	o.settle(t, id)
	// A search that began too early proves as little when it is shown late.
	o.must(t, exitConflict, person, "", deny+v.ReadTime)
	late := o.must(t, exitOK, person, "", "ledgerctl op get "+id)
	o.must(t, exitOK, person, "", printed(t, late, "if you search from now on and do not", "WHERE YOU SEARCHED", "outbox"))
	if again := o.send(t, "messages.send", "order-1", true); !again.executed || !again.done {
		t.Errorf("the same key: %+v, want it executed", again)
	}
	o.noCanary(t)
}

// version is the version that op get printed.
func version(t *testing.T, view typed) string {
	t.Helper()
	for _, line := range view.lines() {
		if rest, ok := strings.CutPrefix(line, "version "); ok {
			return strings.TrimSpace(rest)
		}
	}
	t.Fatalf("no version in:\n%s", view.out)
	return ""
}

// TestTwoPersonsAtOnce: of two who take over what both have looked at, one has it; the other one is told who, and can't decide it.
func TestTwoPersonsAtOnce(t *testing.T) {
	t.Parallel()
	const second = "agent-b"
	o := openOffice(t)
	for n := range 5 {
		id := o.lost(t, "messages.send", "order-"+strconv.Itoa(n))
		line := printed(t, o.must(t, exitOK, person, "", "ledgerctl op get "+id), "next", "WHY", "on call")
		people, codes := []string{person, second}, [2]int{}
		var both sync.WaitGroup
		for i, who := range people {
			both.Go(func() { codes[i] = o.types(t, who, "", line).code })
		}
		both.Wait()
		won := slices.Index(codes[:], exitOK)
		if won < 0 || codes[1-won] != exitConflict {
			t.Fatalf("exit codes %v, want one %d and one %d", codes, exitOK, exitConflict)
		}
		has, other := people[won], people[1-won]
		view := o.must(t, exitOK, other, "", "ledgerctl op get "+id)
		contains(t, view.out, "spiffe://dev.local/agent/"+has+" has it")
		refused := o.must(t, exitPerson, other, "", "ledgerctl op resolve "+id+"@"+version(t, view)+" --happened --external-id M-1 --note x")
		contains(t, refused.talk, "spiffe://dev.local/agent/"+has+" has it")
		o.must(t, exitPerson, other, "", "ledgerctl op take-over "+id+" --reason mine")
		o.must(t, exitPerson, other, "", "ledgerctl op check "+id+" --reason mine")
		// Who means it takes it from the other one, by what was looked at.
		o.must(t, exitOK, other, "", printed(t, view, "to take it from them", "WHY", "agreed on the phone"))
		o.must(t, exitPerson, has, "", "ledgerctl op hand-back "+id+" --reason x")
		contains(t, o.must(t, exitOK, other, "", "ledgerctl op hand-back "+id+" --reason x").out, "waits for a person: NO_METHOD")
	}
}

// TestSecondPerson: a decision that needs two persons is a proposal until another one agrees.
func TestSecondPerson(t *testing.T) {
	t.Parallel()
	const second = "agent-b"
	o := openOffice(t)
	id := o.lost(t, "refunds.make", "order-1")
	o.must(t, exitOK, person, "", "ledgerctl op take-over "+id+" --reason x")
	view := o.must(t, exitOK, person, "", "ledgerctl op get "+id)
	proposed := o.must(t, exitOK, person, "", printed(t, view, "if you find it", "--external-id ID", "--external-id R-1", "WHAT YOU FOUND", "it is there"))
	contains(t, proposed.lines()[0], "proposed: another person has to approve it")
	if again := o.send(t, "refunds.make", "order-1", true); again.executed || again.done {
		t.Fatalf("it counts already: %+v", again)
	}
	contains(t, o.must(t, exitOK, second, "", "ledgerctl queue --approvals").out, id)
	theirs := o.must(t, exitOK, second, "", "ledgerctl op get "+id)
	contains(t, theirs.out, "asked for by spiffe://dev.local/agent/operator: it happened: R-1")
	agree := printed(t, theirs, "if you agree", "WHAT YOU CHECKED", "looked myself")
	o.must(t, exitPerson, person, "", agree)
	o.must(t, exitOK, second, "", agree)
	if again := o.send(t, "refunds.make", "order-1", true); again.executed || !again.done || again.resource != "R-1" {
		t.Errorf("the worker's retry: %+v, want a replay of R-1", again)
	}
}

// TestManyAtOnce: one decision on what an incident has left, fed by the queue; and a tool that is paused gives no grant.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	const n = 5
	var ids []string
	for i := range n {
		ids = append(ids, o.lost(t, "messages.send", "order-"+strconv.Itoa(i)))
	}
	contains(t, o.must(t, exitOK, person, "", `ledgerctl tool pause messages.send --reason "incident 221"`).out, "paused")
	contains(t, o.must(t, exitOK, person, "", "ledgerctl tool list").out, fmt.Sprintf("%d unknown, %d waiting for a person, 1 paused", n, n), "incident 221")
	if r := o.send(t, "messages.send", "order-new", true); r.executed {
		t.Fatalf("a paused tool was granted: %+v", r)
	}
	queue := o.must(t, exitOK, person, "", "ledgerctl queue --tool messages.send -o jsonl")
	if got := len(queue.lines()); got != n {
		t.Fatalf("%d lines, want %d", got, n)
	}
	o.must(t, exitOK, person, queue.out, `ledgerctl op take-over --from-file - --reason "incident 221"`)
	o.settle(t, ids[n-1])
	var v struct{ ReadTime string }
	if err := json.Unmarshal([]byte(o.must(t, exitOK, person, "", "ledgerctl op get -o json "+ids[0]).out), &v); err != nil {
		t.Fatal(err)
	}
	mine := o.must(t, exitOK, person, "", "ledgerctl queue --mine -o jsonl")
	o.must(t, exitOK, person, "", "ledgerctl op hand-back "+ids[0]+" --reason x") // one has moved meanwhile
	decide := "ledgerctl op resolve --from-file - --not-happened --stop --note lost --command-id 0b9e7a30-3c62-4f8e-9a41-5a3d8e0a6c12 --search-time " + v.ReadTime
	decided := o.must(t, exitConflict, person, mine.out, decide)
	contains(t, decided.lines()[0], fmt.Sprintf("decided %d of %d", n-1, n))
	contains(t, decided.out, ids[0]+"  refused: STALE_VERSION")
	if got := strings.Count(decided.out, "recorded: it never happened, and shall not"); got != n-1 {
		t.Errorf("%d recorded, want %d", got, n-1)
	}
	contains(t, o.must(t, exitConflict, person, mine.out, decide).out, fmt.Sprintf("decided %d of %d", n-1, n)) // sent again: answered as before
	o.must(t, exitOK, person, "", "ledgerctl tool resume messages.send --reason over")
	if r := o.send(t, "messages.send", "order-new", true); !r.done {
		t.Errorf("resumed: %+v", r)
	}
	o.noCanary(t)
}

// TestLedgerGone: whoever can't know whether it was done is told how to say it again.
func TestLedgerGone(t *testing.T) {
	t.Parallel()
	o := openOffice(t)
	id := o.lost(t, "messages.send", "order-1")
	o.must(t, exitPerson, person, "", "ledgerctl op get --wait 1m "+id)
	o.must(t, exitError, "agent-a", "", "ledgerctl queue") // no role
	o.server.kill()
	r := o.must(t, exitUnavailable, person, "", "ledgerctl op take-over "+id+"@2 --reason x --timeout 2s")
	contains(t, r.talk, "it may have been done or not", "--command-id ")
	o.must(t, exitUnavailable, person, "", "ledgerctl queue --timeout 2s")
}

// noCanary: nothing that was printed shows a worker's names, what it sent, or what it was answered.
func (o *office) noCanary(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, canary := range []string{canaryStep, canaryBody, canaryPayload, "PRIVATE KEY", "BEGIN CERTIFICATE"} {
		if strings.Contains(o.all.String(), canary) {
			t.Errorf("%s was printed", canary)
		}
	}
	if o.all.Len() == 0 {
		t.Error("nothing was printed: this proves nothing")
	}
}
