// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/postgres"
)

//go:embed contracts.yaml
var contractsFile []byte

// The ledger's tables have a schema of their own, which the shop's connections find behind theirs.
const (
	createSchema = `CREATE SCHEMA IF NOT EXISTS opsledger`
	createOrders = `CREATE TABLE IF NOT EXISTS orders (
	id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	operation_id uuid   NOT NULL UNIQUE,
	item         text   NOT NULL,
	cents        bigint NOT NULL CHECK (cents > 0)
)`
	insertOrder = `INSERT INTO orders (operation_id, item, cents) VALUES ($1, $2, $3) RETURNING id::text`
)

// order is what somebody wants, under a key of theirs.
type order struct {
	Key     string
	Item    string
	Cents   int64
	Decided time.Time
}

// receipt says which order there is, and whether it was placed by an earlier call.
type receipt struct {
	Order    string
	Replayed bool
}

// shop is the team's service.
type shop struct {
	pool      *pgxpool.Pool
	contracts ledger.Contracts
	ring      *fingerprint.Ring
	// store keeps what orders.place has ever declared: an order is judged by what was declared when its key was first claimed.
	store    *postgres.Store
	versions fingerprint.Versions
	// beforeCommit, if set, runs when all is written.
	beforeCommit func() error
}

// open makes the tables, the ledger's by its own migrations, and connects.
func open(ctx context.Context, dsn string, ring *fingerprint.Ring) (*shop, error) {
	declared, err := contract.Parse("contracts.yaml", contractsFile)
	if err != nil {
		return nil, err
	}
	return openWith(ctx, dsn, ring, declared)
}

func openWith(ctx context.Context, dsn string, ring *fingerprint.Ring, declared *contract.Set) (*shop, error) {
	pool, err := pgxpool.New(ctx, onPath(dsn, "public,opsledger"))
	if err != nil {
		return nil, err
	}
	store, err := postgres.Open(ctx, onPath(dsn, "opsledger"), postgres.Options{MaxConns: 1})
	if err != nil {
		pool.Close()
		return nil, err
	}
	s := &shop{pool: pool, contracts: declared, ring: ring, store: store}
	s.versions.Fetch = s.declaredBefore
	if err = s.migrate(ctx); err == nil {
		err = store.SaveContracts(ctx, declared.Versions()) // before anything is claimed under them
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *shop) close() {
	_ = s.store.Close() // it never fails
	s.pool.Close()
}

// declaredBefore finds an earlier version of the contract, or one of another release of the shop.
func (s *shop) declaredBefore(ctx context.Context, _ ledger.Tool, version string) (fingerprint.Rules, error) {
	document, err := s.store.SavedContract(ctx, version)
	if err != nil {
		return fingerprint.Rules{}, err
	}
	c, err := contract.Decode(document)
	if err != nil { // it is not there, or of a later release of the ledger
		return fingerprint.Rules{}, ledger.ErrRecordTooNew
	}
	return fingerprint.RulesOf(c.Contract)
}

func (s *shop) migrate(ctx context.Context) error {
	for _, sql := range []string{createSchema, createOrders} {
		if _, err := s.pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return s.store.Migrate(ctx)
}

// onPath adds a search_path to a DSN of either form.
func onPath(dsn, path string) string {
	if u, err := url.Parse(dsn); err == nil && strings.HasPrefix(u.Scheme, "postgres") {
		q := u.Query()
		q.Set("search_path", path)
		u.RawQuery = q.Encode()
		return u.String()
	}
	return dsn + " search_path=" + path
}

// attempts bounds how often a transaction is run that others were in the way of.
const attempts = 5

// place places an order, once per key. After an error the same call may be made again: also after one that hides what became of COMMIT.
func (s *shop) place(ctx context.Context, o order) (receipt, error) {
	var r receipt
	var err error
	for range attempts {
		err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
			if r, err = s.placeIn(ctx, tx, o); err != nil || s.beforeCommit == nil {
				return err
			}
			return s.beforeCommit()
		})
		if !wasInTheWay(err) {
			break
		}
	}
	if err != nil {
		return receipt{}, err
	}
	return r, nil
}

