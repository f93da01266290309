// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"
)

const mib = 1 << 20

func TestTheSizeAtWhichGarbageIsCollected(t *testing.T) {
	const none = math.MaxInt64
	for name, c := range map[string]struct {
		floor, container, inUse int64
		want                    int64
	}{
		"little in use":                           {inUse: 20 * mib, want: 160 * mib},
		"much in use: as GOGC=100 has it":         {inUse: 400 * mib, want: 800 * mib},
		"more than can be doubled":                {inUse: none/2 + 1, want: none},
		"a larger size is wished":                 {floor: 1024 * mib, inUse: 20 * mib, want: 1024 * mib},
		"a large container":                       {container: 4096 * mib, inUse: 20 * mib, want: 160 * mib},
		"a small container":                       {container: 256 * mib, inUse: 20 * mib, want: 128 * mib},
		"a small container, half full":            {container: 200 * mib, inUse: 80 * mib, want: 160 * mib},
		"a small container, full":                 {container: 200 * mib, inUse: 150 * mib, want: 170 * mib},
		"a larger size than the container's":      {floor: 1024 * mib, container: 200 * mib, inUse: 20 * mib, want: 170 * mib},
		"a size that the container has room for":  {floor: 160 * mib, container: 200 * mib, inUse: 20 * mib, want: 160 * mib},
		"much in use of a container that is huge": {container: 64 << 30, inUse: 1024 * mib, want: 2048 * mib},
	} {
		if got := pace(c.floor, c.container).limit(c.inUse); got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got/mib, c.want/mib)
		}
	}
}

func TestSizesAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]int64{"auto": 0, "runtime": 0, "32MiB": 32 * mib, "2GiB": 2048 * mib} {
		if got, err := parseMemory(text); got != want || err != nil {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "256", "256MB", "31MiB", "-1GiB", "1.5GiB", "9999999999999GiB", "off"} {
		if got, err := parseMemory(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestWhatAContainerHas(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no Linux": {nil, 0},
		"a container with a name space of its own": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 * mib},
		"a unit of systemd, and its slice": {map[string]string{
			"proc/self/cgroup": "0::/system.slice/ledgerd.service\n", "sys/fs/cgroup/system.slice/ledgerd.service/memory.max": "max\n",
			"sys/fs/cgroup/system.slice/memory.max": "1073741824\n",
		}, 1024 * mib},
		"the least of all that bound it": {map[string]string{
			"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "209715200\n", "sys/fs/cgroup/a/memory.max": "1073741824\n",
		}, 200 * mib},
		"no bound": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 0},
		"version 1, named as outside of the container": {map[string]string{
			"proc/self/cgroup":                                 "5:cpu,cpuacct:/docker/x\n4:memory:/docker/x\n0::/docker/x\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":       "268435456\n",
			"sys/fs/cgroup/cpu,cpuacct/memory.limit_in_bytes":  "1\n",
			"sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota": "1\n",
		}, 256 * mib},
		"version 1 without a bound": {map[string]string{
			"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		"a group above the mount": {map[string]string{
			"proc/self/cgroup": "0::/../other\n", "sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 * mib},
		"nonsense": {map[string]string{"proc/self/cgroup": "x\n::\n0::/\n", "sys/fs/cgroup/memory.max": "much\n"}, 0},
	} {
		root := fstest.MapFS{}
		for name, text := range c.files {
			root[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := containerMemory(root); got != c.want {
			t.Errorf("%s: %d MiB, want %d", name, got/mib, c.want/mib)
		}
	}
}

// What an operator says about the collector counts, by ledgerd's setting or by Go's variables.
func TestWhoPacesTheCollector(t *testing.T) {
	percent, limit := currentPacing()
	h := newHouse(t, stores["sqlite"](t))
	for name, c := range map[string]struct {
		env, args []string
		want      string // as the metrics tell it; empty: as it was
	}{
		"nobody says anything":          {want: "go_gc_gomemlimit_bytes"},
		"the setting says a size":       {args: []string{"--gc-memory", "300MiB"}, want: fmt.Sprintf("go_gc_gomemlimit_bytes %g\n", float64(300*mib))},
		"the setting leaves it":         {args: []string{"--gc-memory", "runtime"}},
		"GOGC says it":                  {env: []string{"GOGC=100"}},
		"GOMEMLIMIT says it":            {env: []string{"GOMEMLIMIT=1GiB"}},
		"both, and the setting, say it": {env: []string{"GOGC=100"}, args: []string{"--gc-memory", "300MiB"}, want: fmt.Sprintf("go_gc_gomemlimit_bytes %g\n", float64(300*mib))},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.env, append(h.args, c.args...)...)
			gotPercent, gotLimit := currentPacing()
			if kept := gotPercent == percent && gotLimit == limit; kept != (c.want == "") {
				t.Errorf("GOGC %d, GOMEMLIMIT %d", gotPercent, gotLimit)
			}
			if _, metrics := r.get("/metrics"); c.want != "" && (gotPercent != -1 || !strings.Contains(metrics, c.want)) {
				t.Errorf("GOGC %d, and the metrics lack %q", gotPercent, c.want)
			}
			r.signals <- syscall.SIGTERM
			if err := r.wait(); err != nil {
				t.Error(err)
			}
			if p, l := currentPacing(); p != percent || l != limit {
				t.Errorf("afterwards: GOGC %d, GOMEMLIMIT %d", p, l)
			}
		})
	}
}

// currentPacing returns GOGC and GOMEMLIMIT as they are in force.
func currentPacing() (percent int, limit int64) {
	percent = debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	return percent, debug.SetMemoryLimit(-1)
}

func TestTheSizeFollowsWhatIsInUse(t *testing.T) {
	_, before := currentPacing()
	defer debug.SetMemoryLimit(before)
	const floor = 1 // byte: whatever is in use is more
	debug.SetMemoryLimit(math.MaxInt64)
	held := make([]byte, 64*mib)
	runtime.GC()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	done := make(chan struct{})
	go func() {
		defer close(done)
		pace(floor, 0).follow(ctx, time.Millisecond)
	}()
	defer func() { cancel(); <-done }()
	for limit := int64(math.MaxInt64); limit < 128*mib || limit > 1024*mib; limit = debug.SetMemoryLimit(-1) {
		if ctx.Err() != nil {
			t.Fatalf("with %d MiB in use the size is %d MiB", len(held)/mib, limit/mib)
		}
		runtime.Gosched()
	}
	runtime.KeepAlive(held)
}
