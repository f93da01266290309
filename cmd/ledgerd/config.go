// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/recovery"
)

// Config is every setting of ledgerd. The struct is walked once into flags, LEDGERD_* variables and the keys of the YAML file, which
// all have the same names. Each field's zero value is useful or refused by validate.
type Config struct {
	Store      Secret `name:"store" help:"PostgreSQL URL (postgres://...), or sqlite:PATH for one file on this host"`
	StoreConns int    `name:"store-connections" help:"connections to PostgreSQL at most; 0: as the URL says, or the larger of 4 and the CPUs"`
	StoreTLS   string `name:"store-tls" help:"verified: a database on the network needs sslmode=verify-full; as-in-url: whatever the URL says"`
	Durability string `name:"store-durability" help:"required: refuse a PostgreSQL with fsync or full_page_writes off, which may lose what was answered; as-it-is: take it"`
	Failover   string `name:"failover" help:"what another PostgreSQL server, or another timeline of one, means. lossy: the last commits may be lost, and what may be among them is investigated, not executed; lossless: it is declared that none is"`
	Migrations string `name:"migrations" help:"what start-up does about the schema: verify, apply, or auto (SQLite: apply, PostgreSQL: verify)"`

	GRPCAddr             string        `name:"grpc-addr" help:"address of the gRPC listener (mTLS)"`
	MaxConns             int           `name:"max-connections" help:"connections to the gRPC listener at a time at most; further ones are hung up on"`
	ConnsPerAddress      int           `name:"max-connections-per-address" help:"how many of them one address has at most, and never more than are free; 0: a quarter"`
	ConnsPerPrincipal    int           `name:"max-connections-per-principal" help:"how many of them one principal has at most, and never more than are free; 0: a quarter"`
	Workers              int           `name:"stream-workers" help:"goroutines that wait for calls to the gRPC listener, with large stacks; 0: a new one for each call"`
	Memory               string        `name:"gc-memory" help:"size that the process may reach before it collects garbage, such as 512MiB (it grows further if it must); auto: 160MiB, or half of a smaller container, unless GOGC or GOMEMLIMIT is set; runtime: as Go itself does"`
	TLSCert              string        `name:"tls-cert" help:"PEM file: the server's certificate chain, leaf first"`
	TLSKey               string        `name:"tls-key" help:"PEM file: the leaf's private key"`
	TLSCA                string        `name:"tls-ca" help:"PEM file: the authorities whose client certificates are believed"`
	Policy               string        `name:"policy" help:"YAML file: who may do what (see ledgerd policy check)"`
	Contracts            string        `name:"contracts" help:"YAML file, or directory of them: what tools promise; without one every tool is unsafe and settled by people (see ledgerd contracts check)"`
	Secrets              string        `name:"secrets" help:"YAML file: the ring of secrets that key the fingerprints (see ledgerd keys)"`
	WriteSpec            int           `name:"fingerprint-write-spec" help:"version of the canonical form that new records get; raised by hand when every ledgerd on the store knows it"`
	AuthorizationService string        `name:"authorization-service" help:"HOST:PORT of the platform's AuthorizationService (gRPC, mTLS with this server's own certificate), which is asked before a result is shown; without one the policy and the contracts' rules alone say"`
	AuthorizationTimeout time.Duration `name:"authorization-timeout" help:"how long it may take; no answer in time redacts the result"`
	Reflection           string        `name:"reflection" help:"gRPC reflection: operators, off, or auto (dev: every identity, serve: operators)"`

	Recovery   string `name:"recovery" help:"on: unknown outcomes are found out by this process, too; off: by others alone (see ledgerd recover)"`
	ProbeAllow string `name:"probe-allow" help:"addresses, networks and names of hosts inside of your network at which recovery may ask targets, separated by commas; public ones need no mention"`

	AdminAddr string `name:"admin-addr" help:"address of /livez, /readyz and /metrics (plain HTTP, no operation data)"`

	ReloadInterval time.Duration `name:"reload-interval" help:"how often the files above are looked at; SIGHUP looks at once"`
	DrainDelay     time.Duration `name:"drain-delay" help:"how long a stopping server, already not ready, goes on serving"`
	DrainTimeout   time.Duration `name:"drain-timeout" help:"how long calls may then take to finish"`

	LogLevel  string `name:"log-level" help:"debug, info, warn or error"`
	LogFormat string `name:"log-format" help:"text or json"`

	StateDir   string `name:"state-dir" help:"dev only: where the development ledger keeps its files; default: ledgerd in the XDG state directory"`
	DemoTarget string `name:"demo-target" help:"dev only: loopback address at which the services of ledgerctl demo listen while it runs, and the built-in contracts ask them"`
}

