// SPDX-License-Identifier: Apache-2.0

// Command ledgerctl is the client of the ledger for people: what waits for them, what is known of an operation, their decisions, and
// the demonstration.
//
// Data goes to standard output, talk to standard error. The exit code says how it ended: 0 as it should; 1 error, also a
// demonstration whose counts are wrong; 2 usage; 3 no such operation, or not for this caller; 4 the operation stands otherwise than the
// command supposes; 5 the outcome is unknown; 6 a person has it, or another one is needed; 7 the ledger cannot be reached.
//
// It depends on the SDK (client), the contract's generated code (gen), cobra, and for the demonstration on the service of
// test/target; everything it knows of operations it learns over the ledger's RPCs.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ledgerctl:", plainLines(err.Error()))
	}
	os.Exit(exitCode(err))
}

// run is the program: it reads arguments, environment and standard input of nobody but its caller.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return program{env: env, now: time.Now, newID: uuid.NewString}.run(ctx, args, stdin, stdout, stderr)
}

// program is what commands need of the process around them.
type program struct {
	env   []string
	now   func() time.Time
	newID func() string // draws the ids of commands
}

func (p program) run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use:           "ledgerctl",
		Short:         "See what waits for people, decide it, and watch the ledger at work",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE:          group,
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(p.queueCommand(), p.opCommand(), p.toolCommand(), demoCommand(p.env), versionCommand())
	return root.ExecuteContext(ctx)
}

// noArguments refuses arguments that no flag belongs to.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments: see %[1]s --help", cmd.CommandPath())}
	}
	return nil
}
