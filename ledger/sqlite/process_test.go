// SPDX-License-Identifier: Apache-2.0

package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/sqlite"
)

// asHelper makes the test binary another process on a file: its value names the file and what to do.
const asHelper = "OPSLEDGER_SQLITE_TEST_HELPER"

func TestMain(m *testing.M) {
	if what, path, ok := strings.Cut(os.Getenv(asHelper), " "); ok {
		if err := help(context.Background(), what, path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// helper starts another process.
func helper(t *testing.T, what, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asHelper+"="+what+" "+path)
	cmd.Stderr = os.Stderr
	return cmd
}

func help(ctx context.Context, what, path string) error {
	s, err := sqlite.Open(ctx, path, sqlite.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if what == "contend" {
		return contend(ctx, s, "helper")
	}
	var group sync.WaitGroup
	for worker := range 64 {
		group.Go(func() { work(ctx, s, fmt.Sprint(what, "-", worker)) })
	}
	group.Wait()
	return nil
}

// work creates and changes operations, also in pairs, until the process is killed, and prints each write that it was told of: the
// operation, and how many events it has at least.
func work(ctx context.Context, s *sqlite.Store, worker string) {
	hot := idOf("hot")
	for n := 0; ; n++ {
		name := fmt.Sprint(worker, "-", n)
		errs := []error{create(ctx, s, name), change(ctx, s, name, "first")}
		errs = append(errs, s.Update(ctx, ledger.ReadSet{ID: idOf(name), Related: []ledger.OperationID{hot}}, func(v ledger.View) (ledger.Change, error) {
			c, err := changing("second", sound)(v)
			related := v.Related[hot]
			v.Current = &related
			companion, _ := changing("link to "+name, sound)(v)
			c.Companion = &companion
			return c, err
		}))
		if err := errors.Join(errs...); err != nil {
			fmt.Printf("error %q\n", err)
			return
		}
		fmt.Println(name)
	}
}

// contend changes few operations by many callers.
func contend(ctx context.Context, s *sqlite.Store, who string) error {
	errs := make([]error, contenders)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() {
			for n := range changes {
				errs[i] = errors.Join(errs[i], change(ctx, s, fmt.Sprint("hot ", i%hotKeys), fmt.Sprint(who, i, n)))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

const contenders, changes, hotKeys = 24, 8, 3

func TestKilledProcessLosesNothingAcknowledged(t *testing.T) {
	d := harness{}.new(t)
	if err := create(t.Context(), d.open(t, sqlite.Options{}), "hot"); err != nil {
		t.Fatal(err)
	}
	for round := range 4 {
		cmd := helper(t, fmt.Sprint("round-", round), d.path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var told []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "error ") { // on a slow machine a batch may take longer than its bound
				t.Logf("round %d: a worker stopped: %s", round, lines.Text())
				continue
			}
			told = append(told, lines.Text())
			if len(told) == 40+100*round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the process was not killed: %v, it printed %q", err, told)
		}
		s := d.open(t, sqlite.Options{})
		for _, name := range told {
			if n := verify(t, s, idOf(name)); n != 3 {
				t.Errorf("round %d: %s has %d events, and 3 were acknowledged", round, name, n)
			}
		}
		all := operations(t, d)
		if len(all) < len(told) {
			t.Errorf("round %d: %d operations, and %d were acknowledged", round, len(all), len(told))
		}
		events, links := 0, 0
		for _, id := range all {
			n := verify(t, s, id)
			events += n
			if n == 3 && id != idOf("hot") {
				links++
			}
		}
		if n := verify(t, s, idOf("hot")); n != links+1 {
			t.Errorf("round %d: %d links, and %d operations that are linked: half of a pair was written", round, n-1, links)
		}
		if n := count(t, d, "SELECT count(*) FROM events"); n != events {
			t.Errorf("round %d: %d events, and the operations have %d", round, n, events)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTwoProcessesOnOneFile(t *testing.T) {
	d := harness{}.new(t)
	s := d.open(t, sqlite.Options{})
	for i := range hotKeys {
		if err := create(t.Context(), s, fmt.Sprint("hot ", i)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := helper(t, "contend", d.path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := contend(t.Context(), s, "parent"); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for i := range hotKeys {
		if n, want := verify(t, s, idOf(fmt.Sprint("hot ", i))), 1+2*contenders/hotKeys*changes; n != want {
			t.Errorf("%d events, want %d", n, want)
		}
	}
}

// TestBusyProcessLeavesRoom: who has one thing to write waits for few batches of who always has more. Two stores are as two processes here.
func TestBusyProcessLeavesRoom(t *testing.T) {
	d := harness{}.new(t)
	busy, quiet := d.open(t, sqlite.Options{}), d.open(t, sqlite.Options{})
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range 64 {
		group.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := create(t.Context(), busy, fmt.Sprint("busy ", i, "-", n)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	const writes, mostBatches = 40, 6
	for busy.Stats().WriteBatches == 0 {
		runtime.Gosched()
	}
	before := busy.Stats().WriteBatches
	for n := range writes {
		if err := create(t.Context(), quiet, fmt.Sprint("quiet ", n)); err != nil {
			t.Error(err)
		}
	}
	if n := busy.Stats().WriteBatches - before; n > writes*mostBatches {
		t.Errorf("%d writes waited for %d batches, want %d each at most", writes, n, mostBatches)
	}
	close(stop)
	group.Wait()
}

// operations are the ids of all rows.
func operations(t *testing.T, d data) (ids []ledger.OperationID) {
	t.Helper()
	db := d.raw(t)
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(t.Context(), "SELECT id FROM operations")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var b []byte
		if err := rows.Scan(&b); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, ledger.OperationID(b))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}

func count(t *testing.T, d data, query string) (n int) {
	t.Helper()
	db := d.raw(t)
	defer func() { _ = db.Close() }()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
