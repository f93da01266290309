// SPDX-License-Identifier: Apache-2.0

package main

// What the cases share: the program under test is built once; each store has one environment with one ledgerd process that all cases
// use, unless they ask for their own (fresh). Everything dies with this test binary, also when that is killed.
//
//	each(t, func(t *testing.T, e *env) {
//		w := e.node.dial(t, billing)
//		granted(t, w.claim(t, request("card.charge", unique(t), "k", `{"amount":1}`)))
//	})
//
// harness_node_test.go has the processes, harness_worker_test.go the callers, harness_rows_test.go what stands in the database.

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/test/pgtest"
)

// patience bounds every single wait of a test on a loaded machine. None is expected to take so long.
const patience = 30 * time.Second

// atOnce is how many subtests run at a time of those that say so: they mostly wait.
const atOnce = 12

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce)); err != nil {
		panic(err)
	}
	code := pgtest.Main(m)
	if err := suite.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// suite is what lives as long as the test binary.
var suite = &shared{environments: map[string]*env{}}

type shared struct {
	mu           sync.Mutex
	directory    string
	environments map[string]*env
	nodes        []*node
	count        atomic.Int64 // of nodes, stores and unique names
	ports        atomic.Int64
}

// dir returns the directory of everything that outlives one test.
func (s *shared) dir() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.directory != "" {
		return s.directory, nil
	}
	var err error
	s.directory, err = os.MkdirTemp("", "opsledger-cases-")
	return s.directory, err
}

func (s *shared) close() error {
	s.mu.Lock()
	nodes := s.nodes
	s.mu.Unlock()
	var all []error
	for _, n := range nodes {
		n.stop()
		all = append(all, n.races())
	}
	if s.directory != "" {
		all = append(all, os.RemoveAll(s.directory))
	}
	return errors.Join(all...)
}

// binaries by their build tags. They are built once, with the race detector if this test has it.
var (
	plainBinary     = sync.OnceValues(func() (string, error) { return build("") })
	failpointBinary = sync.OnceValues(func() (string, error) { return build("failpoints") })
	laterBinary     = sync.OnceValues(func() (string, error) { return build("laterspec") })
)

func build(tags string) (string, error) {
	dir, err := suite.dir()
	if err != nil {
		return "", err
	}
	if err := lookAtSources(); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "ledgerd"+tags)
	args := []string{"build", "-o", path, "-tags", tags}
	if raceBuild {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, "github.com/opsledger/opsledger/cmd/ledgerd")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build ledgerd: %w: %s", err, out)
	}
	return path, nil
}

// lookAtSources opens every folder of the module: go's test cache knows what a test opens, but not what a compiler reads that it
// starts, and would show the result of an older ledgerd.
func lookAtSources() error {
	const root = "../.."
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != root && (d.Name() == "bin" || strings.HasPrefix(d.Name(), ".")) {
			return fs.SkipDir
		}
		return err
	})
}

// The principals of the cases. billing and support are P1 and P2.
const (
	billing    = "spiffe://ledger.test/agent/billing"
	support    = "spiffe://ledger.test/agent/support"
	reconciler = "spiffe://ledger.test/recovery/reconciler"
	operator   = "spiffe://ledger.test/person/operator"
	operator2  = "spiffe://ledger.test/person/operator-2"
	mailer     = "spiffe://ledger.test/person/mailer"
	auditor    = "spiffe://ledger.test/person/auditor"
	// batchHost is a DNS name that the policy maps to the principal "batch".
	batchHost = "batch.ledger.test"
)

// policyText gives each agent a scope of its own, as the cases want it: the principal is a part of the key.
const policyText = `trust_domain: ledger.test
dns:
  - {name: ` + batchHost + `, principal: batch}
scopes:
  - {name: "{principal}", principals: ["spiffe://ledger.test/agent/*", batch], tools: ["*"], subject: allowed}
roles:
  - {role: reconciler, principals: [` + reconciler + `], tools: ["*"]}
  - {role: operator, principals: [` + operator + `, ` + operator2 + `], tools: ["*"]}
  - {role: operator, principals: [` + mailer + `], tools: ["mail.*"]}
  - {role: auditor, principals: [` + auditor + `], tools: ["*"]}
`

// contractsText declares the tools of the cases; mail.send has no contract, so it is unsafe and settled by people. file.upload's send
// window is shorter than its lease. Times of the keyed ones are short, so that tests can wait for what they bound.
const contractsText = `tools:
  ticket.get: {effect: read}
  ticket.create:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    request: {fields: {title: {category: title}, queue: {category: target}}}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: [title, target]}
  card.charge:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    request: {fields: {amount: {category: amount}, to: {category: recipient}, currency: {category: amount}}}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: [amount]}
  card.refund:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    request: {fields: {amount: {category: amount}}}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: [amount]}
  file.upload:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    send_within: 1s
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
  order.place:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    request: {fields: {p: {type: money}, at: {type: timestamp}}, ignore: [trace_id, sent_at, /order/sdk, /sdk/createdAt]}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
  note.keep:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    attributes: [order_id]
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
    replay: {payload_limit: 1KiB, schemas: [note/1, note/2], result_attributes: [etag, title]}
  account.topup:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    request: {fields: {p: {type: money, category: amount}}}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: [amount]}
  account.debit:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    request: {fields: {amount: {type: money, currency: currency, category: amount}, currency: {category: amount}}}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: [amount]}
  card.order:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    request: {fields: {amount: {type: money, currency: currency, category: amount}, to: {category: recipient}}}
    unique: {by: [amount, recipient], within: 10m, override: caller}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: [amount]}
  card.hold:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    max_unknown: 2
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
  file.delete:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 60s}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 60s, verify: []}
`

