// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/opsledger/opsledger/test/faultproxy"
	"github.com/opsledger/opsledger/test/pgtest"
	"github.com/opsledger/opsledger/test/target"
)

// cluster is a ledger of two ledgerd processes on a PostgreSQL that fails over. They reach it by an address that stays, and moves with the primary.
type cluster struct {
	recovering
	nodes []*node
	front *faultproxy.Proxy
	// standby follows until it takes over. own is always the primary.
	standby *pgtest.Server
}

// newCluster starts one with a standby, for which commits wait or not. In the contracts, URL stands for the target's.
func newCluster(t *testing.T, contracts string, synchronous bool, args ...string) *cluster {
	t.Helper()
	return newClusterBy(t, pgtest.Options{Durable: true}, contracts, synchronous, args...)
}

// newClusterBy is newCluster with options of both servers.
func newClusterBy(t *testing.T, options pgtest.Options, contracts string, synchronous bool, args ...string) *cluster {
	t.Helper()
	primary := pgtest.Own(t, options)
	standby := primary.Standby(t)
	if synchronous {
		if err := primary.Synchronous(t.Context(), standby); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), primary.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	c := &cluster{recovering: recovering{env: &env{store: "postgres", own: primary, database: "cases"}, ft: startTarget(t, target.Payments)}, standby: standby}
	if _, err := conn.Exec(t.Context(), "CREATE DATABASE "+c.database); err != nil { // it ends with the servers
		t.Fatal(err)
	}
	if c.front, err = faultproxy.Start("tcp", primary.Addr(), faultproxy.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.front.Close() })
	c.dsn = postgresURL(c.front.Addr().String(), c.database)
	path := filepath.Join(t.TempDir(), "contracts.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(contracts, "URL", c.ft.URL())), 0o600); err != nil {
		t.Fatal(err)
	}
	c.args = append([]string{"--recovery", "on", "--contracts", path, "--probe-allow", "127.0.0.1"}, args...)
	for range 2 {
		c.nodes = append(c.nodes, c.start(t, nodeOptions{args: c.args}))
	}
	c.node = c.nodes[0]
	return c
}

// byList is the store's URL for who knows both servers, and takes the one that is the primary.
func (c *cluster) byList() string {
	return postgresURL(c.standby.Addr()+","+c.own.Addr(), c.database) + "&target_session_attrs=read-write"
}

// dials connects workers of one principal, in turn to one process and the other.
func (c *cluster) dials(t *testing.T, principal string, number int) []*worker {
	t.Helper()
	var workers []*worker
	for i := range number {
		workers = append(workers, c.nodes[i%len(c.nodes)].dial(t, principal))
	}
	return workers
}

// failOver kills the primary, promotes the standby, and moves the address to it.
func (c *cluster) failOver(t *testing.T) {
	t.Helper()
	if err := c.own.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.moveTo(c.standby)
}

// moveTo makes another server the primary, as the processes see it.
func (c *cluster) moveTo(s *pgtest.Server) {
	c.own = s
	c.front.Redirect("tcp", s.Addr())
	c.front.CutNow(faultproxy.RST)
}

// backends counts the server's connections of the ledgerd processes of which this is true.
func (c *cluster) backends(t *testing.T, condition string) string {
	t.Helper()
	return c.rows(t, fmt.Sprintf("SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'ledgerd' AND (%s)", condition))[0]["n"]
}