// Secret is a setting that nothing prints. It can also be given as a file, by the same name with -file.
type Secret string

const hidden = "***"

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return hidden
}

// GoString hides the secret.
func (s Secret) GoString() string { return s.String() }

// MarshalText hides the secret.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// LogValue hides the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

const auto = "auto"

// serveDefaults are the defaults of every command but dev.
func serveDefaults() Config {
	return Config{
		StoreTLS: storeTLSVerified, Durability: durabilityRequired, Failover: failoverLossy, Migrations: auto, GRPCAddr: ":7443", MaxConns: 4096, Workers: 256,
		Memory: auto, WriteSpec: fingerprint.Spec1, AuthorizationTimeout: 500 * time.Millisecond, Reflection: auto, Recovery: recoveryOn, AdminAddr: ":7490",
		ReloadInterval: 5 * time.Second, DrainDelay: 3 * time.Second, DrainTimeout: 25 * time.Second,
		LogLevel: "info", LogFormat: "json",
	}
}

// devDefaults are those of dev: loopback, and nobody who would have to notice that the server is going.
func devDefaults() Config {
	c := serveDefaults()
	c.GRPCAddr, c.AdminAddr = "127.0.0.1:7443", "127.0.0.1:7490"
	c.DrainDelay, c.DrainTimeout = 0, 5*time.Second
	c.ReloadInterval = 2 * time.Second
	c.LogLevel, c.LogFormat = "warn", "text"
	c.ProbeAllow = "127.0.0.0/8,::1"
	c.DemoTarget = builtInTarget
	return c
}

// ruleError names a setting and the rule that it breaks, never the value.
func ruleError(setting, rule string) error {
	return fmt.Errorf("--%s (%s): %s", setting, envName(setting), rule)
}

