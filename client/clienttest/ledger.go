// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/opsledger/opsledger/client"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/rpc"
)

// Options of a ledger. The zero value is usable: tools without a contract are UNSAFE and settled by people.
type Options struct {
	// Contracts that are declared; Contract makes one with usual terms.
	Contracts []ledger.Contract
	// Client is how the clients of this ledger behave.
	Client client.Options
	// Arrived, if set, is called with each call that arrives, Decided with each that was decided, before it is answered. Both may block.
	Arrived, Decided func(Method)
	// Listen, if set, is a TCP address ("127.0.0.1:0") at which the ledger also serves, without TLS: for tests with processes. See Addr.
	Listen string
}

// Contract is a contract with usual terms: the target can be queried, sees a request within a minute and remembers keys for a day. Fields
// can be changed before it is declared: without Schemas no value is kept, without Attributes no fact.
func Contract(tool string, effect ledger.Effect) ledger.Contract {
	c := ledger.DefaultContract(ledger.Tool(tool))
	c.Version, c.Effect, c.Method = "clienttest", effect, ledger.MethodProbe
	c.EffectWithin, c.KeyRetention, c.VerifyStated = time.Minute, 24*time.Hour, true
	return c
}

// Ledger is a ledger in memory with one caller, who may everything. It is safe for concurrent use.
type Ledger struct {
	store     *store
	contracts contracts
	ledger    *ledger.Ledger
	server    *grpc.Server
	service   opsledgerv1.LedgerServiceServer
	listener  *bufconn.Listener
	tcp       net.Listener
	served    sync.WaitGroup
	conn      *grpc.ClientConn
	options   Options

	mu     sync.Mutex
	down   bool
	faults map[Method][]Fault
	calls  map[Method]int
}

// New starts a ledger that ends with the test.
func New(t testing.TB, o Options) *Ledger {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// Open starts a ledger for programs that are no test. Close ends it.
func Open(o Options) (*Ledger, error) {
	l := &Ledger{store: newRows().open(nil), options: o, faults: map[Method][]Fault{}, calls: map[Method]int{}}
	for _, c := range o.Contracts {
		l.Declare(c)
	}
	l.ledger = ledger.New(l.store, &l.contracts)
	key := make([]byte, fingerprint.MinSecretSize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("open a ledger for tests: %w", err)
	}
	secret, err := fingerprint.NewSecret("clienttest", key)
	if err != nil {
		return nil, fmt.Errorf("open a ledger for tests: %w", err)
	}
	ring, err := fingerprint.NewRing("clienttest", secret)
	if err != nil {
		return nil, fmt.Errorf("open a ledger for tests: %w", err)
	}
	if _, err = rand.Read(key); err == nil {
		err = ring.SetUnique(key)
	}
	if err != nil {
		return nil, fmt.Errorf("open a ledger for tests: %w", err)
	}
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	identify := func(context.Context) (ledger.Principal, error) { return caller, nil }
	if l.service, err = rpc.New(l.ledger, policy{}, ring, identify, rpc.Options{Log: log}); err != nil {
		return nil, fmt.Errorf("open a ledger for tests: %w", err)
	}
	l.server = grpc.NewServer(append(rpc.Interceptors(open{}, rpc.InterceptorOptions{Log: log}), grpc.ChainUnaryInterceptor(l.fail))...)
	opsledgerv1.RegisterLedgerServiceServer(l.server, l.service)
	if o.Listen != "" {
		if l.tcp, err = net.Listen("tcp", o.Listen); err != nil {
			return nil, fmt.Errorf("open a ledger for tests: listen: %w", err)
		}
		l.served.Go(func() { _ = l.server.Serve(l.tcp) }) // ends with Close
	}
	l.listener = bufconn.Listen(1 << 20)
	l.served.Go(func() { _ = l.server.Serve(l.listener) }) // ends with Close
	l.conn, err = grpc.NewClient("passthrough:///clienttest",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.listener.DialContext(ctx) }),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("open a ledger for tests: %w", err)
	}
	return l, nil
}

// Client is a view of the ledger as one process has it, with nothing remembered. All of them are the same caller.
func (l *Ledger) Client() *client.Ledger { return client.New(l.conn, l.options.Client) }

// Addr is the TCP address, where there is one.
func (l *Ledger) Addr() string {
	if l.tcp == nil {
		return ""
	}
	return l.tcp.Addr().String()
}

// Service is the ledger's API itself, for what package client does not offer.
func (l *Ledger) Service() opsledgerv1.LedgerServiceClient {
	return opsledgerv1.NewLedgerServiceClient(l.conn)
}

// Declare puts a contract in force, as if its owner had changed it.
func (l *Ledger) Declare(c ledger.Contract) { l.contracts.declared.Store(c.Tool, c) }

// Advance moves the ledger's clock: leases end, pauses and settle times pass.
func (l *Ledger) Advance(d time.Duration) { l.store.advance(d) }

// Evidence is what the target says about an unknown operation, as the recovery loop would bring it: it takes the operation for a check and
// submits the finding. Absence counts only once the operation's settle time has passed: see Advance.
func (l *Ledger) Evidence(ctx context.Context, operationID string, evidence *opsledgerv1.Evidence) (*opsledgerv1.ReconcileResponse, error) {
	check, err := l.Service().BeginCheck(ctx, &opsledgerv1.BeginCheckRequest{OperationId: operationID, CommandId: uuid.NewString()})
	if err != nil {
		return nil, err
	}
	return l.Service().Reconcile(ctx, &opsledgerv1.ReconcileRequest{
		Selector:  &opsledgerv1.ReconcileRequest_OperationId{OperationId: operationID},
		CommandId: uuid.NewString(), CheckNumber: check.GetCheckNumber(), Evidence: evidence,
	})
}

// History is what happened to an operation, in order.
func (l *Ledger) History(ctx context.Context, operationID string) ([]ledger.Event, error) {
	id, err := ledger.ParseOperationID(operationID)
	if err != nil {
		return nil, fmt.Errorf("operation id: %w", err)
	}
	return l.ledger.Events(ctx, id)
}

// Close ends the ledger.
func (l *Ledger) Close() {
	l.ledger.Drain()
	if l.conn != nil {
		_ = l.conn.Close()
	}
	l.server.Stop()
	l.served.Wait()
}

const caller ledger.Principal = "clienttest"

// policy lets the one caller do everything, for any subject.
type policy struct{}

func (policy) Scope(p ledger.Principal) (ledger.Scope, ledger.SubjectRule, bool) {
	return ledger.Scope(caller), ledger.SubjectAllowed, p == caller
}

func (policy) ToolAllowed(ledger.Principal, ledger.Tool) bool { return true }

func (policy) HasRole(_ ledger.Principal, role ledger.Role, _ ledger.Tool) bool {
	return role == ledger.RoleReconciler
}

func (policy) RoleTools(_ ledger.Principal, role ledger.Role) ledger.ToolPatterns {
	return ledger.ToolPatterns{Every: role == ledger.RoleReconciler}
}

func (policy) HasAnyRole(_ ledger.Principal, role ledger.Role) bool {
	return role == ledger.RoleReconciler
}

// contracts are those in force now.
type contracts struct{ declared sync.Map }

func (c *contracts) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	if contract, ok := c.declared.Load(tool); ok {
		return contract.(ledger.Contract), true
	}
	return ledger.DefaultContract(tool), false
}

// open is a gate without certificates.
type open struct{}

func (open) Unary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(ctx, req)
}

func (open) Stream(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
	return errors.New("the ledger has no streams")
}
