// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ticks is how many of the kernel's clock ticks are a second in /proc: USER_HZ is 100 on every architecture that Go runs on.
const ticks = 100

// process is a line of /proc/PID/stat: processor seconds of its own, and of the children that it has waited for.
type process struct {
	Parent        int
	Own, Children float64
}

// parseStat reads such a line. The name is in parentheses and may hold anything, parentheses too.
func parseStat(line []byte) (process, error) {
	end := bytes.LastIndexByte(line, ')')
	if end < 0 {
		return process{}, errors.New("no name in parentheses")
	}
	fields := strings.Fields(string(line[end+1:])) // the first is the third of proc(5)
	if len(fields) < 15 {
		return process{}, errors.New("too few fields")
	}
	var n [5]int
	for i, field := range []int{4, 14, 15, 16, 17} { // ppid, utime, stime, cutime, cstime
		var err error
		if n[i], err = strconv.Atoi(fields[field-3]); err != nil {
			return process{}, fmt.Errorf("field %d: %w", field, err)
		}
	}
	return process{Parent: n[0], Own: float64(n[1]+n[2]) / ticks, Children: float64(n[3]+n[4]) / ticks}, nil
}

func readProcess(pid int) (process, error) {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, err
	}
	return parseStat(line)
}

// ownSeconds of a process without children that matter.
func ownSeconds(pid int) float64 {
	p, err := readProcess(pid)
	if err != nil {
		return 0 // it has ended; the run that misses it says why
	}
	return p.Own
}

// familySeconds are those of a process and all its children, gone or not: PostgreSQL.
func familySeconds(pid int) float64 {
	parent, err := readProcess(pid)
	if err != nil {
		return 0
	}
	sum := parent.Own + parent.Children
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well formed
	for _, name := range stats {
		line, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended meanwhile, and the parent has its time
		}
		if p, err := parseStat(line); err == nil && p.Parent == pid {
			sum += p.Own
		}
	}
	return sum
}

// parseMachine reads the first line of /proc/stat: the seconds that all processors worked for us, and those taken by the host.
func parseMachine(text []byte) (busy, stolen float64, err error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, errors.New("/proc/stat: no line for all processors")
	}
	var n [8]int // user nice system idle iowait irq softirq steal
	for i := range n {
		if n[i], err = strconv.Atoi(fields[i+1]); err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
	}
	return float64(n[0]+n[1]+n[2]+n[5]+n[6]) / ticks, float64(n[7]) / ticks, nil
}

func machineSeconds() (busy, stolen float64) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	busy, stolen, _ = parseMachine(text)
	return busy, stolen
}

// postmaster is the process that all of a server's processes are children of.
func postmaster(ctx context.Context, dsn string) (int, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	var backend int
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&backend); err != nil {
		return 0, err
	}
	p, err := readProcess(backend)
	return p.Parent, err
}