// validate judges what every command that uses a setting needs; all faults are told together.
func (c Config) validate() error {
	var faults []error
	fault := func(setting, rule string) { faults = append(faults, ruleError(setting, rule)) }
	oneOf := func(setting, value string, words ...string) {
		if !slices.Contains(words, value) {
			fault(setting, "must be one of "+strings.Join(words, ", "))
		}
	}
	within := func(setting string, d, least, most time.Duration) {
		if d < least || d > most {
			fault(setting, fmt.Sprintf("must be from %s to %s", least, most))
		}
	}
	oneOf("store-tls", c.StoreTLS, storeTLSVerified, storeTLSAsInURL)
	oneOf("store-durability", c.Durability, durabilityRequired, durabilityAsItIs)
	oneOf("failover", c.Failover, failoverLossy, failoverLossless)
	oneOf("migrations", c.Migrations, auto, "verify", "apply")
	oneOf("reflection", c.Reflection, auto, "operators", "off")
	oneOf("recovery", c.Recovery, recoveryOn, recoveryOff)
	oneOf("log-level", c.LogLevel, "debug", "info", "warn", "error")
	oneOf("log-format", c.LogFormat, "text", "json")
	if c.AuthorizationService != "" && !isAddress(c.AuthorizationService) {
		fault("authorization-service", "must be host:port")
	}
	within("authorization-timeout", c.AuthorizationTimeout, 10*time.Millisecond, 5*time.Second)
	within("reload-interval", c.ReloadInterval, 100*time.Millisecond, time.Hour)
	within("drain-delay", c.DrainDelay, 0, 5*time.Minute)
	within("drain-timeout", c.DrainTimeout, 0, 10*time.Minute)
	between := func(setting string, n, least, most int) {
		if n < least || n > most {
			fault(setting, fmt.Sprintf("must be from %d to %d", least, most))
		}
	}
	between("store-connections", c.StoreConns, 0, 10_000)
	between("max-connections", c.MaxConns, 1, 100_000)
	between("max-connections-per-address", c.ConnsPerAddress, 0, 100_000)
	between("max-connections-per-principal", c.ConnsPerPrincipal, 0, 100_000)
	between("stream-workers", c.Workers, 0, 10_000)
	if _, err := recovery.ParseAllowed(c.ProbeAllow); err != nil {
		fault("probe-allow", err.Error())
	}
	if _, err := specs(c.WriteSpec); err != nil {
		faults = append(faults, err)
	}
	if _, err := parseMemory(c.Memory); err != nil {
		fault("gc-memory", err.Error())
	}
	for setting, addr := range map[string]string{"grpc-addr": c.GRPCAddr, "admin-addr": c.AdminAddr} {
		if !isAddress(addr) {
			fault(setting, "must be host:port, or :port for every address of this host")
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

func isAddress(addr string) bool {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err == nil
}

// shares of the gRPC listener's connections.
func (c Config) shares() shares {
	quarter := max(c.MaxConns/4, 1)
	return shares{most: c.MaxConns, address: cmp.Or(c.ConnsPerAddress, quarter), principal: cmp.Or(c.ConnsPerPrincipal, quarter)}
}

// validateRecover judges what a process that only recovers needs besides.
func (c Config) validateRecover() error {
	faults := []error{c.validate()}
	if c.Store == "" {
		faults = append(faults, ruleError("store", "is required: postgres://... or sqlite:PATH"))
	}
	if c.Secrets == "" {
		faults = append(faults, ruleError("secrets", "is required: what is found at a target is compared by the digests of requests"))
	}
	identity := []struct{ setting, value string }{{"tls-cert", c.TLSCert}, {"tls-key", c.TLSKey}, {"tls-ca", c.TLSCA}}
	for _, part := range identity {
		if part.value == "" && c.TLSCert+c.TLSKey+c.TLSCA != "" {
			faults = append(faults, ruleError(part.setting, "is required with the other two of tls-cert, tls-key and tls-ca, which services of tools' owners are shown"))
		}
	}
	return errors.Join(faults...)
}

// validateServe judges what a server for production needs besides: nothing that protects it has a default.
func (c Config) validateServe() error {
	faults := []error{c.validate()}
	for _, needed := range []struct{ setting, value, hint string }{
		{"store", c.Store.Reveal(), "is required: postgres://... or sqlite:PATH"},
		{"tls-cert", c.TLSCert, "is required: ledgerd serves nothing without TLS"},
		{"tls-key", c.TLSKey, "is required: ledgerd serves nothing without TLS"},
		{"tls-ca", c.TLSCA, "is required: callers are who their certificates say"},
		{"policy", c.Policy, "is required: without a policy nobody may do anything"},
		{"secrets", c.Secrets, "is required: plain digests of requests can be guessed"},
	} {
		if needed.value == "" {
			faults = append(faults, ruleError(needed.setting, needed.hint))
		}
	}
	return errors.Join(faults...)
}

// validateDev keeps a development ledger on this host.
func (c Config) validateDev() error {
	faults := []error{c.validate()}
	for _, listener := range []struct{ setting, addr string }{{"grpc-addr", c.GRPCAddr}, {"admin-addr", c.AdminAddr}} {
		host, _, err := net.SplitHostPort(listener.addr)
		if err != nil {
			continue // validate has told
		}
		ip, err := netip.ParseAddr(host)
		if host != "localhost" && (err != nil || !ip.IsLoopback()) {
			faults = append(faults, ruleError(listener.setting, "dev listens on loopback only, because its keys protect nothing; use 127.0.0.1:PORT, or ledgerd serve"))
		}
	}
	if at, err := netip.ParseAddrPort(c.DemoTarget); err != nil || !at.Addr().IsLoopback() || at.Addr().Zone() != "" || at.Port() == 0 {
		faults = append(faults, ruleError("demo-target", "must be a loopback address with its port: 127.0.0.1:PORT"))
	}
	return errors.Join(faults...)
}
