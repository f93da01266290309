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
	demoOptions
	out     io.Writer
	ledger  devLedger
	target  *target.Process
	service target.Client
	self    string   // this program
	env     []string // of the workers
	run     string   // tells this performance's tasks from earlier ones

	scenes int
	wrong  []string
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
		Long: `Eleven scenes, of less than a minute, with a real service process that keeps its own account of effects, and real worker processes,
of which some are killed. The exit code is 0 only if every count is right.

It needs a development ledger (go run ./cmd/ledgerd dev), or --standalone. The services listen on loopback where that ledger's contracts ask
them (--demo-target of ledgerd dev), and keep their effect log beside its files, in demo-target: recovery may ask them again at the next performance.`,
		Example: `  go run ./cmd/ledgerctl demo
  go run ./cmd/ledgerctl demo --sabotage
  go run ./cmd/ledgerctl demo --standalone`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return performIn(cmd.Context(), o, env, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&o.stateDir, "state-dir", "", "state directory of the development ledger (default as for ledgerd dev)")
	cmd.Flags().BoolVar(&o.sabotage, "sabotage", false, "let the second worker take the end of a lease for a permission to send: the demonstration then fails")
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

	d := &demo{demoOptions: o, out: stdout, env: env, run: uuid.NewString()[:8]}
	if d.self, err = os.Executable(); err != nil {
		return fmt.Errorf("demo: this program: %w", err)
	}
	services := filepath.Join(dir, "services")
	if !o.standalone {
		state, err := stateDir(o.stateDir, env)
		if err != nil {
			return err
		}
		if d.ledger, err = findLedger(ctx, state); err != nil {
			return err
		}
		if d.ledger.DemoTarget == "" {
			return errors.New("the development ledger has other contracts than those built in, which the demonstration needs: start it without --contracts")
		}
		services = filepath.Join(state, "demo-target")
	}
	if d.target, err = target.Spawn(ctx, target.SpawnOptions{
		Dir: services, Addr: d.ledger.DemoTarget, Command: []string{d.self, "demo", "target"}, Stderr: stderr,
	}); err != nil {
		if !o.standalone {
			err = fmt.Errorf("%w; its address %s may be in use, by another demonstration for example: ledgerd dev --demo-target sets another one", err, d.ledger.DemoTarget)
		}
		return err
	}
	defer func() { err = errors.Join(err, d.target.Kill()) }()
	d.service = target.Client{BaseURL: d.target.URL()}
	if o.standalone {
		var stop func()
		if d.ledger, stop, err = startLedger(ctx, dir, d.target.Addr(), o.ledgerd, d.self, env, stderr); err != nil {
			return err
		}
		defer stop()
		began = time.Now() // building is no part of it
	}
	if err := d.perform(ctx); err != nil {
		d.tellWrong()
		return err
	}
	return d.judge(time.Since(began))
}

// findLedger finds the development ledger that runs on a state directory, and makes sure that it does.
func findLedger(ctx context.Context, dir string) (devLedger, error) {
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
	lost, err := d.duplicate(ctx)
	if err != nil {
		return fmt.Errorf("scene %d: %w", d.scenes, err)
	}
	var (
		ticket, charged, other, doubted account // what later scenes undo
		unsettled                       intended
		refund                          client.Intent
	)
	charge := client.Intent{Task: d.newTask("order"), Step: "charge", Time: time.Now()}
	for _, scene := range []func(context.Context) error{
		func(ctx context.Context) (err error) { ticket, err = d.recovered(ctx, lost); return err },
		func(ctx context.Context) (err error) { charged, err = d.concurrent(ctx, charge); return err },
		func(ctx context.Context) error { return d.conflict(ctx, charge) },
		func(ctx context.Context) (err error) { other, err = d.repeated(ctx); return err },
		func(ctx context.Context) (err error) { unsettled, doubted, err = d.staysUnknown(ctx); return err },
		func(ctx context.Context) (err error) {
			refund, err = d.undoBlocked(ctx, unsettled.intent, doubted)
			return err
		},
		func(ctx context.Context) error { return d.compensated(ctx, unsettled, doubted, refund) },
		func(ctx context.Context) error { return d.changedSince(ctx, ticket) },
		func(ctx context.Context) error { return d.lostRefund(ctx, charge, charged, other) },
		d.waitsForPerson,
	} {
		if err := scene(ctx); err != nil {
			return fmt.Errorf("scene %d: %w", d.scenes, err)
		}
	}
	return ctx.Err()
}

// judge says whether the counts are right, and what to do next.
func (d *demo) judge(took time.Duration) error {
	d.tellWrong()
	if len(d.wrong) > 0 {
		if d.sabotage {
			d.print("\n  The second worker took the end of a lease for a permission, and the service did what it was asked: this is what guessing costs.\n")
		}
		return errCounts
	}
	d.print(`  All counts are right (%.1f s).

  Try next
    go run ./cmd/ledgerctl demo --sabotage    a second worker that takes the end of a lease for a permission: the demonstration fails
    go doc ./client                           the same in your code: client.Do, and an outcome that has to be matched
`, took.Seconds())
	return nil
}

func (d *demo) tellWrong() {
	for _, w := range d.wrong {
		d.print("  WRONG  %s\n", w)
	}
}

// indent is where the text of a scene stands, behind its name.
const indent = 20

// scene begins one: its name, and what happens.
func (d *demo) scene(name string, text ...string) {
	d.scenes++
	for i, line := range text {
		if i == 0 {
			d.print("%3d  %-*s%s\n", d.scenes, indent-5, name, line)
			continue
		}
		d.line("%s", line)
	}
	d.print("\n")
}

// line is one of a scene.
func (d *demo) line(format string, args ...any) {
	d.print("%*s"+format+"\n", append([]any{indent, ""}, args...)...)
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
	d.line("%-28s%-14d%-18s first worker %d: %s", what, len(l.tickets), strings.Join(l.tickets, ", "), l.pid, l.ended)
}

func (d *demo) newTask(kind string) string {
	return "demo-" + kind + "-" + d.run + "-" + uuid.NewString()[:4]
}

func (d *demo) log() (target.Log, error) { return target.ReadLog(d.target.LogPath()) }
