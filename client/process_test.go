// SPDX-License-Identifier: Apache-2.0

//go:build unix

package client_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/opsledger/opsledger/client"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// errandVariable makes this test binary a worker process.
const errandVariable = "OPSLEDGER_CLIENT_ERRAND"

// errand is what a worker process is told to do: one effect at the target, through the SDK. Where Stops says so it tells the place, and
// waits for a line before it goes on.
type errand struct {
	Ledger, Target, Tool, Task string
	Decided                    time.Time
	Stops                      bool
	// Unguarded sends past [client.OneSend].
	Unguarded bool
}

func (e errand) intent() client.Intent {
	return client.Intent{Task: e.Task, Step: "effect", Time: e.Decided}
}

func TestMain(m *testing.M) {
	text := os.Getenv(errandVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var e errand
	err := json.Unmarshal([]byte(text), &e)
	if err == nil {
		err = e.run(os.Stdin, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (e errand) run(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(e.Ledger, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	lines := bufio.NewReader(in)
	stop := func(place string) error {
		if !e.Stops {
			return nil
		}
		fmt.Fprintln(out, place)
		_, err := lines.ReadString('\n') // ends with the parent, too
		return err
	}
	if err := stop("before"); err != nil {
		return err
	}
	effect := client.Effect[map[string]string, *opsledgerv1.ResourceRef]{
		Tool: e.Tool,
		Execute: func(ctx context.Context, call client.Call, r map[string]string) (*opsledgerv1.ResourceRef, error) {
			if err := stop("claimed"); err != nil {
				return nil, client.NotSent(err)
			}
			orphaned := func(err error) {
				if err != nil {
					os.Exit(1)
				}
			}
			id, err := e.send(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
				ConnectStart: func(string, string) { orphaned(stop("connecting")) },
				GotConn:      func(httptrace.GotConnInfo) { orphaned(stop("sending")) },
			}), call, r)
			if err != nil {
				return nil, err
			}
			return &opsledgerv1.ResourceRef{Type: "effect", Id: id}, stop("answered")
		},
		Resource: func(r *opsledgerv1.ResourceRef) *opsledgerv1.ResourceRef { return r },
	}
	got := told(client.Do(ctx, client.New(conn, client.Options{}), effect, e.intent(), map[string]string{"amount": "10.00"}))
	if strings.HasPrefix(got, "done ") {
		got = word(strings.HasSuffix(got, "replayed"), "replayed") + word(!strings.HasSuffix(got, "replayed"), "done")
	}
	fmt.Fprintln(out, "told", got)
	return nil
}

// send is the one request.
func (e errand) send(ctx context.Context, call client.Call, r map[string]string) (string, error) {
	path, body := "/charges", `{"amount":"`+r["amount"]+`","currency":"EUR"}`
	if e.Tool == "mail.send" {
		path, body = "/messages", `{"to":"A"}`
	}
	transport := client.OneSend(nil)
	if e.Unguarded {
		ctx, transport = context.WithoutCancel(ctx), http.DefaultTransport
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.Target+path, strings.NewReader(body))
	if err != nil {
		return "", client.NotSent(err)
	}
	req.Header.Set("Idempotency-Key", call.Key)
	req.Header.Set("X-Reference", call.Key)
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	var made struct {
		ID string `json:"id"`
	}
	if err := json.NewDecoder(res.Body).Decode(&made); err != nil {
		return "", err
	}
	return made.ID, nil
}

// worker is an errand under way.
type worker struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (e errand) start(t *testing.T) *worker {
	t.Helper()
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	w := &worker{cmd: exec.CommandContext(bounded(t), os.Args[0])}
	w.cmd.Env, w.cmd.Stderr = append(os.Environ(), errandVariable+"="+string(text)), os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w.out = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if w.cmd.ProcessState == nil {
			_, _ = w.cmd.Process.Kill(), w.cmd.Wait()
		}
	})
	return w
}

// hear returns the rest of the next line, whose first word must be the given one.
func (w *worker) hear(t *testing.T, word string) string {
	t.Helper()
	line, err := w.out.ReadString('\n')
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), word)
	if err != nil || !ok {
		t.Fatalf("the worker said %q, want %q: %v", line, word, err)
	}
	return strings.TrimSpace(rest)
}

func (w *worker) goOn(t *testing.T) {
	t.Helper()
	if _, err := io.WriteString(w.in, "go on\n"); err != nil {
		t.Fatal(err)
	}
}

// goTo lets it go on until it is at the place.
func (w *worker) goTo(t *testing.T, place string) {
	t.Helper()
	for _, p := range []string{"before", "claimed", "connecting", "sending", "answered"} {
		w.hear(t, p)
		if p == place {
			return
		}
		w.goOn(t)
	}
}

func (w *worker) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stop stops the process by SIGSTOP, and waits until it is.
func (w *worker) stop(t *testing.T) {
	t.Helper()
	w.signal(t, syscall.SIGSTOP)
	var status syscall.WaitStatus
	for { // until no signal to this process interrupts it
		_, err := syscall.Wait4(w.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == nil && status.Stopped() {
			return
		}
		if !errors.Is(err, syscall.EINTR) {
			t.Fatalf("the worker did not stop: %v", err)
		}
	}
}

func (w *worker) kill(t *testing.T) {
	t.Helper()
	w.signal(t, syscall.SIGKILL)
	_ = w.cmd.Wait() // says that it was killed
	if status, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the worker ended with %v", w.cmd.ProcessState)
	}
}

// done is what it was told, past the places that it is allowed to pass already.
func (w *worker) done(t *testing.T) string {
	t.Helper()
	for {
		line := w.hear(t, "")
		if got, ok := strings.CutPrefix(line, "told "); ok {
			if err := w.cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			return got
		}
	}
}

func startTarget(t *testing.T) *target.Server {
	t.Helper()
	ft, err := target.Start(t.Context(), target.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ft.Close() })
	return ft
}

// counted is how many requests arrived at the target, and what they made.
func counted(t *testing.T, ft *target.Server) (sends int, effects []string) {
	t.Helper()
	log, err := target.ReadLog(ft.LogPath())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []target.Service{target.Payments, target.Messages} {
		sends += log.Sends(s, target.AnyKey)
		effects = append(effects, log.Created(s, target.AnyKey)...)
	}
	return sends, effects
}
