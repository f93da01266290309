// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/test/target"
)

// demo is one performance. What it counts it reads from the services' own effect log.
type demo struct {
	out      io.Writer
	ledger   devLedger
	target   *target.Process
	service  target.Client
	self     string   // this program
	env      []string // of the workers
	sabotage bool
	run      string // tells this performance's tasks from earlier ones

	wrong []string
}

// demoOptions are the flags of the command.
type demoOptions struct {
	stateDir   string
	sabotage   bool
	standalone bool
	ledgerd    string
}

func demoCommand(env []string) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch the ledger prevent a duplicate",
		Long: `Three scenes with a real service process that keeps its own account of effects, and real worker processes, one of which
is killed. The exit code is 0 only if every count is right.

It needs a development ledger (go run ./cmd/ledgerd dev), or --standalone.`,
		Example: `  go run ./cmd/ledgerctl demo
  go run ./cmd/ledgerctl demo --sabotage
  go run ./cmd/ledgerctl demo --standalone`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return performIn(cmd.Context(), o, env, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&o.stateDir, "state-dir", "", "state directory of the development ledger (default as for ledgerd dev)")
	cmd.Flags().BoolVar(&o.sabotage, "sabotage", false, "let the second worker go around the ledger: the demonstration then fails")
	cmd.Flags().BoolVar(&o.standalone, "standalone", false, "start a ledger of its own, in a temporary directory and on free ports")
	cmd.Flags().StringVar(&o.ledgerd, "ledgerd", "", "with --standalone: the ledgerd to start (default: the one next to this program, else built from source)")
	cmd.AddCommand(workerCommand(), targetCommand())
	return cmd
}

// errCounts is a performance whose counts are not what they must be.
var errCounts = errors.New("the demonstration has failed: see WRONG above")

// performIn sets the stage in a temporary directory, performs, and leaves nothing behind.
func performIn(ctx context.Context, o demoOptions, env []string, stdout, stderr io.Writer) (err error) {
	if o.standalone && o.stateDir != "" || !o.standalone && o.ledgerd != "" {
		return usageError{errors.New("--standalone: goes with --ledgerd, and without --state-dir")}
	}
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // at the latest it ends what was started
	dir, err := os.MkdirTemp("", "opsledger-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	d := &demo{out: stdout, env: env, sabotage: o.sabotage, run: uuid.NewString()[:8]}
	if d.self, err = os.Executable(); err != nil {
		return fmt.Errorf("demo: this program: %w", err)
	}
	if o.standalone {
		var stop func()
		if d.ledger, stop, err = startLedger(ctx, dir, o.ledgerd, d.self, env, stderr); err != nil {
			return err
		}
		defer stop()
		began = time.Now() // building is no part of it
	} else if d.ledger, err = findLedger(ctx, o.stateDir, env); err != nil {
		return err
	}
	if d.target, err = target.Spawn(ctx, target.SpawnOptions{
		Dir: filepath.Join(dir, "target"), Command: []string{d.self, "demo", "target"}, Stderr: stderr,
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.target.Kill()) }()
	d.service = target.Client{BaseURL: d.target.URL()}
	if err := d.perform(ctx); err != nil {
		return err
	}
	return d.judge(time.Since(began))
}

// findLedger finds the development ledger that runs, and makes sure that it does.
func findLedger(ctx context.Context, dir string, env []string) (devLedger, error) {
	dir, err := stateDir(dir, env)
	if err != nil {
		return devLedger{}, err
	}
	ledger, err := readDev(dir)
	if err != nil {
		return devLedger{}, err
	}
	connection, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", ledger.GRPCAddr)
	if err != nil {
		return devLedger{}, unavailableError{fmt.Errorf("the development ledger of %s has stopped: start it with: go run ./cmd/ledgerd dev", dir)}
	}
	_ = connection.Close() // it was only a question
	return ledger, nil
}

func (d *demo) perform(ctx context.Context) error {
	d.print(`ledgerctl demo
  The service is a process of its own (%d) with its own effect log, the workers are processes, the ledger is at %s.
  Everything counted here is read from the service's log.

`, d.target.PID(), d.ledger.GRPCAddr)
	if err := d.duplicate(ctx); err != nil {
		return fmt.Errorf("scene 1: %w", err)
	}
	charge := client.Intent{Task: d.newTask("order"), Step: "charge", Time: time.Now()}
	if err := d.concurrent(ctx, charge); err != nil {
		return fmt.Errorf("scene 2: %w", err)
	}
	if err := d.conflict(ctx, charge); err != nil {
		return fmt.Errorf("scene 3: %w", err)
	}
	return ctx.Err()
}

// judge says whether the counts are right, and what to do next.
func (d *demo) judge(took time.Duration) error {
	for _, w := range d.wrong {
		d.print("  WRONG  %s\n", w)
	}
	if len(d.wrong) > 0 {
		if d.sabotage {
			d.print("\n  The second worker went around the ledger, and the service did what it was asked: this is what a bypass costs.\n")
		}
		return errCounts
	}
	d.print(`  All counts are right (%.1f s).

  Try next
    go run ./cmd/ledgerctl demo --sabotage    the second worker goes around the ledger, and the demonstration fails
    go doc ./client                           the same in your code: client.Do, and an outcome that has to be matched
`, took.Seconds())
	return nil
}

// check notes a count that is not what it must be.
func (d *demo) check(what string, got, want any) {
	if got != want {
		d.problem("%s: %v, must be %v", what, got, want)
	}
}

func (d *demo) problem(format string, args ...any) {
	d.wrong = append(d.wrong, fmt.Sprintf(format, args...))
}

// print writes to the audience. If that has left, the exit code still says how it went.
func (d *demo) print(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format, args...) }

func (d *demo) row(what string, l lost) {
	d.print("                  %-28s%-14d%-18s first worker %d: %s\n", what, len(l.tickets), strings.Join(l.tickets, ", "), l.pid, l.ended)
}

func (d *demo) newTask(kind string) string {
	return "demo-" + kind + "-" + d.run + "-" + uuid.NewString()[:4]
}

func (d *demo) log() (target.Log, error) { return target.ReadLog(d.target.LogPath()) }
