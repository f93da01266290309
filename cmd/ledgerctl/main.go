// SPDX-License-Identifier: Apache-2.0

// Command ledgerctl is the client of the ledger for people: so far its demonstration.
//
// Data goes to standard output, talk to standard error. The exit code says how it ended: 0 as it should; 1 error, also a
// demonstration whose counts are wrong; 2 usage; 7 the ledger cannot be reached.
//
// It depends on the SDK (client), cobra, and for the demonstration on the service of test/target; everything it knows of operations
// it learns over the ledger's RPCs.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "ledgerctl:", err)
	}
	os.Exit(exitCode(err))
}

// run is the program: it reads arguments, environment and standard input of nobody but its caller.
func run(ctx context.Context, args, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
	root := &cobra.Command{
		Use:           "ledgerctl",
		Short:         "See what the ledger knows of operations, and watch it at work",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				fmt.Fprintln(cmd.ErrOrStderr(), cmd.UsageString())
				return usageError{errors.New("say what to do: name one of the commands")}
			}
			return usageError{errors.New("no such command: see ledgerctl --help")}
		},
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w: see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(demoCommand(env), versionCommand())
	return root.ExecuteContext(ctx)
}

// noArguments refuses arguments that no flag belongs to.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments: see %[1]s --help", cmd.CommandPath())}
	}
	return nil
}

// The exit codes.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitUnavailable = 7
)

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// unavailableError is a ledger that cannot be reached.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error { return e.error }

func exitCode(err error) int {
	var (
		usage       usageError
		unavailable unavailableError
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unavailable), status.Code(err) == codes.Unavailable:
		return exitUnavailable
	default:
		return exitError
	}
}
