// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

// mainVariable makes the test binary be the service process.
const mainVariable = "TARGET_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		if err := Main(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// start runs a service in this process until the end of the test.
func start(t *testing.T, opts Options) (*Server, Client) {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = t.TempDir()
	}
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, Client{BaseURL: s.URL()}
}

func set(t *testing.T, s *Server, service Service, knobs ...Knob) {
	t.Helper()
	if err := s.SetKnobs(service, knobs...); err != nil {
		t.Fatal(err)
	}
}

func readBack(t *testing.T, path string) Log {
	t.Helper()
	log, err := ReadLog(path)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// clock is a service's clock that the test moves.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func TestCloseLeavesNoConnectionBehind(t *testing.T) {
	s, err := Start(t.Context(), Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.Post(s.URL()+"/messages", "application/json", strings.NewReader(strings.Repeat(" ", maxBody+1)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	if strings.Contains(string(stacks), "net/http.(*conn).serve") {
		t.Errorf("after Close, with status %d:\n%s", res.StatusCode, stacks)
	}
}

func TestTicketsAreQueryableAndNotDeduplicated(t *testing.T) {
	s, c := start(t, Options{})
	first := must[Ticket](t)(c.CreateTicket(t.Context(), "k", TicketRequest{Title: "disk full", Queue: "ops"}))
	second := must[Ticket](t)(c.CreateTicket(t.Context(), "k", TicketRequest{Title: "disk full", Queue: "ops"}))
	must[Ticket](t)(c.CreateTicket(t.Context(), "other", TicketRequest{Title: "x"}))
	if first.ID != "T-1001" || second.ID != "T-1002" {
		t.Errorf("ids %s, %s", first.ID, second.ID)
	}
	found := must[[]Ticket](t)(c.FindTickets(t.Context(), "k"))
	if diff := cmp.Diff([]Ticket{first, second}, found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	if none := must[[]Ticket](t)(c.FindTickets(t.Context(), "never")); len(none) != 0 {
		t.Errorf("found %d tickets of a key without any", len(none))
	}
	log := readBack(t, s.LogPath())
	if log.Sends(Tickets, "k") != 2 || log.Effects(Tickets, "k") != 2 || log.Queries(Tickets, "k") != 1 || log.Effects(Tickets, AnyKey) != 3 {
		t.Errorf("log counts differ: %+v", log.Entries)
	}
	if diff := cmp.Diff([]string{"T-1001", "T-1002"}, log.Created(Tickets, "k")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"k", "other"}, log.Keys(Tickets)); diff != "" {
		t.Error(diff)
	}
}

func TestTicketsChangeByRevision(t *testing.T) {
	s, c := start(t, Options{})
	ctx := t.Context()
	made := must[Ticket](t)(c.CreateTicket(ctx, "k", TicketRequest{Title: "a"}))
	title := "b"
	now := must[Ticket](t)(c.ChangeTicket(ctx, "", made.ID, made.Revision, TicketChange{Title: &title}))
	if now.Title != "b" || now.Revision != 2 {
		t.Errorf("changed to %+v", now)
	}
	_, err := c.ChangeTicket(ctx, "", made.ID, made.Revision, TicketChange{Title: &title})
	wantStatus(t, err, http.StatusPreconditionFailed, codeChanged)
	wantStatus(t, c.DeleteTicket(ctx, "undo", made.ID, made.Revision), http.StatusPreconditionFailed, codeChanged)
	if diff := cmp.Diff(now, must[Ticket](t)(c.GetTicket(ctx, made.ID))); diff != "" {
		t.Error(diff)
	}
	if err := c.DeleteTicket(ctx, "undo", made.ID, now.Revision); err != nil {
		t.Fatal(err)
	}
	_, err = c.GetTicket(ctx, made.ID)
	wantStatus(t, err, http.StatusNotFound, codeNotFound)
	log := readBack(t, s.LogPath())
	if log.Effects(Tickets, "undo") != 1 || log.Sends(Tickets, "undo") != 2 {
		t.Error("the removal is not counted once")
	}
}

func TestPaymentsDeduplicateByKeyWithinTheWindow(t *testing.T) {
	clk := newClock()
	s, c := start(t, Options{KeyWindow: time.Hour, Now: clk.Now})
	ctx, req := t.Context(), ChargeRequest{Amount: "10.00", Currency: "USD", To: "A"}
	first := must[Charge](t)(c.Charge(ctx, "k", req))
	clk.move(time.Hour - 1)
	if again := must[Charge](t)(c.Charge(ctx, "k", req)); again.ID != first.ID {
		t.Errorf("charge %s within the window, want %s", again.ID, first.ID)
	}
	_, err := c.Charge(ctx, "k", ChargeRequest{Amount: "25.00", Currency: "USD", To: "A"})
	wantStatus(t, err, http.StatusUnprocessableEntity, codeKeyReused)
	// The same key at another endpoint is another request.
	refund := must[Refund](t)(c.Refund(ctx, "k", RefundRequest{Charge: first.ID, Amount: "10.00"}))
	if again := must[Refund](t)(c.Refund(ctx, "k", RefundRequest{Charge: first.ID, Amount: "10.00"})); again.ID != refund.ID {
		t.Error("a second refund")
	}
	if n := len(must[[]Charge](t)(c.FindCharges(ctx, "k"))); n != 1 {
		t.Errorf("%d charges found within the window", n)
	}
	clk.move(1)
	if n := len(must[[]Charge](t)(c.FindCharges(ctx, "k"))); n != 0 {
		t.Errorf("%d charges found after the window", n)
	}
	if late := must[Charge](t)(c.Charge(ctx, "k", req)); late.ID == first.ID {
		t.Error("the key is remembered after the window")
	}
	log := readBack(t, s.LogPath())
	if got := len(log.Created(Payments, "k")); got != 3 { // two charges, one refund
		t.Errorf("%d effects, want 3", got)
	}
	_, err = c.Refund(ctx, "r", RefundRequest{Charge: "CH-9", Amount: "1"})
	wantStatus(t, err, http.StatusUnprocessableEntity, codeNoCharge)
}

func TestPaymentsDeduplicateConcurrentSends(t *testing.T) {
	s, c := start(t, Options{})
	set(t, s, Payments, AcceptHang(time.Hour).Times(1))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	send := func() { _, _ = c.Charge(ctx, "k", ChargeRequest{Amount: "1", Currency: "USD"}) }
	wg.Go(send)
	waitFor(t, func() bool { return len(s.Knobs(Payments)) == 0 })
	for range 16 {
		wg.Go(send)
	}
	must[Charge](t)(c.Charge(t.Context(), "k", ChargeRequest{Amount: "1", Currency: "USD"}))
	waitFor(t, func() bool { return readBack(t, s.LogPath()).Sends(Payments, "k") == 18 })
	cancel()
	wg.Wait()
	if got := readBack(t, s.LogPath()).Effects(Payments, "k"); got != 1 {
		t.Errorf("%d effects", got)
	}
}

func TestMessagesHaveNeitherKeyNorQuery(t *testing.T) {
	s, c := start(t, Options{})
	for range 2 {
		must[Message](t)(c.SendMessage(t.Context(), "ref", MessageRequest{To: "a@x.test"}))
	}
	res, err := http.Get(s.URL() + "/messages")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("query answered with %d", res.StatusCode)
	}
	if got := readBack(t, s.LogPath()).Effects(Messages, "ref"); got != 2 {
		t.Errorf("%d effects", got)
	}
}

func TestInvalidRequestsHaveNoEffect(t *testing.T) {
	s, _ := start(t, Options{})
	set(t, s, Tickets, AcceptReset().Times(1))
	for name, tt := range map[string]struct{ path, body string }{
		"no title":           {"/tickets", `{}`},
		"no JSON":            {"/tickets", `title`},
		"no currency":        {"/charges", `{"amount":"1"}`},
		"amount is a word":   {"/charges", `{"amount":"much","currency":"USD"}`},
		"amount of a power":  {"/charges", `{"amount":1e9,"currency":"USD"}`},
		"refund of nothing":  {"/refunds", `{"amount":"1"}`},
		"message to nobody":  {"/messages", `{}`},
		"more than one MiB":  {"/messages", `{"to":"` + strings.Repeat("x", maxBody) + `"}`},
		"amount is a ratio":  {"/charges", `{"amount":"1/3","currency":"USD"}`},
		"amount is an array": {"/charges", `{"amount":[1],"currency":"USD"}`},
	} {
		res, err := http.Post(s.URL()+tt.path, "application/json", strings.NewReader(tt.body))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusUnprocessableEntity {
			t.Errorf("%s: status %d", name, res.StatusCode)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	log := readBack(t, s.LogPath())
	if log.Effects(Tickets, AnyKey)+log.Effects(Payments, AnyKey)+log.Effects(Messages, AnyKey) != 0 {
		t.Error("an invalid request had an effect")
	}
	if log.Sends(Payments, AnyKey) != 6 {
		t.Errorf("%d sends counted", log.Sends(Payments, AnyKey))
	}
	if len(s.Knobs(Tickets)) != 1 {
		t.Error("an invalid request used up a knob")
	}
}

func wantStatus(t *testing.T, err error, status int, code string) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Class != Answered || e.Status != status || e.Code != code {
		t.Errorf("error %+v, want status %d with code %s", err, status, code)
	}
}

func TestRestartRebuildsTheState(t *testing.T) {
	dir := t.TempDir()
	ctx := t.Context()
	s, c := start(t, Options{Dir: dir})
	made := must[Ticket](t)(c.CreateTicket(ctx, "k", TicketRequest{Title: "a"}))
	title := "b"
	made = must[Ticket](t)(c.ChangeTicket(ctx, "", made.ID, 0, TicketChange{Title: &title}))
	gone := must[Ticket](t)(c.CreateTicket(ctx, "gone", TicketRequest{Title: "x"}))
	if err := c.DeleteTicket(ctx, "", gone.ID, 0); err != nil {
		t.Fatal(err)
	}
	paid := must[Charge](t)(c.Charge(ctx, "k", ChargeRequest{Amount: "1", Currency: "USD"}))
	set(t, s, Payments, LateCommit(time.Hour).Times(1))
	if _, err := c.Charge(ctx, "late", ChargeRequest{Amount: "2", Currency: "USD"}); ClassOf(err) != Answered {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// A kill in the middle of a write leaves a torn line behind.
	f, err := os.OpenFile(s.LogPath(), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"n":99,"ser`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	before := readBack(t, s.LogPath())

	s2, c2 := start(t, Options{Dir: dir})
	if diff := cmp.Diff(made, must[Ticket](t)(c2.GetTicket(ctx, made.ID))); diff != "" {
		t.Error(diff)
	}
	_, err = c2.GetTicket(ctx, gone.ID)
	wantStatus(t, err, http.StatusNotFound, codeNotFound)
	if again := must[Charge](t)(c2.Charge(ctx, "k", ChargeRequest{Amount: "1", Currency: "USD"})); again.ID != paid.ID {
		t.Error("the key was forgotten by the restart")
	}
	_, err = c2.Charge(ctx, "late", ChargeRequest{Amount: "2", Currency: "USD"})
	wantStatus(t, err, http.StatusConflict, codeInProgress)
	if n, err := s2.Land(); n != 1 || err != nil {
		t.Errorf("landed %d, %v", n, err)
	}
	if id := must[Charge](t)(c2.Charge(ctx, "late", ChargeRequest{Amount: "2", Currency: "USD"})).ID; id != "CH-1002" {
		t.Errorf("the late charge is %s", id)
	}
	if id := must[Ticket](t)(c2.CreateTicket(ctx, "n", TicketRequest{Title: "n"})).ID; id != "T-1003" {
		t.Errorf("the next ticket is %s", id)
	}
	after := readBack(t, s2.LogPath())
	if diff := cmp.Diff(before.Entries, after.Entries[:len(before.Entries)]); diff != "" {
		t.Errorf("the restart changed earlier lines:\n%s", diff)
	}
}

func TestProcessIsKilledAndItsLogCounts(t *testing.T) {
	ctx := t.Context()
	opts := SpawnOptions{Dir: t.TempDir(), Command: []string{os.Args[0]}, Env: []string{mainVariable + "=1"}}
	p := must[*Process](t)(Spawn(ctx, opts))
	c := Client{BaseURL: p.URL()}
	if err := c.SetKnobs(ctx, Tickets, AcceptHang(time.Hour)); err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.CreateTicket(ctx, "k", TicketRequest{Title: "a"})
		sent <- err
	}()
	waitFor(t, func() bool {
		log, err := ReadLog(p.LogPath())
		return err == nil && log.Effects(Tickets, "k") == 1
	})
	if p.State() != nil {
		t.Error("the process has ended early")
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := ClassOf(<-sent); got != Unknown {
		t.Errorf("the killed service's caller: %v", got)
	}
	if ws, ok := p.State().Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Errorf("ended as %v", p.State())
	}
	if err := p.Kill(); err != nil {
		t.Errorf("second kill: %v", err)
	}
	opts.Addr = p.Addr()
	p2 := must[*Process](t)(Spawn(ctx, opts))
	if p2.URL() != p.URL() {
		t.Errorf("restarted at %s", p2.URL())
	}
	if n := len(must[[]Ticket](t)(c.FindTickets(ctx, "k"))); n != 1 {
		t.Errorf("%d tickets after the restart", n)
	}
	if err := p2.Stop(); err != nil || !p2.State().Success() {
		t.Errorf("stop: %v, %v", err, p2.State())
	}
}

func TestSpawnOfAProgramThatIsNoService(t *testing.T) {
	_, err := Spawn(t.Context(), SpawnOptions{Dir: t.TempDir(), Command: []string{os.Args[0], "-test.run=^$"}})
	if err == nil {
		t.Fatal("no error")
	}
	if _, err := Spawn(t.Context(), SpawnOptions{Dir: t.TempDir(), Command: []string{"/nowhere/target"}}); err == nil {
		t.Fatal("no error for a program that is not there")
	}
}

// waitFor looks until the condition holds, for 20 seconds at most.
func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for range 4000 {
		if condition() {
			return
		}
		<-tick.C
	}
	t.Fatal("the condition did not come to hold")
}
