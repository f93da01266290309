// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/pgtest"
)

const (
	agentA   = "spiffe://ledger.test/agent/a"
	stranger = "spiffe://ledger.test/agent/x"
	person   = "spiffe://ledger.test/person/o"
)

// stores are where each test of a server runs.
var stores = map[string]func(t *testing.T) string{
	"sqlite":   func(t *testing.T) string { return sqliteScheme + filepath.Join(t.TempDir(), "ledger.db") },
	"postgres": func(t *testing.T) string { s := pgtest.Get(t); return s.DSN(s.Database(t)) },
}

// overStores starts a server on each store.
func overStores(t *testing.T, test func(t *testing.T, h *house, r *running), more ...string) {
	for name, make := range stores {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, make(t))
			test(t, h, start(t, nil, append(append(h.args, "--migrations", "apply"), more...)...))
		})
	}
}

func TestAServerGrantsClaimsAndShowsHowItIs(t *testing.T) {
	overStores(t, func(t *testing.T, h *house, r *running) {
		client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
		first, err := client.Claim(call(t), claim("canary-4711"))
		if err != nil || first.GetGranted() == nil {
			t.Fatalf("%v, %v", first, err)
		}
		second, err := client.Claim(call(t), claim("canary-4711"))
		if err != nil || second.GetInProgress() == nil {
			t.Errorf("a second claim: %v, %v", second, err)
		}
		if code, body := r.get("/livez"); code != 200 || body != "alive\n" {
			t.Errorf("livez: %d %s", code, body)
		}
		if code, body := r.get("/readyz"); code != 200 || body != "ready\n" {
			t.Errorf("readyz: %d %s", code, body)
		}
		if code, body := r.get("/readyz?verbose"); code != 200 || !strings.Contains(body, "[+] started") {
			t.Errorf("readyz?verbose: %d %s", code, body)
		}
		code, metrics := r.get("/metrics")
		for _, want := range []string{
			"rpc_server_call_duration_seconds_count", "ledger_claims_total", `ledger_tls_certificate_expiry_seconds{ledger_tls_certificate_kind="server"}`,
			`ledger_tls_certificate_expiry_seconds{ledger_tls_certificate_kind="authority"}`, `ledger_connections_open{ledger_connection_listener="grpc"} 1`,
			"ledger_build_info", "go_goroutines",
		} {
			if code != 200 || !strings.Contains(metrics, want) {
				t.Errorf("metrics (%d) lack %s", code, want)
			}
		}
		log, _ := r.log.read()
		for _, never := range []string{"canary-4711", agentA, "otel_scope"} {
			if strings.Contains(metrics, never) || strings.Contains(log, "canary-4711") {
				t.Errorf("metrics or log show %q", never)
			}
		}
		if code, _ := r.get("/debug/pprof/"); code != 404 {
			t.Errorf("an unknown path of the admin listener: %d", code)
		}
		if out, err := output(t, nil, "healthcheck", "--admin-addr", r.at.Admin); err != nil || out != "ready\n" {
			t.Errorf("healthcheck: %q, %v", out, err)
		}
	}, "--log-level", "debug")
}

func TestHealthIsAnsweredForTheServerAndTheLedger(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	client := grpc_health_v1.NewHealthClient(dial(t, r.at.GRPC, h.as(t, stranger)))
	for service, want := range map[string]codes.Code{"": codes.OK, "opsledger.v1.LedgerService": codes.OK, "other": codes.NotFound} {
		answer, err := client.Check(call(t), &grpc_health_v1.HealthCheckRequest{Service: service})
		if status.Code(err) != want || err == nil && answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("%q: %v, %v", service, answer, err)
		}
	}
}

// services asks for the names of the services by reflection.
func services(t *testing.T, conn *grpc.ClientConn) ([]string, error) {
	t.Helper()
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(call(t))
	if err != nil {
		return nil, err
	}
	// A refused stream may already be gone; Recv tells why.
	_ = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	answer, err := stream.Recv()
	var names []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names, err
}

