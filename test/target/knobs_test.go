// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestFaultsOfASend(t *testing.T) {
	tests := []struct {
		name    string
		knob    Knob
		timeout time.Duration // of the caller; 0: none
		class   Class
		status  int
		cause   error
		effects int // right after the answer
		landed  int // after everything landed
	}{
		{name: "hang longer than the caller waits", knob: AcceptHang(time.Hour), timeout: 200 * time.Millisecond, class: Unknown, cause: context.DeadlineExceeded, effects: 1, landed: 1},
		{name: "reset after the effect", knob: AcceptReset(), class: Unknown, cause: syscall.ECONNRESET, effects: 1, landed: 1},
		{name: "closed before the effect", knob: DropBeforeAccept(), class: Unknown, cause: io.EOF},
		{name: "effect after the answer", knob: LateCommit(time.Hour), class: Answered, status: 504, landed: 1},
		{name: "effect after a hang", knob: Knob{Fault: FaultLateCommit, Delay: time.Hour, Hang: time.Hour}, timeout: 200 * time.Millisecond, class: Unknown, cause: context.DeadlineExceeded, landed: 1},
		{name: "status", knob: Status(503), class: Answered, status: 503},
	}
	send := map[Service]func(context.Context, Client) error{
		Tickets: func(ctx context.Context, c Client) error {
			_, err := c.CreateTicket(ctx, "k", TicketRequest{Title: "a"})
			return err
		},
		Payments: func(ctx context.Context, c Client) error {
			_, err := c.Charge(ctx, "k", ChargeRequest{Amount: "1", Currency: "USD"})
			return err
		},
		Messages: func(ctx context.Context, c Client) error {
			_, err := c.SendMessage(ctx, "k", MessageRequest{To: "a"})
			return err
		},
	}
	for _, tt := range tests {
		for service, call := range send {
			t.Run(tt.name+"/"+string(service), func(t *testing.T) {
				s, c := start(t, Options{})
				set(t, s, service, tt.knob.Times(1))
				ctx := t.Context()
				if tt.timeout > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.timeout)
					defer cancel()
				}
				err := call(ctx, c)
				var e *Error
				if !errors.As(err, &e) || e.Class != tt.class || e.Status != tt.status {
					t.Fatalf("error %+v", err)
				}
				if tt.cause != nil && !errors.Is(err, tt.cause) {
					t.Errorf("cause %v, want %v", e.Err, tt.cause)
				}
				log := readBack(t, s.LogPath())
				if got := log.Effects(service, "k"); got != tt.effects {
					t.Errorf("%d effects, want %d", got, tt.effects)
				}
				if got := log.Sends(service, "k"); got != 1 {
					t.Errorf("%d sends, want 1", got)
				}
				if err := c.Land(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := readBack(t, s.LogPath()).Effects(service, "k"); got != tt.landed {
					t.Errorf("%d effects in the end, want %d", got, tt.landed)
				}
				if len(s.Knobs(service)) != 0 {
					t.Error("the knob is not used up")
				}
				if err := call(t.Context(), c); err != nil {
					t.Errorf("the next request: %v", err)
				}
			})
		}
	}
}

func TestLateCommitLandsByItself(t *testing.T) {
	s, c := start(t, Options{})
	set(t, s, Tickets, LateCommit(time.Millisecond))
	_, err := c.CreateTicket(t.Context(), "k", TicketRequest{Title: "a"})
	wantStatus(t, err, http.StatusGatewayTimeout, codeFault)
	waitFor(t, func() bool { return len(must[[]Ticket](t)(c.FindTickets(t.Context(), "k"))) == 1 })
}

func TestHangEndsWithItsTime(t *testing.T) {
	s, c := start(t, Options{})
	set(t, s, Tickets, AcceptHang(20*time.Millisecond))
	must[Ticket](t)(c.CreateTicket(t.Context(), "k", TicketRequest{Title: "a"}))
}

