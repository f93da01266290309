// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// today is the time at which the commands of these tests run.
var today = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// desk is the ledger as people see it, over real mutual TLS. It gives the answers that it was told to, and notes what it was asked:
// what is tested here is what a command sends, prints and exits with. What the ledger makes of it is tested against the ledger.
type desk struct {
	args []string // how to reach it

	mu      sync.Mutex // of what follows
	answers map[string][]reply
	// fixtures are what answers are written against.
	fixtures map[string]any
	asked    bytes.Buffer
}

type reply struct {
	message proto.Message
	err     error
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	files, err := authz.EnsureDev(t.TempDir(), authz.DevOptions{TrustDomain: "dev.local", Clients: []string{person}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	material, err := authz.NewMaterialReloader(files.Server, time.Now, func(string, error) {})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &desk{answers: map[string][]reply{}}
	text, err := os.ReadFile("testdata/people/fixtures.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d.fixtures); err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(authz.ServerTLS(material))), grpc.UnaryInterceptor(d.answer))
	pb.RegisterOperatorServiceServer(server, pb.UnimplementedOperatorServiceServer{})
	over := make(chan error, 1)
	go func() { over <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	me := files.Clients[person]
	d.args = []string{"--endpoint", listener.Addr().String(), "--cert", me.Cert, "--key", me.Key, "--ca", files.Server.CA}
	return d
}

// answer gives the next answer to a method; the last one stays.
func (d *desk) answer(_ context.Context, request any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	method := info.FullMethod[strings.LastIndexByte(info.FullMethod, '/')+1:]
	text, err := protojson.Marshal(request.(proto.Message))
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked.WriteString("> " + method + " ")
	if err := json.Compact(&d.asked, text); err != nil {
		return nil, err
	}
	d.asked.WriteString("\n")
	replies := d.answers[method]
	if len(replies) == 0 {
		return nil, status.Error(codes.Unimplemented, "the test has no answer")
	}
	if len(replies) > 1 {
		d.answers[method] = replies[1:]
	}
	return replies[0].message, replies[0].err
}

// told adds an answer: a message as JSON, or a refusal.
func (d *desk) told(t *testing.T, td *datadriven.TestData) string {
	t.Helper()
	method := td.CmdArgs[0].Key
	service := pb.File_opsledger_v1_operator_service_proto.Services().ByName("OperatorService")
	kind, err := protoregistry.GlobalTypes.FindMessageByName(service.Methods().ByName(protoreflect.Name(method)).Output().FullName())
	if err != nil {
		td.Fatalf(t, "%v", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if td.HasArg("reset") {
		delete(d.answers, method)
	}
	r := reply{}
	switch {
	case td.HasArg("code"):
		r.err = refusalOf(t, td)
	default:
		r.message = kind.New().Interface()
		if err := protojson.Unmarshal(d.whole(t, td), r.message); err != nil {
			td.Fatalf(t, "%v", err)
		}
	}
	d.answers[method] = append(d.answers[method], r)
	return ""
}

// whole reads an answer, in which an object with "like" is what it says beside that, over the fixture of that name; null takes away.
func (d *desk) whole(t *testing.T, td *datadriven.TestData) []byte {
	t.Helper()
	var short any
	if err := json.Unmarshal([]byte(td.Input), &short); err != nil {
		td.Fatalf(t, "%v", err)
	}
	var fill func(v any) any
	fill = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			filled := map[string]any{}
			if like, ok := v["like"].(string); ok {
				v = maps.Clone(v)
				delete(v, "like")
				filled = merged(fill(d.fixtures[like]), v).(map[string]any)
			} else {
				maps.Copy(filled, v)
			}
			for name := range filled {
				filled[name] = fill(filled[name])
			}
			return filled
		case []any:
			filled := []any{}
			for _, e := range v {
				filled = append(filled, fill(e))
			}
			return filled
		default:
			return v
		}
	}
	text, err := json.Marshal(fill(short))
	if err != nil {
		td.Fatalf(t, "%v", err)
	}
	return text
}

// merged is RFC 7396, but that what is like something else takes the place of what was there.
func merged(base, patch any) any {
	over, ok := patch.(map[string]any)
	if _, other := over["like"]; !ok || other {
		return patch
	}
	under, _ := base.(map[string]any)
	out := map[string]any{}
	maps.Copy(out, under)
	for name, value := range over {
		if value == nil {
			delete(out, name)
		} else {
			out[name] = merged(out[name], value)
		}
	}
	return out
}

// refusalOf makes a status as the ledger does.
func refusalOf(t *testing.T, td *datadriven.TestData) error {
	t.Helper()
	var code, reason, retry string
	var number codes.Code
	td.ScanArgs(t, "code", &code)
	if err := number.UnmarshalJSON([]byte(`"` + code + `"`)); err != nil {
		td.Fatalf(t, "%v", err)
	}
	s := status.New(number, strings.TrimSpace(td.Input))
	var details []protoadapt.MessageV1
	if td.MaybeScanArgs(t, "reason", &reason) {
		details = append(details, &errdetails.ErrorInfo{Domain: "opsledger", Reason: reason})
	}
	if td.MaybeScanArgs(t, "retry", &retry) {
		wait, err := time.ParseDuration(retry)
		if err != nil {
			td.Fatalf(t, "%v", err)
		}
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	var field string
	if td.MaybeScanArgs(t, "field", &field) {
		details = append(details, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: "must be better"}}})
	}
	s, err := s.WithDetails(details...)
	if err != nil {
		td.Fatalf(t, "%v", err)
	}
	return s.Err()
}

// people runs one command line, and returns all that came of it.
func (d *desk) people(t *testing.T, td *datadriven.TestData) string {
	t.Helper()
	line, stdin, _ := strings.Cut(td.Input, "\n")
	args := shellWords(line)
	if len(args) < 1 || args[0] != "ledgerctl" {
		td.Fatalf(t, "a command line begins with ledgerctl")
	}
	if !td.HasArg("bare") {
		args = append(args, d.args...)
	}
	d.mu.Lock()
	d.asked.Reset()
	d.mu.Unlock()
	var out, talk bytes.Buffer
	ids := 0
	p := program{now: func() time.Time { return today }, newID: func() string {
		ids++
		return fmt.Sprintf("c0000000-0000-4000-8000-%012d", ids)
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := p.run(ctx, args[1:], strings.NewReader(stdin), &out, &talk)
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	b.WriteString(d.asked.String())
	if d.asked.Len() > 0 && out.Len() > 0 {
		b.WriteString("\n")
	}
	b.WriteString(out.String())
	for line := range strings.Lines(talk.String()) {
		b.WriteString("! " + line)
	}
	if err != nil {
		for line := range strings.Lines(plainLines(err.Error()) + "\n") {
			b.WriteString("!! " + line)
		}
		fmt.Fprintf(&b, "exit %d\n", exitCode(err))
	}
	return b.String()
}

// shellWords splits a line as a shell does, as far as these tests need it.
func shellWords(line string) []string {
	var found []string
	var b strings.Builder
	quote, open := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			b.WriteRune(r)
		case r == '"' || r == '\'':
			quote, open = r, true
		case r == ' ':
			if open || b.Len() > 0 {
				found = append(found, b.String())
			}
			b.Reset()
			open = false
		default:
			b.WriteRune(r)
		}
	}
	if open || b.Len() > 0 {
		found = append(found, b.String())
	}
	return found
}

// TestPeople: each command, as it is typed: what it asks of the ledger (>), its answer, its talk (!), its error (!!) and its exit code.
func TestPeople(t *testing.T) {
	files, err := filepath.Glob("testdata/people/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			d := newDesk(t)
			datadriven.RunTest(t, file, func(t *testing.T, td *datadriven.TestData) string {
				switch td.Cmd {
				case "told":
					return d.told(t, td)
				case "run":
					return d.people(t, td)
				default:
					td.Fatalf(t, "no such directive")
					return ""
				}
			})
		})
	}
}