func TestReflectionIsForOperators(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	if names, err := services(t, dial(t, r.at.GRPC, h.as(t, person))); err != nil || !strings.Contains(fmt.Sprint(names), "opsledger.v1.LedgerService") {
		t.Errorf("an operator: %v, %v", names, err)
	}
	for _, who := range []string{agentA, stranger} {
		if names, err := services(t, dial(t, r.at.GRPC, h.as(t, who))); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, %v", who, names, err)
		}
	}
	off := start(t, nil, append(h.args, "--reflection", "off")...)
	if _, err := services(t, dial(t, off.at.GRPC, h.as(t, person))); status.Code(err) != codes.Unimplemented {
		t.Errorf("off: %v", err)
	}
}

func TestNobodyIsServedWithoutACertificateOfTheAuthority(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	other := newHouse(t, "")
	foreign := other.as(t, agentA)
	mixed := authz.ClientTLS(h.as(t, agentA), "")
	mixed.GetClientCertificate = authz.ClientTLS(foreign, "").GetClientCertificate
	none := authz.ClientTLS(h.as(t, agentA), "")
	none.GetClientCertificate = nil
	for name, config := range map[string]*tls.Config{"another authority": mixed, "no certificate": none} {
		conn, err := grpc.NewClient(r.at.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = pb.NewLedgerServiceClient(conn).Claim(call(t), claim("k"))
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close()
	}
	if _, err := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, stranger))).Claim(call(t), claim("k")); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a principal without a scope: %v", err)
	}
}

func TestADrainAnswersThoseWhoWaitAndEndsCleanly(t *testing.T) {
	overStores(t, func(t *testing.T, h *house, r *running) {
		conn := dial(t, r.at.GRPC, h.as(t, agentA))
		client := pb.NewLedgerServiceClient(conn)
		if _, err := client.Claim(call(t), claim("k")); err != nil {
			t.Fatal(err)
		}
		watch, err := grpc_health_v1.NewHealthClient(conn).Watch(call(t), &grpc_health_v1.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if first, err := watch.Recv(); err != nil || first.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Fatalf("%v, %v", first, err)
		}
		// A stream that has nothing more to ask holds nobody up either.
		if _, err := services(t, dial(t, r.at.GRPC, h.as(t, person))); err != nil {
			t.Fatal(err)
		}
		type answer struct {
			response *pb.ClaimResponse
			err      error
		}
		answered := make(chan answer, 1)
		go func() {
			response, err := client.Claim(call(t), waiting(claim("k"), time.Minute))
			answered <- answer{response, err}
		}()
		began := time.Now()
		r.signals <- syscall.SIGTERM
		// The watcher is told before its stream ends, and while the admin listener says so, too.
		if second, err := watch.Recv(); err != nil || second.GetStatus() != grpc_health_v1.HealthCheckResponse_NOT_SERVING {
			t.Errorf("the watcher got %v, %v", second, err)
		}
		if code, body := r.get("/readyz?verbose"); code != 503 || !strings.Contains(body, "[-] not-draining") {
			t.Errorf("readyz: %d %s", code, body)
		}
		if _, err := output(t, nil, "healthcheck", "--admin-addr", r.at.Admin); exitCode(err) != 1 {
			t.Errorf("healthcheck of a draining server: %v", err)
		}
		if out, err := output(t, nil, "healthcheck", "--live", "--admin-addr", r.at.Admin); err != nil || out != "alive\n" {
			t.Errorf("healthcheck --live of a draining server: %q, %v", out, err)
		}
		// During the delay it still serves.
		if response, err := client.Claim(call(t), claim("new")); err != nil || response.GetGranted() == nil {
			t.Errorf("a claim during the delay: %v, %v", response, err)
		}
		got := <-answered
		if got.err != nil || got.response.GetInProgress() == nil {
			t.Errorf("who waited got %v, %v", got.response, got.err)
		}
		if err := r.wait(); err != nil {
			t.Errorf("ended with %v", err)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("an open stream or a waiting caller held it up for %s", took)
		}
		if _, err := output(t, nil, "healthcheck", "--admin-addr", r.at.Admin); exitCode(err) != 1 {
			t.Errorf("healthcheck of nobody: %v", err)
		}
		r.log.waitFor(t, `"msg":"stopped"`)
	}, "--drain-delay", "2s", "--drain-timeout", "25s")
}