func TestStatusCarriesReasonAndRetryAfter(t *testing.T) {
	s, c := start(t, Options{})
	refusal := Status(402)
	refusal.Reason = "card_declined"
	set(t, s, Payments, Status(429).After(1500*time.Millisecond).Times(2), refusal)
	for range 2 {
		_, err := c.Charge(t.Context(), "k", ChargeRequest{Amount: "1", Currency: "USD"})
		wantStatus(t, err, 429, codeFault)
		var e *Error
		if !errors.As(err, &e) || e.RetryAfter != 2*time.Second {
			t.Errorf("retry after %v", e.RetryAfter)
		}
	}
	for range 3 {
		_, err := c.Charge(t.Context(), "k", ChargeRequest{Amount: "1", Currency: "USD"})
		wantStatus(t, err, 402, "card_declined")
	}
}

func TestFaultsOfPayments(t *testing.T) {
	s, c := start(t, Options{})
	ctx := t.Context()
	set(t, s, Payments, IgnoresKey(), ScaleBug().Times(1))
	yen := must[Charge](t)(c.Charge(ctx, "k", ChargeRequest{Amount: "80", Currency: "JPY"}))
	again := must[Charge](t)(c.Charge(ctx, "k", ChargeRequest{Amount: "80", Currency: "JPY"}))
	if yen.Amount != "8000" || again.Amount != "80" || yen.ID == again.ID {
		t.Errorf("charges %+v, %+v", yen, again)
	}
	if got := readBack(t, s.LogPath()).Effects(Payments, "k"); got != 2 {
		t.Errorf("%d effects", got)
	}
	for amount, want := range map[Amount]Amount{"10.00": "1000", "0.5": "50", "1.234": "123.4", "-2": "-200"} {
		if got := amount.times100(); got != want {
			t.Errorf("%s becomes %s, want %s", amount, got, want)
		}
	}
}

func TestFaultsOfQueries(t *testing.T) {
	clk := newClock()
	s, c := start(t, Options{Now: clk.Now})
	ctx := t.Context()
	made := must[Ticket](t)(c.CreateTicket(ctx, "k", TicketRequest{Title: "a"}))
	set(t, s, Tickets, ListLag(time.Minute))
	if n := len(must[[]Ticket](t)(c.FindTickets(ctx, "k"))); n != 0 {
		t.Error("seen before the lag is over")
	}
	_, err := c.GetTicket(ctx, made.ID)
	wantStatus(t, err, http.StatusNotFound, codeNotFound)
	clk.move(time.Minute)
	if n := len(must[[]Ticket](t)(c.FindTickets(ctx, "k"))); n != 1 {
		t.Error("not seen after the lag")
	}
	throttled := QueryDown().After(2 * time.Second)
	throttled.Code = 429
	set(t, s, Tickets, throttled.Times(1), QueryDown().Times(1))
	_, err = c.FindTickets(ctx, "k")
	wantStatus(t, err, 429, codeFault)
	_, err = c.FindTickets(ctx, "k")
	wantStatus(t, err, 503, codeFault)
	if n := len(must[[]Ticket](t)(c.FindTickets(ctx, "k"))); n != 1 {
		t.Error("not up again")
	}
	must[Ticket](t)(c.CreateTicket(ctx, "k", TicketRequest{Title: "a query's knob leaves sends alone"}))
	if got := readBack(t, s.LogPath()).Queries(Tickets, "k"); got != 5 {
		t.Errorf("%d queries of the key", got)
	}
}

func TestConcurrencyIsInTheLog(t *testing.T) {
	s, c := start(t, Options{})
	set(t, s, Messages, AcceptHang(time.Hour))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() { _, _ = c.SendMessage(ctx, "k", MessageRequest{To: "a"}) })
	}
	waitFor(t, func() bool { return readBack(t, s.LogPath()).Effects(Messages, "k") == 5 })
	cancel()
	wg.Wait()
	if got := readBack(t, s.LogPath()).MaxConcurrent(Messages); got != 5 {
		t.Errorf("%d at one time", got)
	}
	if got := readBack(t, s.LogPath()).MaxConcurrent(Tickets); got != 0 {
		t.Errorf("%d at one time at another service", got)
	}
}