// authority is the cases' own CA: "root A".
var authority = sync.OnceValues(func() (*authz.CA, error) { return authz.NewCA("root A", time.Now(), 24*time.Hour) })

func rootA(t testing.TB) *authz.CA {
	t.Helper()
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// mint issues a client certificate; the times and the usage are set where they are not.
func mint(t testing.TB, ca *authz.CA, spec authz.LeafSpec) *authz.Leaf {
	t.Helper()
	if spec.NotAfter.IsZero() {
		spec.NotBefore, spec.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	if spec.Usage == nil {
		spec.Usage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	leaf, err := ca.Issue(spec)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// serverFiles are the files that every ledgerd of the suite is started with, by their flags.
var serverFiles = sync.OnceValues(writeServerFiles)

func writeServerFiles() (map[string]string, error) {
	dir, err := suite.dir()
	if err != nil {
		return nil, err
	}
	ca, err := authority()
	if err != nil {
		return nil, err
	}
	leaf, err := ca.Issue(authz.LeafSpec{
		CommonName: "ledger", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1).To4()},
		Usage:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, // it asks other services, too
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	})
	if err != nil {
		return nil, err
	}
	certificate, key, err := leaf.PEM()
	if err != nil {
		return nil, err
	}
	draw := func() string {
		secret := make([]byte, 32)
		_, _ = rand.Read(secret) // never fails
		return base64.StdEncoding.EncodeToString(secret)
	}
	ring := fmt.Sprintf("primary: k1\nsecrets:\n  - {id: k1, secret: %q}\nunique_secret: %q\n", draw(), draw())
	paths := map[string]string{}
	for flag, content := range map[string][]byte{
		"tls-cert": certificate, "tls-key": key, "tls-ca": ca.PEM(),
		"policy": []byte(policyText), "contracts": []byte(contractsText), "secrets": []byte(ring),
	} {
		paths[flag] = filepath.Join(dir, flag)
		if err := os.WriteFile(paths[flag], content, 0o600); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// env is one store and the first ledgerd on it.
type env struct {
	// store is "postgres" or "sqlite".
	store string
	// dsn is what ledgerd gets as --store; database is the database's name in PostgreSQL, or the file's path.
	dsn, database string
	// own is the PostgreSQL server of this environment alone; nil: that of the suite.
	own  *pgtest.Server
	node *node
}

// each runs a case over both stores, one after the other, each on the environment that the suite shares. A case must not run in
// parallel with others: some count all rows.
func each(t *testing.T, f func(t *testing.T, e *env)) {
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			e := sharedEnv(t, store)
			e.node.watch(t)
			f(t, e)
		})
	}
}

func sharedEnv(t *testing.T, store string) *env {
	t.Helper()
	suite.mu.Lock()
	e := suite.environments[store]
	suite.mu.Unlock()
	if e != nil && e.node.alive() {
		return e
	}
	e = newStore(t, store)
	e.node = launch(t, e, nodeOptions{})
	suite.mu.Lock()
	suite.environments[store] = e
	suite.mu.Unlock()
	return e
}

// fresh makes a store of its own with a ledgerd of its own, which ends with the test.
func fresh(t *testing.T, store string, o nodeOptions) *env {
	t.Helper()
	e := newStore(t, store)
	e.node = e.start(t, o)
	return e
}

// newStore makes an empty database, or names a file that is not there yet.
func newStore(t *testing.T, store string) *env {
	t.Helper()
	dir, err := suite.dir()
	if err != nil {
		t.Fatal(err)
	}
	n := suite.count.Add(1)
	if store == "sqlite" {
		path := filepath.Join(dir, fmt.Sprintf("store%d.db", n))
		return &env{store: store, dsn: "sqlite:" + path, database: path}
	}
	server := pgtest.Get(t)
	e := &env{store: store, database: fmt.Sprintf("cases_%d", n)}
	e.dsn = postgresURL(server.Addr(), e.database)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+e.database); err != nil {
		t.Fatal(err)
	}
	return e
}

// postgresURL is the URL of a database at host:port, that of the server or of a proxy before it.
func postgresURL(hostPort, database string) string {
	return "postgres://ledger@" + hostPort + "/" + database + "?sslmode=disable"
}

// unique returns a name that no other call of the suite returns: as a task, it keeps a test's operations apart from all others.
func unique(t testing.TB) string {
	name := strings.NewReplacer("/", ":", " ", "_").Replace(t.Name())
	return fmt.Sprintf("%.200s:%d", name, suite.count.Add(1))
}

// within is a context that ends with the test, or after patience.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// eventually asks until the answer is yes, every 10 ms and at most for patience; what says what did not come true.
func eventually(t testing.TB, what string, yes func() bool) {
	t.Helper()
	eventuallyAfter(t, 0, what, yes)
}

// eventuallyAfter is eventually for what need not come true before so long a time is over: patience begins then.
func eventuallyAfter(t testing.TB, bound time.Duration, what string, yes func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound+patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, bound+patience)
		case <-tick.C:
		}
	}
}
