// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/postgres"
)

// The unit of work: Claim of a new key, then Complete with a result of 200 bytes. Two calls, two durable commits, two events.

const (
	tool   = "bench.charge"
	schema = "bench.charge.result/1"
	// request is what a worker wants done.
	request = `{"amount":"12.50","currency":"EUR","recipient":"acct-0000-4711"}`
)

// contracts declares the tool as a target with idempotency keys and queries.
const contracts = `
tools:
  bench.charge:
    effect: keyed
    lease: {default: 30s, max: 60s, total: 90s}
    send_within: 20s
    request: {fields: {amount: {category: amount}, currency: {category: amount}, recipient: {category: recipient}}}
    recovery: {method: probe, probe: external, key_retention: 24h, effect_within: 2m, verify: [amount, recipient]}
    replay: {schemas: ["bench.charge.result/1"]}
`

// payload of the result, 200 bytes.
var payload = []byte(`{"id":"ch_0123456789","status":"succeeded","note":"` + strings.Repeat("n", 200-53) + `"}`)

// remoteUnit is one unit against a ledgerd.
func remoteUnit(ctx context.Context, client pb.LedgerServiceClient) error {
	claim := &pb.ClaimRequest{
		Key:     &pb.OperationKey{Tool: tool, Task: uuid.NewString(), Key: "charge"},
		ClaimId: uuid.NewString(), WorkerId: "worker-1", RequestJson: []byte(request), IntentTime: timestamppb.Now(),
	}
	claimed, err := client.Claim(ctx, claim)
	if err != nil {
		return fmt.Errorf("claim: %w", err)
	}
	if claimed.GetGranted() == nil {
		return fmt.Errorf("claim: not granted: %v", claimed.GetNextAction())
	}
	completed, err := client.Complete(ctx, &pb.CompleteRequest{
		OperationId: claimed.GetOperation().GetId(), ClaimId: claim.GetClaimId(), SentExactlyOnce: true,
		Outcome: &pb.CompleteRequest_Succeeded{Succeeded: &pb.Result{
			Resource: &pb.ResourceRef{Type: "charge", Id: "ch_0123456789"}, Schema: schema, Payload: payload,
		}},
	})
	if err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	if completed.GetOperation().GetState() != pb.State_STATE_COMPLETED {
		return fmt.Errorf("complete: left %v", completed.GetOperation().GetState())
	}
	return nil
}

// remoteUnits spreads callers over connections.
func remoteUnits(conns []*grpc.ClientConn) func(context.Context, int) error {
	clients := make([]pb.LedgerServiceClient, len(conns))
	for i, conn := range conns {
		clients[i] = pb.NewLedgerServiceClient(conn)
	}
	return func(ctx context.Context, caller int) error { return remoteUnit(ctx, clients[caller%len(clients)]) }
}

// digested is a request whose digests are made once: what is measured is the core and its store.
type digested struct{ fingerprint ledger.Fingerprint }

func (d digested) Fingerprint(*ledger.Fingerprint) (ledger.Fingerprint, error) {
	return d.fingerprint, nil
}

func (digested) SubjectDigest(ledger.Fingerprint) ([]byte, error) { return nil, nil }

func (digested) SubjectDigests() [][]byte { return nil }

func (digested) Slots() ([]ledger.UniqueSlot, error) { return nil, nil }

var agent = ledger.Actor{Kind: ledger.ActorWorker, Name: "spiffe://bench.test/agent/load"}

// localUnits are the same two commands on a store, without ledgerd.
func localUnits(store ledger.Store) (func(context.Context, int) error, error) {
	declared, err := contract.Parse("contracts", []byte(contracts))
	if err != nil {
		return nil, err
	}
	d, err := digestRequest(declared)
	if err != nil {
		return nil, err
	}
	l := ledger.New(store, declared)
	return func(ctx context.Context, _ int) error {
		claim, err := claimLocally(ctx, l, d)
		if err != nil {
			return err
		}
		return completeLocally(ctx, l, claim)
	}, nil
}

func digestRequest(declared ledger.Contracts) (digested, error) {
	c, _ := declared.Contract(tool)
	rules, err := fingerprint.RulesOf(c)
	if err != nil {
		return digested{}, err
	}
	canonical, err := fingerprint.Canonicalize([]byte(request), rules)
	if err != nil {
		return digested{}, err
	}
	secret, err := fingerprint.NewRandomSecret("k1")
	if err != nil {
		return digested{}, err
	}
	f := fingerprint.Digest(canonical, fingerprint.Relations{}, secret)
	return digested{ledger.Fingerprint{Spec: uint16(f.Spec), SecretID: f.SecretID, Digest: f.Digest, Categories: f.Categories}}, nil
}