// TestErrorsArePlain: what a ledger answers controls no terminal, as the program prints it.
func TestErrorsArePlain(t *testing.T) {
	d := newDesk(t)
	d.mu.Lock()
	d.answers["ListTools"] = []reply{{err: status.Error(codes.Internal, "bad \x1b[2J\u202e")}}
	d.mu.Unlock()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"tool", "list"}, d.args...)...)
	cmd.Env = append(os.Environ(), asMain+"=1")
	out, err := cmd.CombinedOutput()
	if got, want := string(out), "ledgerctl: bad \\u001b[2J\\u202e\n"; err == nil || got != want {
		t.Errorf("it printed %q, want %q (%v)", got, want, err)
	}
}

// TestBatchIsBounded: more than the ledger takes at once is refused before anything is sent.
func TestBatchIsBounded(t *testing.T) {
	var lines strings.Builder
	for n := range maxBatch + 1 {
		fmt.Fprintf(&lines, "61aaa169-a267-8cb1-80a8-%012d@4\n", n)
	}
	args := []string{"op", "resolve", "--from-file", "-", "--happened", "--external-id", "M-1", "--note", "x"}
	for _, tt := range []struct {
		lines string
		want  string
	}{
		{lines.String(), "500 operations at most"},
		{lines.String()[:strings.LastIndexByte(strings.TrimSpace(lines.String()), '\n')], "--state-dir"}, // only the ledger is missing
	} {
		err := run(t.Context(), args, nil, strings.NewReader(tt.lines), io.Discard, io.Discard)
		if err == nil || exitCode(err) != exitUsage || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}
