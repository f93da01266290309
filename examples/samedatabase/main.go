// SPDX-License-Identifier: Apache-2.0

// Command samedatabase places an order in a shop's own PostgreSQL, at most once per key, without any ledgerd: the ledger's Go packages
// run as a library, on the transaction that writes the order.
//
// The order, its result and COMPLETED are committed together or not at all. Whatever crashes, the same call may be made again: it places
// the order, or says which one was placed.
//
//	go run ./examples/samedatabase -dsn "host=/run/postgresql dbname=shop" -key basket-17 -item chair -cents 4900
//
// With -wait it stops in front of COMMIT until it reads a line: kill it there, and neither the order nor the ledger's record exists.
//
// It is for one team that owns the database: who may write these tables can grant anything, and nobody asks who calls. The shared
// ledger is ledgerd. It depends on pgx, and on ledger with its adapters for PostgreSQL and contracts. What is different on a caller's
// transaction stands at postgres.InTx.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/opsledger/opsledger/ledger/fingerprint"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "samedatabase:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	var dsn, secrets string
	var o order
	var wait bool
	flags := flag.NewFlagSet("samedatabase", flag.ContinueOnError)
	flags.StringVar(&dsn, "dsn", "", "the shop's database: a PostgreSQL URL or keyword string")
	flags.StringVar(&secrets, "secrets", "samedatabase-secrets.yaml", "file of the fingerprints' secrets; made if it is not there")
	flags.StringVar(&o.Key, "key", "", "name of the intent, the same whenever it is tried again")
	flags.StringVar(&o.Item, "item", "", "what is ordered")
	flags.Int64Var(&o.Cents, "cents", 0, "its price")
	flags.BoolVar(&wait, "wait", false, "wait for a line of input in front of COMMIT")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if dsn == "" || o.Key == "" {
		return errors.New("-dsn and -key are required")
	}
	o.Decided = time.Now() // a failover that loses the record loses the order, too: then it is decided anew
	ring, err := readSecrets(secrets)
	if err != nil {
		return err
	}
	s, err := open(ctx, dsn, ring)
	if err != nil {
		return err
	}
	defer s.close()
	if wait {
		s.beforeCommit = func() error {
			fmt.Fprintln(out, "in front of COMMIT")
			_, err := bufio.NewReader(in).ReadString('\n')
			return err
		}
	}
	r, err := s.place(ctx, o)
	if err != nil {
		return err
	}
	if r.Replayed {
		_, err = fmt.Fprintln(out, "was placed before: order", r.Order)
	} else {
		_, err = fmt.Fprintln(out, "placed: order", r.Order)
	}
	return err
}

// readSecrets reads the ring of secrets, which every process of the shop must have. A lost one can't be drawn again: then nothing can be
// said about earlier requests.
func readSecrets(file string) (*fingerprint.Ring, error) {
	data, err := os.ReadFile(file)
	if !errors.Is(err, os.ErrNotExist) {
		if err != nil {
			return nil, err
		}
		return fingerprint.ParseRing(file, data)
	}
	secret, err := fingerprint.NewRandomSecret("s1")
	if err != nil {
		return nil, err
	}
	ring, err := fingerprint.NewRing("s1", secret)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600) // never over another process's
	if err != nil {
		return nil, err
	}
	_, err = f.Write(ring.RevealYAML())
	return ring, errors.Join(err, f.Sync(), f.Close())
}