func claimLocally(ctx context.Context, l *ledger.Ledger, d digested) (ledger.Claim, error) {
	claim := ledger.Claim{
		Key:     ledger.Key{Scope: "bench", Tool: tool, Task: ledger.Task(uuid.NewString()), Key: "charge"},
		ClaimID: ledger.ClaimID(uuid.NewString()), WorkerID: "worker-1", Actor: agent, ToolAllowed: true, IntentTime: time.Now(),
	}
	answer, err := l.Claim(ctx, claim, d)
	if err != nil {
		return claim, fmt.Errorf("claim: %w", err)
	}
	if answer.Outcome != ledger.OutcomeGranted {
		return claim, fmt.Errorf("claim: %v", answer.Outcome)
	}
	return claim, nil
}

func completeLocally(ctx context.Context, l *ledger.Ledger, claim ledger.Claim) error {
	complete := ledger.Complete{
		ClaimID: claim.ClaimID, Actor: agent, SentExactlyOnce: true,
		Succeeded: &ledger.Result{Resource: ledger.ResourceRef{Type: "charge", ID: "ch_0123456789"}, Schema: schema, Payload: payload},
	}
	answer, err := l.Do(ctx, claim.Key.Hash().OperationID(), string(claim.ClaimID),
		func(*ledger.Operation, ledger.Contract) (ledger.Command, error) { return complete, nil })
	if err != nil {
		return fmt.Errorf("complete: %w", err)
	}
	if answer.Operation.State != ledger.Completed {
		return fmt.Errorf("complete: left %v", answer.Operation.State)
	}
	return nil
}

// oneUnit does one unit on a store that has none, and returns what it has written into the row and its two events.
func oneUnit(ctx context.Context, conn *pgx.Conn, dsn string) (operation, event []column, err error) {
	declared, err := contract.Parse("contracts", []byte(contracts))
	if err != nil {
		return nil, nil, err
	}
	d, err := digestRequest(declared)
	if err != nil {
		return nil, nil, err
	}
	store, err := postgres.Open(ctx, dsn, postgres.Options{})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	l := ledger.New(store, declared)
	claim, err := claimLocally(ctx, l, d)
	if err != nil {
		return nil, nil, err
	}
	if operation, err = columnsOf(ctx, conn, "operations"); err != nil {
		return nil, nil, err
	}
	if event, err = columnsOf(ctx, conn, "events"); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(fill(ctx, conn, operation, false, "operations"), fill(ctx, conn, event, false, "events WHERE sequence = 1")); err != nil {
		return nil, nil, err
	}
	if err := completeLocally(ctx, l, claim); err != nil {
		return nil, nil, err
	}
	if err := errors.Join(fill(ctx, conn, operation, true, "operations"), fill(ctx, conn, event, true, "events WHERE sequence = 2")); err != nil {
		return nil, nil, err
	}
	return operation, event, noOtherTable(ctx, conn)
}

func columnsOf(ctx context.Context, conn *pgx.Conn, table string) ([]column, error) {
	rows, err := conn.Query(ctx, `SELECT column_name, udt_name FROM information_schema.columns
	WHERE table_schema = current_schema() AND table_name = $1 ORDER BY ordinal_position`, table)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c column, err error) {
		err = row.Scan(&c.Name, &c.Type)
		return c, err
	})
}

// fill reads the only row of a table.
func fill(ctx context.Context, conn *pgx.Conn, columns []column, done bool, from string) error {
	texts := make([]string, len(columns))
	values := make([]any, len(columns))
	for i := range columns {
		texts[i] = columns[i].Name + "::text"
		values[i] = &columns[i].Claim
		if done {
			values[i] = &columns[i].Done
		}
	}
	return conn.QueryRow(ctx, "SELECT "+strings.Join(texts, ", ")+" FROM "+from).Scan(values...)
}

// noOtherTable fails where the store has come to write a table that the script does not know of.
func noOtherTable(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT table_name::text FROM information_schema.tables
	WHERE table_schema = current_schema() AND table_name NOT IN ('operations', 'events', 'meta', 'contracts', 'fingerprint_secrets', 'timelines', 'goose_db_version')`)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, name := range names {
		var n int
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM "+name).Scan(&n); err != nil {
			return err
		}
		if n > 0 {
			return fmt.Errorf("a unit also writes the table %s: pgbench's script has to do so, too", name)
		}
	}
	return nil
}
