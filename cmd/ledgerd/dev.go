// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// devContracts are those of the tools of the demonstration and of first steps.
//
//go:embed devcontracts.yaml
var devContracts []byte

// builtInTarget is where devContracts say that the demonstration's services listen.
const builtInTarget = "127.0.0.1:7470"

const (
	devTrustDomain = "dev.local"
	devOperator    = "operator"
	devStore       = "ledger.db"
	devSecrets     = "secrets.yaml"
	devTLS         = "tls"
	// devFile tells ledgerctl where a running development ledger is.
	devFile = "dev.json"
)

// devClients are the identities that dev makes: two workers, each with a scope of its own, and a person.
func devClients() []string { return []string{"agent-a", "agent-b", devOperator} }

func (p program) devCommand() *cobra.Command {
	return p.configured(&cobra.Command{
		Use:   "dev",
		Short: "Run a ledger for development on this host, with everything made for you (not for production)",
		Long: "Run a ledger for development: a SQLite file, an authority of its own, the identities agent-a, agent-b and operator, and\n" +
			"contracts of a few tools. It listens on loopback only. Its files stay in --state-dir.",
		Example: "  ledgerd dev\n  ledgerd dev --state-dir /tmp/ledger --grpc-addr 127.0.0.1:0 --admin-addr 127.0.0.1:0",
	}, devDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		if err := c.validateDev(); err != nil {
			return usageError{err}
		}
		return p.dev(cmd.Context(), c)
	}, "grpc-addr", "admin-addr", "contracts", "policy", "state-dir", "log-level", "log-format", "drain-delay", "drain-timeout", "reload-interval",
		"recovery", "probe-allow", "demo-target")
}

func (p program) dev(ctx context.Context, c Config) error {
	dir, chosen := c.StateDir, c.StateDir != ""
	if !chosen {
		var err error
		if dir, err = p.stateDir(); err != nil {
			return usageError{err}
		}
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	if err := soleDev(ctx, filepath.Join(dir, devFile)); err != nil {
		return err
	}
	log := p.newLogger(c)
	told, err := newTelemetry(ctx, p)
	if err != nil {
		return err
	}
	report := func(kind string, err error) { told.reloaded(log, kind, err) }

	files, err := authz.EnsureDev(filepath.Join(dir, devTLS), authz.DevOptions{TrustDomain: devTrustDomain, Clients: devClients()}, p.now())
	if err != nil {
		return err
	}
	material, err := authz.NewMaterialReloader(files.Server, p.now, report)
	if err != nil {
		return err
	}
	with := parts{config: c, log: log, now: p.now, telemetry: told, material: material, openReflection: c.Reflection == auto}
	if err := devRules(&with, report); err != nil {
		return err
	}
	if with.ring, err = ensureRing(filepath.Join(dir, devSecrets)); err != nil {
		return err
	}
	c.Migrations = "apply"
	path := filepath.Join(dir, devStore)
	if with.store, err = prepareStore(ctx, location{path: path}, c, log, told); err != nil {
		return err
	}
	var noted devNote
	err = p.serveParts(ctx, with, func(at addresses) {
		noted = newDevNote(at, path, files, p.now())
		if c.Contracts == "" {
			noted.DemoTarget = c.DemoTarget
		}
		if err := noted.write(filepath.Join(dir, devFile)); err != nil {
			log.Error("the note for ledgerctl could not be written", "error", err)
		}
		p.welcome(noted, dir, chosen, material.Current().NotAfter())
		if p.serving != nil {
			p.serving(at)
		}
	})
	return errors.Join(err, noted.remove(filepath.Join(dir, devFile)))
}

// devRules sets policy and contracts: files where they are named, else those built in.
func devRules(with *parts, report authz.Report) error {
	if path := with.config.Policy; path != "" {
		policy, err := authz.NewPolicyReloader(path, report)
		if err != nil {
			return usageError{with.config.named(err)}
		}
		with.policy, with.reloaders = policy.Current, append(with.reloaders, policy)
	} else {
		policy, err := authz.DevPolicy(devTrustDomain, authz.AgentPrincipal(devTrustDomain, devOperator))
		if err != nil {
			return err
		}
		with.policy = func() *authz.Policy { return policy }
	}
	if path := with.config.Contracts; path != "" {
		declared, reloaders, err := openContracts(path, report)
		if err != nil {
			return usageError{with.config.named(err)}
		}
		with.contracts, with.reloaders = declared, append(with.reloaders, reloaders...)
		return nil
	}
	declared, err := contract.Parse("devcontracts.yaml", bytes.ReplaceAll(devContracts, []byte(builtInTarget), []byte(with.config.DemoTarget)))
	if err != nil {
		return err
	}
	with.contracts = declared
	return nil
}

// stateDir is where the XDG base directory specification puts state.
func (p program) stateDir() (string, error) {
	base := p.variable("XDG_STATE_HOME")
	if !filepath.IsAbs(base) { // the specification: relative ones are ignored
		home := p.variable("HOME")
		if home == "" {
			return "", ruleError("state-dir", "is required where there is no home directory")
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "ledgerd"), nil
}

// ensureRing reads the ring, or draws one, and what an earlier release did not draw. Records name its secret by an id that is drawn, too:
// where the file was lost, a record says that its secret is unknown, never that a request differs.
func ensureRing(path string) (*fingerprint.Ring, error) {
	ring, err := readRing(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		secret, err := fingerprint.NewRandomSecret("dev-" + rand.Text()[:8])
		if err != nil {
			return nil, err
		}
		if ring, err = newRing(secret); err != nil {
			return nil, err
		}
	case err != nil || ring.HasUnique():
		return ring, err
	default:
		if err := drawUnique(ring); err != nil {
			return nil, err
		}
	}
	return ring, replaceFile(path, ring.RevealYAML())
}

// newRing is a ring of one secret, with one of slots.
func newRing(secret fingerprint.Secret) (*fingerprint.Ring, error) {
	ring, err := fingerprint.NewRing(secret.ID(), secret)
	if err != nil {
		return nil, err
	}
	return ring, drawUnique(ring)
}

func drawUnique(ring *fingerprint.Ring) error {
	key := make([]byte, fingerprint.MinSecretSize)
	_, _ = rand.Read(key) // never fails
	return ring.SetUnique(key)
}

// replaceFile writes a file in one step, so that a reader sees the old one or the new one, also after a crash. A new file has mode 0600;
// another one keeps its owner and mode, but for what everybody might do with it.
func replaceFile(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), err)
	}
	if was, unread := os.Stat(path); unread == nil {
		err = errors.Join(file.Chmod(was.Mode().Perm()&0o770), keepOwner(file, was))
	}
	if err == nil {
		_, err = file.Write(data)
	}
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", filepath.Base(path), errors.Join(err, os.Remove(file.Name())))
	}
	return syncDirectory(filepath.Dir(path))
}

