// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// Crash is Kill, and starts the server again on what its files hold, at the same address.
func (s *Server) Crash(ctx context.Context) error {
	if err := s.Kill(ctx); err != nil {
		return err
	}
	return s.begin(ctx)
}

// Kill ends all processes of the server by SIGKILL. It returns when they have ended: nobody reads or writes its files any more.
func (s *Server) Kill(ctx context.Context) error {
	parent := s.cmd.Process.Pid
	// Stopped, it neither sees its children end nor starts others.
	err := syscall.Kill(parent, syscall.SIGSTOP)
	children := childrenOf(parent)
	for _, child := range append(children, parent) {
		if killErr := syscall.Kill(child, syscall.SIGKILL); !errors.Is(killErr, syscall.ESRCH) { // it may have ended
			err = errors.Join(err, killErr)
		}
	}
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	s.done <- <-s.done // for Stop
	// The next one waits for nobody to let go of the memory that they share.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for slices.ContainsFunc(children, runs) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("pgtest: the server's processes do not end: %w", ctx.Err())
		}
	}
	return nil
}

// childrenOf a process, as Linux tells.
func childrenOf(parent int) (pids []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, stat := range stats {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if _, of := status(pid); err == nil && of == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// runs reports whether a process has not ended, though nobody may have asked for its exit code yet.
func runs(pid int) bool {
	state, _ := status(pid)
	return state != "" && state != "Z" && state != "X"
}

// status is a process's state and parent; empty where there is none.
func status(pid int) (state string, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:]) // behind the name
	if len(fields) < 2 {
		return "", 0
	}
	parent, _ = strconv.Atoi(string(fields[1]))
	return string(fields[0]), parent
}
