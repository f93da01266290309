// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/opsledger/opsledger/test/target"
)

// The processes' clocks are wrong by a minute in both directions, and one of them is set back by an hour: a lease of 20 s that one process has granted is over for
// another one after 20 s of real time. On PostgreSQL the times that are stored are the database's.
func TestC28(t *testing.T) {
	const lease = 20 * time.Second
	for _, store := range stores {
		t.Run(store, func(t *testing.T) {
			for _, c := range []struct {
				name             string
				grants, recovers time.Duration
				set              time.Duration // what the granting clock is set to meanwhile; 0: it is left alone
			}{
				{"granted by the slow one", -time.Minute, time.Minute, 0},
				{"granted by the fast one", time.Minute, -time.Minute, 0},
				{"set back by an hour meanwhile", time.Minute, -time.Minute, time.Minute - time.Hour},
			} {
				if store == "sqlite" && c.set != 0 {
					continue // the process's clock is the store's: what becomes of one that is set is its own test
				}
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					clock := newClockFile(t, c.grants)
					long := strings.ReplaceAll(askedContracts, "4s", "30s")
					r := newRecoveringBy(t, store, long, nodeOptions{clock: clock, args: map[string][]string{"postgres": {"--recovery", "off"}}[store]})
					other := r.node
					if store == "postgres" {
						other = r.start(t, nodeOptions{clock: newClockFile(t, c.recovers), args: append(r.args, "--recovery", "on")})
					}
					asks := other.dial(t, billing)
					asks.view(t, granted(t, r, lease)) // the connection is up
					claim := request("card.charge", unique(t), "K", `{"amount":"10.00","currency":"EUR","to":"A"}`)
					claim.Lease = durationpb.New(lease)
					before := time.Now()
					g := r.node.dial(t, billing).grant(t, claim)
					after := time.Now()
					if at := r.row(t, g.GetOperationId()).instant(t, "grant_time"); store == "postgres" && (at.Before(before.Add(-time.Second)) || at.After(after.Add(time.Second))) {
						t.Errorf("the grant's time is %v, it was between %v and %v", at, before, after)
					}
					if c.set != 0 {
						clock.set(t, c.set)
					}
					var asked, changed time.Time
					eventually(t, "the lease is over for the other one", func() bool {
						for _, e := range r.ft.account(t).Entries {
							if asked.IsZero() && e.Kind == target.Query && e.Key == g.GetDownstreamKey() {
								asked = e.Time
							}
						}
						switch got := outcome(asks.claim(t, again(claim))); {
						case got == "UNKNOWN" && changed.IsZero():
							changed = time.Now()
						case got != "UNKNOWN" && got != "IN_PROGRESS" || got == "IN_PROGRESS" && !changed.IsZero():
							t.Fatalf("a Claim was answered %s", got)
						}
						return !asked.IsZero() && !changed.IsZero()
					})
					const poll = 1200 * time.Millisecond // of the loop, with its jitter
					for what, at := range map[string]time.Time{"recovery asked": asked, "a Claim was told unknown": changed} {
						if at.Before(before.Add(lease)) || at.After(after.Add(lease+poll+2*time.Second)) {
							t.Errorf("%s %v after the grant, want %v and no poll more", what, at.Sub(after), lease)
						}
					}
				})
			}
		})
	}
}

// granted claims an operation of which nobody asks anything.
func granted(t *testing.T, r recovering, lease time.Duration) string {
	t.Helper()
	claim := request("card.charge", unique(t), "K", `{"amount":"1.00","currency":"EUR","to":"B"}`)
	claim.Lease = durationpb.New(lease)
	return r.node.dial(t, billing).grant(t, claim).GetOperationId()
}

// clockFile has by how many seconds a process's clock is wrong, in 8 bytes that the process maps.
type clockFile string

func newClockFile(t *testing.T, by time.Duration) clockFile {
	t.Helper()
	c := clockFile(filepath.Join(t.TempDir(), "clock"))
	c.set(t, by)
	return c
}

// set sets the clock, in one step.
func (c clockFile) set(t *testing.T, by time.Duration) {
	t.Helper()
	file, err := os.OpenFile(string(c), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(by/time.Second)), 0)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// clockVariable names a process's clockFile.
const clockVariable = "OPSLEDGER_CASES_CLOCK"

// shiftedBinary is a ledgerd whose every look at the time of day is wrong by what its clockFile says: that of the standard library is replaced for the build. What
// is measured by a monotonic clock stays right, as with a clock that is set.
var shiftedBinary = sync.OnceValues(func() (string, error) {
	dir, err := suite.dir()
	if err != nil {
		return "", err
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", err
	}
	own := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(own)
	if err != nil {
		return "", err
	}
	const look = "sec, nsec, mono := runtimeNow()\n"
	begin, rest, ok := strings.Cut(string(source), "func Now() Time {\n\t"+look)
	if !ok {
		return "", fmt.Errorf("package time of %s is another one than this test knows", runtime.Version())
	}
	patched := begin + "func Now() Time {\n\t" + look + "\tsec += shift()\n" + rest
	replace := map[string]string{own: filepath.Join(dir, "time.go"), filepath.Join(filepath.Dir(own), "shift.go"): filepath.Join(dir, "shift.go")}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	for path, text := range map[string]string{
		"time.go": patched, "shift.go": strings.ReplaceAll(shiftSource, "CLOCK", clockVariable), "overlay.json": string(overlay),
	} {
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	path := filepath.Join(dir, "ledgerd-shifted")
	text, err := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", path, "github.com/opsledger/opsledger/cmd/ledgerd").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build ledgerd with another clock: %w: %s", err, text)
	}
	return path, nil
})

// shiftSource is a file of package time. It makes no call: the runtime looks at the clock where none can be made.
const shiftSource = `package time

import (
	"syscall"
	"unsafe"
)

var shifted *int64

func init() {
	path, ok := syscall.Getenv("CLOCK")
	if !ok {
		return
	}
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("time: the clock's file can't be opened")
	}
	bytes, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("time: the clock's file can't be mapped")
	}
	shifted = (*int64)(unsafe.Pointer(&bytes[0]))
}

// shift is by how many seconds the clock is wrong.
func shift() int64 {
	if shifted == nil {
		return 0
	}
	return *shifted
}
`