// devNote is what dev.json holds while a development ledger runs.
type devNote struct {
	PID       int    `json:"pid"`
	GRPCAddr  string `json:"grpc_addr"`
	AdminAddr string `json:"admin_addr"`
	Store     string `json:"store"`
	// CA is the file of the authority; Identities are the files of each client.
	CA         string               `json:"ca_file"`
	Identities map[string]devClient `json:"identities"`
	// DemoTarget is where the built-in contracts ask the demonstration's services; empty: other contracts are in force.
	DemoTarget string    `json:"demo_target,omitempty"`
	Started    time.Time `json:"started"`
}

type devClient struct {
	Cert string `json:"cert_file"`
	Key  string `json:"key_file"`
}

func newDevNote(at addresses, store string, files authz.DevFiles, now time.Time) devNote {
	n := devNote{
		PID: os.Getpid(), GRPCAddr: at.GRPC, AdminAddr: at.Admin, Store: store, CA: files.Server.CA,
		Identities: map[string]devClient{}, Started: now.UTC().Truncate(time.Second),
	}
	for name, f := range files.Clients {
		n.Identities[name] = devClient{Cert: f.Cert, Key: f.Key}
	}
	return n
}

// soleDev refuses a second development ledger on one state directory: ledgerctl would find only the one that started last. A note that
// nobody answers for is left over from a process that was killed.
func soleDev(ctx context.Context, path string) error {
	data, err := os.ReadFile(path)
	var there devNote
	if err != nil || json.Unmarshal(data, &there) != nil || there.GRPCAddr == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", there.GRPCAddr)
	if err != nil {
		return nil
	}
	_ = conn.Close()
	return usageError{fmt.Errorf("a development ledger runs on this state directory already (process %d, %s): end it, or choose another --state-dir",
		there.PID, there.GRPCAddr)}
}

func (n devNote) write(path string) error {
	data, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(path, append(data, '\n'))
}

// remove takes the note away, unless another process has written its own since.
func (n devNote) remove(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var there devNote
	if json.Unmarshal(data, &there) != nil || there.PID != n.PID || there.GRPCAddr != n.GRPCAddr {
		return nil
	}
	return os.Remove(path)
}

// welcome says where everything is and what to type next.
func (p program) welcome(n devNote, dir string, chosen bool, until time.Time) {
	next := "go run ./cmd/ledgerctl demo"
	if chosen {
		next += " --state-dir " + dir
	}
	_, _ = fmt.Fprintf(p.stdout, `opsledger development ledger: NOT FOR PRODUCTION

  gRPC        %s (TLS 1.3, client certificate required)
  admin       http://%s%s?verbose
  store       %s
  identities  %s: agent-a, agent-b, operator; until %s

Next, in another terminal:

  %s

`, n.GRPCAddr, n.AdminAddr, readyPath, n.Store, filepath.Dir(n.CA), until.Format(time.DateOnly), next)
}
