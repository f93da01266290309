// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/recovery"
)

// What --recovery may be.
const (
	recoveryOn  = "on"
	recoveryOff = "off"
)

// recoverer is the recovery loop of this process, and retention beside it. Nil is none.
type recoverer struct {
	loop   *recovery.Loop
	sweep  *recovery.Sweeper
	owners *owners
	begin  context.Context // while it may take operations
	cancel context.CancelFunc
	ended  chan struct{}
}

func newRecoverer(p parts, l *ledger.Ledger) (*recoverer, error) {
	requests, err := p.requests()
	if err != nil {
		return nil, err
	}
	allowed, err := recovery.ParseAllowed(p.config.ProbeAllow)
	if err != nil {
		return nil, ruleError("probe-allow", err.Error())
	}
	asker := recovery.NewAsker(recovery.AskerOptions{Allowed: allowed, MaxBody: contract.MaxBody})
	services := &owners{material: p.material, allowed: allowed}
	loop, err := recovery.New(l, p.store, probes{p.contracts, asker, services}, p.ring, recovery.Options{
		Log: p.log, Meter: p.telemetry.meter(), Requests: requests,
	})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	sweep, err := recovery.NewSweeper(l, p.store, recovery.SweepOptions{Log: p.log, Meter: p.telemetry.meter(), Youngest: p.contracts.Youngest})
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	r := &recoverer{loop: loop, sweep: sweep, owners: services, ended: make(chan struct{})}
	r.begin, r.cancel = context.WithCancel(context.Background())
	return r, nil
}

// start runs both; the end of cut cuts off what the loop does.
func (r *recoverer) start(cut context.Context, group *sync.WaitGroup) {
	if r == nil {
		return
	}
	group.Go(func() {
		defer close(r.ended)
		var beside sync.WaitGroup
		defer beside.Wait()
		beside.Go(func() { r.sweep.Run(r.begin) })
		defer r.owners.close()
		r.loop.Run(r.begin, cut)
	})
}

// stop has it take nothing more. What it is asking comes to its end.
func (r *recoverer) stop() {
	if r != nil {
		r.cancel()
	}
}

// wait returns when it has ended.
func (r *recoverer) wait() {
	if r != nil {
		<-r.ended
	}
}

func (p program) recoverCommand() *cobra.Command {
	return p.configured(&cobra.Command{
		Use:   "recover",
		Short: "Find out unknown outcomes, and serve nothing: any number of instances beside those that serve, on one PostgreSQL",
		Long: "Find out what became of operations whose outcome is unknown: ask their targets as the contracts say, and serve nothing. Every ledgerd serve does the\n" +
			"same unless it has --recovery=off. SIGTERM takes nothing more, lets what is being asked come to its end, and exits; a second one exits at once.",
		Example: "  ledgerd recover --config /etc/ledgerd.yaml --store-file /run/secrets/ledger-dsn",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, s *settings) error {
		if err := c.validateRecover(); err != nil {
			return usageError{err}
		}
		return p.recover(cmd.Context(), c, s.secretFiles())
	}, "store", "store-connections", "store-tls", "store-durability", "failover", "migrations", "gc-memory", "contracts", "secrets", "fingerprint-write-spec",
		"probe-allow", "tls-cert", "tls-key", "tls-ca", "admin-addr", "reload-interval", "drain-timeout", "log-level", "log-format")
}

// recover reads like serve, without what only callers need.
func (p program) recover(ctx context.Context, c Config, secrets map[string]string) error {
	log := p.newLogger(c)
	defer p.paceCollector(ctx, c.Memory, containerMemory(os.DirFS("/")))()
	told, err := newTelemetry(ctx, p)
	if err != nil {
		return err
	}
	report := func(kind string, err error) { told.reloaded(log, kind, err) }
	declared, reloaders, err := openContracts(c.Contracts, report)
	if err != nil {
		return usageError{c.named(err)}
	}
	ring, err := openRing(c.Secrets, report)
	if err != nil {
		return usageError{c.named(err)}
	}
	secrets["secrets"] = c.Secrets
	if c.TLSKey != "" {
		secrets["tls-key"] = c.TLSKey
	}
	warnOfExposed(log, secrets)
	at, err := locate(c.Store)
	if err != nil {
		return err
	}
	with := parts{config: c, log: log, now: p.now, telemetry: told, contracts: declared, ring: ring.ring, reloaders: append(reloaders, ring)}
	if c.TLSCert != "" { // to be shown to the services of tools' owners
		material, err := authz.NewMaterialReloader(authz.Files{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA}, p.now, report)
		if err != nil {
			return usageError{c.named(err)}
		}
		with.material, with.reloaders = material, append(with.reloaders, material)
	}
	if with.store, err = prepareStore(ctx, at, c, log, told); err != nil {
		return err
	}
	if err := ring.join(ctx, with.store); err != nil {
		return errors.Join(err, with.store.Close())
	}
	return p.runParts(ctx, with, func(with parts, begun func()) error { return p.recoverParts(ctx, with, begun) })
}

// recoverParts runs the loop and the admin listener until it is told to stop.
func (p program) recoverParts(ctx context.Context, with parts, begun func()) error {
	r, err := newRecoverer(with, ledger.New(with.store, with.contracts).Watching(with.clock))
	if err != nil {
		return err
	}
	conns, err := newConnections("admin", adminShares, with.telemetry.meter())
	if err != nil {
		return err
	}
	if err := with.telemetry.watchSecrets(with.ring); err != nil {
		return err
	}
	var listener net.Listener
	if listener, err = listen(ctx, "admin-addr", with.config.AdminAddr, conns); err != nil {
		return err
	}
	ready := &readiness{now: with.now}
	admin := adminServer(ready, with.telemetry.registry, with.log)
	signals, stop := p.signals()
	defer stop()

	beside, end := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer group.Wait()
	defer end()
	for _, f := range with.reloaders {
		group.Go(func() { f.Run(beside, with.config.ReloadInterval) })
	}
	failed := make(chan error, 1)
	group.Go(func() { failed <- admin.Serve(listener) })
	defer admin.Close() // the last to go: until here it says that it is not ready
	begun()
	r.start(beside, &group)
	defer r.stop()
	ready.started.Store(true)
	at := addresses{Admin: listener.Addr().String()}
	with.log.Info("recovering", "admin", at.Admin, "version", thisRelease().Version)
	if p.serving != nil {
		p.serving(at)
	}
	for {
		select {
		case err := <-failed:
			return fmt.Errorf("recover: %w", err)
		case <-ctx.Done():
		case signal := <-signals:
			if signal == syscall.SIGHUP {
				for _, f := range with.reloaders {
					_, _ = f.Reload() // reported
				}
				continue
			}
		}
		break
	}
	ready.draining.Store(true)
	r.stop()
	timeout := time.NewTimer(with.config.DrainTimeout)
	defer timeout.Stop()
	for {
		select {
		case <-r.ended:
			return nil
		case signal := <-signals:
			if signal != syscall.SIGHUP {
				return errForced
			}
		case <-timeout.C:
			with.log.Warn("targets were still being asked when the drain timeout was over")
			return nil
		}
	}
}