// wasInTheWay reports whether all of a transaction is to be run again: by the ledger's word, or by the database's, of the shop's own
// statements and of COMMIT.
func wasInTheWay(err error) bool {
	var pg *pgconn.PgError
	return errors.Is(err, postgres.ErrRetryTransaction) || errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// placeIn claims, writes the order and completes, all on one transaction. Nobody sees any of it before COMMIT, so it does nothing that
// a rollback can't take back: no call to another system.
func (s *shop) placeIn(ctx context.Context, tx pgx.Tx, o order) (receipt, error) {
	// Of this transaction alone: a rollback takes the grant back, too.
	claimID := ledger.ClaimID(uuid.NewString())
	l := ledger.New(postgres.InTx(tx), s.contracts)
	answer, err := s.claim(ctx, l, claimID, o)
	if err != nil {
		return receipt{}, err
	}
	switch answer.Outcome {
	case ledger.OutcomeGranted:
		return s.complete(ctx, tx, answer.Operation.ID, claimID, o)
	case ledger.OutcomeCompleted:
		return receipt{Order: answer.Operation.Result.Resource.ID, Replayed: true}, nil
	default: // a person's doing, or that of another form: nothing that is committed here leaves these
		return receipt{}, fmt.Errorf("the order is not placed: %s", answer.Outcome)
	}
}

// shopkeeper is who acts. There is no certificate to read it from: whoever can write the tables is believed.
var shopkeeper = ledger.Actor{Kind: ledger.ActorWorker, Name: "shop"}

func (s *shop) claim(ctx context.Context, l *ledger.Ledger, claimID ledger.ClaimID, o order) (ledger.Answer, error) {
	claim := ledger.Claim{
		Key: o.key(), ClaimID: claimID, WorkerID: "shop", Actor: shopkeeper, ToolAllowed: true, IntentTime: o.Decided,
	}
	// What the order depends on: not when it was decided, which is another at each try. The ledger keeps keyed digests of it only.
	text, err := json.Marshal(map[string]any{"item": o.Item, "cents": o.Cents})
	if err != nil {
		return ledger.Answer{}, err
	}
	contract, _ := l.Contract(claim.Key.Tool)
	request, err := fingerprint.Options{Versions: &s.versions}.NewRequest(s.ring, claim, contract, text)
	if err != nil {
		return ledger.Answer{}, err
	}
	return l.Claim(ctx, claim, request)
}

// complete writes the order and reports it, on one transaction. The claim may be of that transaction, or have been committed before.
func (s *shop) complete(ctx context.Context, tx pgx.Tx, id ledger.OperationID, claimID ledger.ClaimID, o order) (receipt, error) {
	var r receipt
	if err := tx.QueryRow(ctx, insertOrder, id.String(), o.Item, o.Cents).Scan(&r.Order); err != nil {
		return receipt{}, err
	}
	l := ledger.New(postgres.InTx(tx), s.contracts)
	answer, err := l.Do(ctx, id, string(claimID), func(*ledger.Operation, ledger.Contract) (ledger.Command, error) {
		return ledger.Complete{
			ClaimID: claimID, Actor: shopkeeper,
			Succeeded: &ledger.Result{Resource: ledger.ResourceRef{Type: "order", ID: r.Order}},
		}, nil
	})
	switch {
	case err != nil:
		return receipt{}, err
	case answer.Disposition != ledger.Applied: // the order must not be there either
		return receipt{}, errors.New("the ledger did not apply the report")
	default:
		return r, nil
	}
}

// key is where the order is in the ledger's names.
func (o order) key() ledger.Key {
	return ledger.Key{Scope: "shop", Tool: "orders.place", Task: "orders", Key: o.Key}
}
