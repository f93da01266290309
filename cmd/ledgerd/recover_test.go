// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const probedContracts = `
tools:
  tickets.create:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    recovery:
      method: probe
      key_retention: 24h
      effect_within: 60s
      probe:
        http:
          url: "%s/tickets?key={downstream_key}"
          headers: {authorization: "Bearer ${file:%s}"}
          found: "status == 200"
          not_found: "status == 404"
          result: {id: "body.id"}
      verify: []
      checks: {first: 1s, timeout: 20s}
`

// A process that is told to stop while it asks a target lets the answer come, and writes it down: one that serves, and one that only recovers.
func TestStoppingWhileATargetIsAsked(t *testing.T) {
	for _, command := range []string{"serve", "recover"} {
		t.Run(command, func(t *testing.T) {
			asked, release := make(chan *http.Request, 1), make(chan struct{})
			target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked <- r
				<-release
				_, _ = w.Write([]byte(`{"id":"T-1"}`))
			}))
			t.Cleanup(target.Close)
			h := newHouse(t, stores["sqlite"](t))
			h.write(t, "token", "canary-token")
			h.write(t, "contracts.yaml", fmt.Sprintf(probedContracts, target.URL, h.path("token")))
			recovering := []string{"--probe-allow", "127.0.0.1"}
			first := start(t, nil, append(h.args, append(recovering, "--recovery", map[string]string{"serve": "on", "recover": "off"}[command])...)...)
			c := claim("k")
			ledger := pb.NewLedgerServiceClient(dial(t, first.at.GRPC, h.as(t, "spiffe://ledger.test/agent/a")))
			granted, err := ledger.Claim(call(t), c)
			if err != nil || granted.GetGranted() == nil {
				t.Fatalf("the claim was answered %v, %v", granted, err)
			}
			if _, err := ledger.MarkUnknown(call(t), &pb.MarkUnknownRequest{
				OperationId: granted.GetOperation().GetId(), ClaimId: c.GetClaimId(), Cause: pb.UnknownCause_UNKNOWN_CAUSE_TIMEOUT,
			}); err != nil {
				t.Fatal(err)
			}
			asks := first
			if command == "recover" {
				asks = start(t, nil, append([]string{
					"recover", "--store-file", h.path("store"), "--contracts", h.path("contracts.yaml"), "--secrets", h.path("secrets.yaml"),
					"--admin-addr", "127.0.0.1:0", "--log-format", "text",
				}, recovering...)...)
				if code, body := asks.get("/readyz?verbose"); code != http.StatusOK || strings.Contains(body, "certificate") {
					t.Errorf("while it recovers: %d %s", code, body)
				}
			}
			select {
			case r := <-asked:
				if r.Header.Get("Authorization") != "Bearer canary-token" || r.URL.Query().Get("key") != granted.GetGranted().GetDownstreamKey() {
					t.Error("the target was sent another header or key")
				}
			case <-time.After(patience):
				t.Fatal("the target was not asked")
			}
			asks.signals <- syscall.SIGTERM
			until := time.After(patience)
			for code := 0; code != http.StatusServiceUnavailable; code, _ = asks.get("/readyz") { // it has heard
				select {
				case <-until:
					t.Fatal("it stays ready")
				default:
				}
			}
			close(release)
			if err := asks.wait(); err != nil {
				t.Errorf("it ended with %v", err)
			}
			for _, what := range []string{"canary-token", granted.GetGranted().GetDownstreamKey(), target.URL} {
				if text, _ := asks.log.read(); strings.Contains(text, what) {
					t.Error("the log shows a secret, a key or an address")
				}
			}
			after := start(t, nil, append(h.args, "--recovery", "off")...)
			again := claim("k")
			again.ClaimId, again.IntentTime = uuid.NewString(), c.GetIntentTime()
			answer, err := pb.NewLedgerServiceClient(dial(t, after.at.GRPC, h.as(t, "spiffe://ledger.test/agent/a"))).Claim(call(t), again)
			if err != nil || answer.GetCompleted().GetResult().GetResource().GetId() != "T-1" {
				t.Errorf("what the target said was not written down: %v, %v", answer, err)
			}
		})
	}
}

// A second signal does not wait for a target.
func TestASecondSignalLeavesATargetAlone(t *testing.T) {
	asked, release := make(chan struct{}, 1), make(chan struct{})
	target := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		<-release
	}))
	t.Cleanup(target.Close)
	t.Cleanup(func() { close(release) })
	h := newHouse(t, stores["sqlite"](t))
	h.write(t, "token", "x")
	h.write(t, "contracts.yaml", fmt.Sprintf(probedContracts, target.URL, h.path("token")))
	r := start(t, nil, append(h.args, "--probe-allow", "127.0.0.1")...)
	ledger := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, "spiffe://ledger.test/agent/a")))
	c := claim("k")
	c.Lease = durationpb.New(time.Second)
	if _, err := ledger.Claim(call(t), c); err != nil {
		t.Fatal(err)
	}
	select {
	case <-asked:
	case <-time.After(patience):
		t.Fatal("the target was not asked")
	}
	r.signals <- syscall.SIGTERM
	r.signals <- syscall.SIGTERM
	if err := r.wait(); err == nil || !strings.Contains(err.Error(), errForced.Error()) {
		t.Errorf("it ended with %v", err)
	}
}

func TestWhatRecoverNeeds(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	for name, f := range map[string]struct {
		args []string
		says string
	}{
		"no store":            {[]string{"recover", "--secrets", h.path("secrets.yaml")}, "--store (LEDGERD_STORE): is required"},
		"no secrets":          {[]string{"recover", "--store-file", h.path("store")}, "--secrets (LEDGERD_SECRETS): is required"},
		"a flag of callers'":  {[]string{"recover", "--policy", "x"}, "unknown flag"},
		"neither on nor off":  {append(h.args, "--recovery", "canary"), "--recovery (LEDGERD_RECOVERY): must be one of on, off"},
		"no list of places":   {append(h.args, "--probe-allow", "https://canary"), "--probe-allow (LEDGERD_PROBE_ALLOW): must list addresses"},
		"a place, not a list": {append(h.args, "--probe-allow", "canary:80"), "--probe-allow (LEDGERD_PROBE_ALLOW): must list addresses"},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(call(t), f.args, nil, &journal{}, &journal{})
			if exitCode(err) != 2 || !strings.Contains(err.Error(), f.says) || strings.Contains(err.Error(), "canary") {
				t.Errorf("exit code %d: %v", exitCode(err), err)
			}
		})
	}
}
