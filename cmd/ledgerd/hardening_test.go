// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

const agentB = "spiffe://ledger.test/agent/b"

// getTool is a call that only reads settings.
func getTool(t *testing.T, client pb.LedgerServiceClient) error {
	t.Helper()
	_, err := client.GetTool(call(t), &pb.GetToolRequest{Tool: "tickets.create"})
	return err
}

// A certificate that is put on the list is refused within the reload interval, on the connection that it has open.
func TestADeniedCertificateIsRefusedOnItsOpenConnection(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, append(h.args, "--reload-interval", "100ms")...)
	material := h.as(t, agentA)
	leaf, err := x509.ParseCertificate(sentBy(t, material).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	lost := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, material))
	kept := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
	for _, client := range []pb.LedgerServiceClient{lost, kept} {
		if err := getTool(t, client); err != nil {
			t.Fatal(err)
		}
	}
	h.write(t, "policy.yaml", fmt.Sprintf(testPolicy, "'*'")+fmt.Sprintf("denied_serials: [\"%040x\"]\n", leaf.SerialNumber))
	r.log.waitFor(t, `"kind":"policy"`) // within the interval, or patience runs out
	if err := getTool(t, lost); status.Code(err) != codes.Unauthenticated {
		t.Errorf("the denied certificate: %v", err)
	}
	if err := getTool(t, kept); err != nil {
		t.Errorf("another one of the same principal: %v", err)
	}
}

func TestThePolicysLimitsAreInForceAndReloaded(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	limits := func(of string) {
		h.write(t, "policy.yaml", strings.Replace(fmt.Sprintf(testPolicy, "'*'"), "tools: ['*']}", "tools: ['*'], limits: "+of+"}", 1))
	}
	limits("{requests_per_second: 1, burst: 5}")
	r := start(t, nil, append(h.args, "--reload-interval", "100ms")...)
	a, b := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA))), pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentB)))
	burst := func() (refused int) {
		t.Helper()
		for i := range 100 {
			switch err := getTool(t, []pb.LedgerServiceClient{a, b}[i%2]); status.Code(err) {
			case codes.OK:
			case codes.ResourceExhausted:
				refused++
			default:
				t.Fatal(err)
			}
		}
		return refused
	}
	if got := burst(); got < 50 { // 95, and less on a slow machine
		t.Errorf("%d of 100 requests were refused", got)
	}
	if _, metrics := r.get("/metrics"); !strings.Contains(metrics, `ledger_requests_limited_total{ledger_limit_kind="scope_requests"}`) {
		t.Errorf("the refusals are not counted:\n%s", metrics)
	}
	limits("{requests_per_second: 100000}")
	r.log.waitFor(t, `"kind":"policy"`)
	if got := burst(); got > 10 {
		t.Errorf("with the new limits %d of 100 requests were refused", got)
	}
}

// A handshake that does not come ends with its connection.
func TestASilentConnectionIsEnded(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	silent, err := net.Dial("tcp", r.at.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_ = silent.SetReadDeadline(time.Now().Add(patience))
	begun := time.Now()
	if _, err := io.ReadAll(silent); err != nil && !strings.Contains(err.Error(), "reset") {
		t.Errorf("the connection was not ended: %v", err)
	}
	if took := time.Since(begun); took > handshakeBound+5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// The admin listener has three pages, and nothing of what profilers and debuggers like to serve.
func TestTheAdminListenerServesNothingElse(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	for _, path := range []string{"/", "/debug/pprof/", "/debug/pprof/heap", "/debug/vars", "/debug/requests", "/debug/events", "/opsledger.v1.LedgerService/Claim"} {
		if code, _ := r.get(path); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func TestAProcessLeavesNoCore(t *testing.T) {
	if _, err := os.Stat("/proc/self/limits"); err != nil {
		t.Skip("needs /proc: ", err)
	}
	h := newHouse(t, stores["sqlite"](t))
	cmd := exec.CommandContext(call(t), os.Args[0], h.args...)
	cmd.Env = append(os.Environ(), asLedgerd+"=1")
	log := &journal{}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	log.waitFor(t, "serving")
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(limits)) {
		if strings.HasPrefix(line, "Max core file size") && strings.Join(strings.Fields(line)[4:6], " ") != "0 0" {
			t.Errorf("%s", line)
		}
	}
}

// sentBy is the certificate that a client with this material sends.
func sentBy(t *testing.T, m *authz.Material) tls.Certificate {
	t.Helper()
	sent, err := authz.ClientTLS(m, "").GetClientCertificate(&tls.CertificateRequestInfo{})
	if err != nil {
		t.Fatal(err)
	}
	return *sent
}
