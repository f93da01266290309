// SPDX-License-Identifier: Apache-2.0

// Command ledgerd is the shared service that remembers what agents did to other systems.
//
// It wires the parts together and decides nothing about operations: settings (Config), store, policy, contracts, TLS, the gRPC and the
// admin listener, telemetry, and the order in which all of this starts and stops. "ledgerd dev" runs it on one host with everything
// made for you; "ledgerd serve" asks for each part and has no default for what protects it.
//
// It guarantees that nothing is served before every registered method has an entry in the list of who may call it, that a broken
// policy, contracts or TLS file leaves the last good one in force, and that a stopping server is unready before it refuses anybody.
//
// It depends on every adapter, and nothing depends on it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/opsledger/opsledger/failpoint"
)

func main() {
	if err := noCoreDumps(); err != nil {
		fmt.Fprintln(os.Stderr, "ledgerd: core dumps stay on:", err)
	}
	err := run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ledgerd:", err)
	}
	os.Exit(exitCode(err))
}

// run is the whole program. The end of ctx is what SIGTERM is.
func run(ctx context.Context, args, env []string, stdout, stderr io.Writer) error {
	p := program{env: env, stdout: stdout, stderr: stderr, now: time.Now, signals: processSignals}
	return p.run(ctx, args)
}

// program is what a command needs of its process.
type program struct {
	env            []string
	stdout, stderr io.Writer
	now            func() time.Time
	// signals of the process, for commands that serve; stop ends their delivery.
	signals func() (signals <-chan os.Signal, stop func())
	// serving, if set, is told the addresses once the server is ready.
	serving func(addresses)
}

func processSignals() (<-chan os.Signal, func()) {
	// The buffer holds a first and a second request to stop, and reloads between them.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}

func (p program) run(ctx context.Context, args []string) error {
	// A crash test whose binary has no failpoints would pass by never crashing.
	if !failpoint.Built && p.variable(failpoint.Variable) != "" {
		return usageError{fmt.Errorf("%s is set, but this binary was built without failpoints; build it with -tags failpoints, or unset it", failpoint.Variable)}
	}
	root := p.root()
	root.SetArgs(args)
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	return root.ExecuteContext(ctx)
}

func (p program) variable(name string) string {
	for _, pair := range p.env {
		if len(pair) > len(name) && pair[:len(name)] == name && pair[len(name)] == '=' {
			return pair[len(name)+1:]
		}
	}
	return ""
}

// usageError is a fault of the command line, the environment or a file: a second start without a change would fail as well.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }

func (e usageError) Unwrap() error { return e.err }

// exitCode: 0 done, 1 failed or unhealthy, 2 wrong usage or settings.
func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return 2
	default:
		return 1
	}
}
