// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

func (p program) serveCommand() *cobra.Command {
	return p.configured(&cobra.Command{
		Use:   "serve",
		Short: "Serve the ledger: any number of instances on one PostgreSQL, or one on a SQLite file",
		Long: "Serve the ledger. Every setting is a flag, an environment variable or a key of the --config file, in this order.\n" +
			"SIGTERM drains and exits; a second one exits at once; SIGHUP reloads policy, contracts, secrets and certificates.",
		Example: "  ledgerd serve --config /etc/ledgerd.yaml --store-file /run/secrets/ledger-dsn",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, s *settings) error {
		if err := c.validateServe(); err != nil {
			return usageError{err}
		}
		return p.serve(cmd.Context(), c, s.secretFiles())
	}, allBut("state-dir", "demo-target")...)
}

// allBut lists every setting without some.
func allBut(names ...string) []string {
	var out []string
	for _, x := range newSettings(&Config{}).all {
		if !slices.Contains(names, x.name) {
			out = append(out, x.name)
		}
	}
	return out
}

// serve reads top to bottom as a server comes to be: files, store, server; and is undone in the other order. secrets are files that
// settings came from.
func (p program) serve(ctx context.Context, c Config, secrets map[string]string) error {
	log := p.newLogger(c)
	defer p.paceCollector(ctx, c.Memory, containerMemory(os.DirFS("/")))()
	told, err := newTelemetry(ctx, p)
	if err != nil {
		return err
	}
	report := func(kind string, err error) { told.reloaded(log, kind, err) }

	material, err := authz.NewMaterialReloader(authz.Files{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA}, p.now, report)
	if err != nil {
		return usageError{c.named(err)}
	}
	policy, err := authz.NewPolicyReloader(c.Policy, report)
	if err != nil {
		return usageError{c.named(err)}
	}
	declared, reloaders, err := openContracts(c.Contracts, report)
	if err != nil {
		return usageError{c.named(err)}
	}
	ring, err := openRing(c.Secrets, report)
	if err != nil {
		return usageError{c.named(err)}
	}
	secrets["tls-key"], secrets["secrets"] = c.TLSKey, c.Secrets
	warnOfExposed(log, secrets)
	at, err := locate(c.Store)
	if err != nil {
		return err
	}
	service, hangUp, err := newReplayService(c, material, p.now, told, log)
	if err != nil {
		return usageError{err}
	}
	defer hangUp()
	store, err := prepareStore(ctx, at, c, log, told)
	if err != nil {
		return err
	}
	if err := ring.join(ctx, store); err != nil {
		return errors.Join(err, store.Close())
	}
	return p.serveParts(ctx, parts{
		config: c, log: log, now: p.now, telemetry: told, store: store, policy: policy.Current, contracts: declared,
		replayService: service, material: material, ring: ring.ring, reloaders: append(reloaders, material, policy, ring),
	}, p.serving)
}

// flushBound is how long telemetry may take to go out when everything else has ended.
const flushBound = 3 * time.Second

// serveParts runs a server.
func (p program) serveParts(ctx context.Context, with parts, ready func(addresses)) error {
	return p.runParts(ctx, with, func(with parts, begun func()) error {
		s, err := newServer(ctx, with)
		if err != nil {
			return err
		}
		begun()
		signals, stop := p.signals()
		defer stop()
		return s.run(ctx, signals, ready)
	})
}

// runParts saves the contracts and runs something, which says when it has begun; then it flushes telemetry and closes the store, whatever has happened before.
func (p program) runParts(ctx context.Context, with parts, run func(with parts, begun func()) error) (err error) {
	hasBegun := false
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushBound)
		defer cancel()
		if lost := with.telemetry.shutdown(flush); lost != nil {
			with.log.Warn("telemetry could not be flushed", "error", lost)
		}
		err = errors.Join(err, with.store.Close())
		if hasBegun {
			with.log.Info("stopped")
		}
	}()
	with.saved, err = saveContracts(ctx, with.contracts, with.ring, with.store, with.log)
	switch {
	case errors.Is(err, fingerprint.ErrNoUniqueSecret):
		return usageError{ruleError("secrets", err.Error())}
	case err != nil:
		return ruleError("store", err.Error())
	}
	stop, err := with.watchClock(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return run(with, func() { hasBegun = true })
}

// warnOfExposed names files with secrets that every user of this host can read, by their settings. They are taken: what Kubernetes mounts
// is so by default, in a container that has one user.
func warnOfExposed(log *slog.Logger, files map[string]string) {
	for _, setting := range slices.Sorted(maps.Keys(files)) {
		if isExposed(files[setting]) {
			log.Warn("every user of this host can read a file with a secret: take the right from others (chmod o-r, or defaultMode: 0440)",
				"setting", setting, "file", files[setting])
		}
	}
}

// openContracts reads the contracts' file; without one every tool has the default.
func openContracts(path string, report authz.Report) (contracts, []reloader, error) {
	if path == "" {
		return &contract.Set{}, nil, nil
	}
	source, err := contract.Open(path, func(err error) { report("contracts", err) })
	if err != nil {
		return nil, nil, err
	}
	return source, []reloader{source}, nil
}

func readRing(path string) (*fingerprint.Ring, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return fingerprint.ParseRing(path, data)
}