func TestKnobsOverHTTP(t *testing.T) {
	s, c := start(t, Options{})
	want := []Knob{AcceptHang(1500 * time.Millisecond).Times(3), Status(429).After(2 * time.Second), ListLag(time.Minute)}
	if err := c.SetKnobs(t.Context(), Tickets, want...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.Knobs(Tickets)); diff != "" {
		t.Error(diff)
	}
	if err := c.SetKnobs(t.Context(), Tickets); err != nil || len(s.Knobs(Tickets)) != 0 {
		t.Errorf("not cleared: %v", err)
	}
	for name, body := range map[string]string{
		"unknown service":       `{"service":"mail","knobs":[]}`,
		"unknown fault":         `{"service":"tickets","knobs":[{"fault":"sulk"}]}`,
		"bare number":           `{"service":"tickets","knobs":[{"fault":"accept_hang","delay":30}]}`,
		"number in text":        `{"service":"tickets","knobs":[{"fault":"accept_hang","delay":"30"}]}`,
		"negative delay":        `{"service":"tickets","knobs":[{"fault":"accept_hang","delay":"-1s"}]}`,
		"negative count":        `{"service":"tickets","knobs":[{"fault":"accept_reset","count":-1}]}`,
		"status without status": `{"service":"tickets","knobs":[{"fault":"status"}]}`,
		"status out of range":   `{"service":"tickets","knobs":[{"fault":"status","status":99}]}`,
		"not of this service":   `{"service":"tickets","knobs":[{"fault":"scale_bug"}]}`,
		"query of messages":     `{"service":"messages","knobs":[{"fault":"query_down"}]}`,
		"no JSON":               `knobs`,
	} {
		res, err := http.Post(s.URL()+"/knobs", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var p problem
		err = json.NewDecoder(res.Body).Decode(&p)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusBadRequest || p.Rule == "" {
			t.Errorf("%s: status %d, %+v, %v", name, res.StatusCode, p, err)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestClientNeverSendsTwice(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// A server that answers the first request and closes each later connection
	// after it has read the request: what net/http's own client sends again.
	requests := make(chan int, 1)
	go func() {
		n := 0
		defer func() { requests <- n }()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 64<<10)
			for {
				if _, err := conn.Read(buf); err != nil {
					break
				}
				n++
				if n > 1 {
					break
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}")
			}
			conn.Close()
		}
	}()
	c := Client{BaseURL: "http://" + listener.Addr().String()}
	must[Charge](t)(c.Charge(t.Context(), "k", ChargeRequest{Amount: "1", Currency: "USD"}))
	_, err = c.Charge(t.Context(), "k", ChargeRequest{Amount: "1", Currency: "USD"})
	if ClassOf(err) != Unknown {
		t.Errorf("a closed connection: %v", err)
	}
	_, err = c.FindCharges(t.Context(), "secret-key")
	if ClassOf(err) != Unknown || strings.Contains(errors.Unwrap(err).Error(), "secret-key") {
		t.Errorf("a closed connection at a query: %v", err)
	}
	listener.Close()
	if n := <-requests; n != 3 {
		t.Errorf("%d requests for 3 calls", n)
	}
	_, err = c.Charge(t.Context(), "k", ChargeRequest{Amount: "1", Currency: "USD"})
	if ClassOf(err) != NeverSent {
		t.Errorf("nobody listens: %v", err)
	}
}

func TestClientFollowsNoRedirect(t *testing.T) {
	s, c := start(t, Options{})
	set(t, s, Tickets, Status(307))
	_, err := c.CreateTicket(t.Context(), "k", TicketRequest{Title: "a"})
	wantStatus(t, err, 307, codeFault)
	if got := readBack(t, s.LogPath()).Sends(Tickets, "k"); got != 1 {
		t.Errorf("%d sends", got)
	}
}
