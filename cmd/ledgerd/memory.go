// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"
)

// By GOGC alone, a process that has little in use collects its garbage far too often: ledgerd has a few MiB in use and makes as much
// garbage with a few hundred calls. So it collects when it has grown to a size, as long as what is in use leaves room below it: beyond
// that it collects when that has doubled, as GOGC=100 does.

const (
	// usualFloor is the size of a process where nothing else is said. With its program it stays below 200 MiB, whatever waits in the store.
	usualFloor = 160 << 20
	// byRuntime leaves all to the runtime.
	byRuntime = "runtime"
	// paceInterval is how often it is looked whether what is in use leaves room.
	paceInterval = time.Second
)

// pacing is between what sizes a process collects its garbage, in bytes.
type pacing struct{ floor, ceiling int64 }

// pace is the pacing of a container that has so much memory; 0: there is no bound. floor 0 is the usual one.
func pace(floor, container int64) pacing {
	p := pacing{floor, math.MaxInt64}
	if floor == 0 {
		p.floor = usualFloor
	}
	if container > 0 {
		p.ceiling = container - container/100*15 // who has more is killed: better to look for garbage all the time
		if floor == 0 {
			p.floor = min(p.floor, container/2)
		}
	}
	return p
}

// limit is the size at which to collect next, with so much in use.
func (p pacing) limit(inUse int64) int64 {
	if inUse > math.MaxInt64/2 {
		return p.ceiling
	}
	return min(max(p.floor, 2*inUse), p.ceiling)
}

var errMemory = errors.New("must be auto, runtime, or a size of 32MiB or more, such as 512MiB or 2GiB")

// parseMemory reads the setting; 0: none is said.
func parseMemory(text string) (int64, error) {
	if text == auto || text == byRuntime {
		return 0, nil
	}
	for unit, factor := range map[string]int64{"MiB": 1 << 20, "GiB": 1 << 30} {
		if digits, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.ParseInt(digits, 10, 32)
			if err == nil && n*factor >= 32<<20 {
				return n * factor, nil
			}
		}
	}
	return 0, errMemory
}

// paceCollector paces the collector until the returned function is called. GOGC and GOMEMLIMIT count where the setting says nothing.
func (p program) paceCollector(ctx context.Context, setting string, container int64) (stop func()) {
	floor, _ := parseMemory(setting) // has been validated
	explicit := p.variable("GOGC") != "" || p.variable("GOMEMLIMIT") != ""
	if setting == byRuntime || setting == auto && explicit {
		return func() {}
	}
	paced := pace(floor, container)
	percent, limit := debug.SetGCPercent(-1), debug.SetMemoryLimit(paced.limit(0))
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		paced.follow(ctx, paceInterval)
	}()
	return func() {
		cancel()
		<-done
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	}
}

// follow moves the limit with what is in use. Each move stops the world for a moment: a small one is not worth it.
func (p pacing) follow(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	last := p.limit(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		next := p.limit(inUse())
		if next == last || next != p.floor && max(next, last)-min(next, last) < last/10 {
			continue
		}
		debug.SetMemoryLimit(next)
		last = next
	}
}

// inUse is what the collector has left of the heap, and what is no heap: stacks, and what the runtime itself needs.
func inUse() int64 {
	s := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(s)
	n := s[0].Value.Uint64() + s[1].Value.Uint64()
	for _, heap := range s[2:] {
		n -= heap.Value.Uint64()
	}
	return int64(n)
}

// containerMemory is how much memory the control group of this process has, as Linux tells it below root; 0: there is no bound.
func containerMemory(root fs.FS) int64 {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0
	}
	var least int64
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		at, file := "sys/fs/cgroup", "memory.max"
		if fields[1] != "" { // version 1
			if !strings.Contains(","+fields[1]+",", ",memory,") {
				continue
			}
			at, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		}
		// Groups above bound those below. In a container its own group is the top, whatever it is called outside.
		for group := path.Clean("/" + fields[2]); ; group = path.Dir(group) {
			if n := bound(root, path.Join(at, group, file)); n > 0 && (least == 0 || n < least) {
				least = n
			}
			if group == "/" {
				break
			}
		}
	}
	return least
}

// bound reads one of them; 0: none.
func bound(root fs.FS, name string) int64 {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	if err != nil || n > 1<<60 { // "max", or what version 1 calls none
		return 0
	}
	return n
}