func TestASecondSignalEndsItAtOnce(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, append(h.args, "--drain-delay", "5m")...)
	r.signals <- syscall.SIGINT
	r.log.waitFor(t, "draining")
	r.signals <- syscall.SIGHUP // is no request to stop
	r.signals <- syscall.SIGTERM
	if err := r.wait(); !errors.Is(err, errForced) || exitCode(err) != 1 {
		t.Errorf("ended with %v", err)
	}
}

func TestTracesGoWhereTheStandardVariablesSay(t *testing.T) {
	for name, c := range map[string]struct {
		env  []string
		want bool
	}{
		"nothing":          {nil, false},
		"endpoint":         {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317"}, true},
		"traces' endpoint": {[]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://c:4317"}, true},
		"exporter":         {[]string{"OTEL_TRACES_EXPORTER=otlp"}, true},
		"no exporter":      {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_TRACES_EXPORTER=none"}, false},
		"disabled":         {[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_SDK_DISABLED=true"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (program{env: c.env}).tracing(); got != c.want {
				t.Errorf("traces: %v, want %v", got, c.want)
			}
		})
	}
}

func TestSIGHUPReloads(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
	if _, err := client.Claim(call(t), claim("k1")); err != nil {
		t.Fatal(err)
	}
	h.write(t, "policy.yaml", fmt.Sprintf(testPolicy, "payments.charge"))
	h.write(t, "contracts.yaml", "tools: {tickets.create: {effect: keyed, lease: {default: 7s}}}")
	r.signals <- syscall.SIGHUP
	r.log.waitFor(t, `"kind":"policy"`)
	if _, err := client.Claim(call(t), claim("k2")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("after the tool was withdrawn: %v", err)
	}
	h.write(t, "policy.yaml", fmt.Sprintf(testPolicy, "1"))
	h.write(t, "contracts.yaml", "tools: {tickets.create: {effect: 4711}}")
	r.signals <- syscall.SIGHUP
	r.log.waitFor(t, `"kind":"policy","error":`)
	if _, err := client.Claim(call(t), claim("k3")); status.Code(err) != codes.PermissionDenied {
		t.Errorf("after a broken policy: %v", err)
	}
	h.write(t, "policy.yaml", fmt.Sprintf(testPolicy, "'*'")+"# again\n")
	r.signals <- syscall.SIGHUP
	r.log.waitForAll(t, `"kind":"policy"}`, 2)
	tool, err := client.GetTool(call(t), &pb.GetToolRequest{Tool: "tickets.create"})
	if err != nil {
		t.Fatal(err)
	}
	if tool.GetDefaultLease().AsDuration() != 7*time.Second || tool.GetEffect() != pb.Effect_EFFECT_KEYED {
		t.Errorf("the good contracts are not in force: %v", tool)
	}
}

func TestPostgreSQLIsMigratedByHandUnlessToldOtherwise(t *testing.T) {
	h := newHouse(t, stores["postgres"](t)+" pool_max_conns=3") // what is the pool's is not the server's
	_, err := output(t, nil, h.args...)
	if exitCode(err) != 1 || !strings.Contains(err.Error(), "ledgerd migrate") {
		t.Fatalf("without a schema: exit code %d, %v", exitCode(err), err)
	}
	out, err := output(t, nil, "migrate", "status", "--store-file", h.path("store"))
	if exitCode(err) != 1 || !strings.Contains(out, "schema version 0,") {
		t.Errorf("status: exit code %d, %v\n%s", exitCode(err), err, out)
	}
	for range 2 {
		if out, err := output(t, nil, "migrate", "up", "--store-file", h.path("store")); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if out, err := output(t, nil, "migrate", "status", "--store-file", h.path("store")); err != nil {
		t.Errorf("status: %v\n%s", err, out)
	}
	r := start(t, nil, h.args...)
	if code, _ := r.get("/readyz"); code != 200 {
		t.Errorf("readyz: %d", code)
	}
}
