// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// child is a process of the demonstration, in a group of its own so that nothing that it started outlives it.
type child struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer // read it after done
	stderr tail
	done   chan struct{}
}

// begin starts a process. It is killed, with its group, when the context ends.
func begin(ctx context.Context, command, env []string, stdin io.Reader) (*child, error) {
	c := &child{cmd: exec.CommandContext(ctx, command[0], command[1:]...), done: make(chan struct{})}
	c.cmd.Env, c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = env, stdin, &c.stdout, &c.stderr
	c.cmd.SysProcAttr = ownGroup()
	c.cmd.Cancel = func() error { return killGroup(c.cmd.Process) }
	// A grandchild that holds the pipes must not hold us.
	c.cmd.WaitDelay = 5 * time.Second
	started := make(chan error, 1)
	go func() {
		// Where the kernel kills a child at its parent's death, it is the death of the thread that forked: it has to live on.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.done)
		err := c.cmd.Start()
		started <- err
		if err == nil {
			_ = c.cmd.Wait() // its result stays in ProcessState
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start process: %w", err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// kill ends the process and its group by SIGKILL, and waits for its end.
func (c *child) kill() {
	select {
	case <-c.done: // its id may be somebody else's by now
	default:
		_ = killGroup(c.cmd.Process)
	}
	<-c.done
}

// wait returns when the process has ended: nil if it ended as it should.
func (c *child) wait() error {
	<-c.done
	if c.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("process %d ended with %s: %s", c.pid(), howItEnded(c.cmd.ProcessState), &c.stderr)
}

// howItEnded is the wait status: "signal 9", "exit 1".
func howItEnded(s *os.ProcessState) string {
	if signal, ok := killedBy(s); ok {
		return fmt.Sprintf("signal %d", signal)
	}
	return fmt.Sprintf("exit %d", s.ExitCode())
}

// tail keeps the end of what is written to it.
type tail struct{ text []byte }

const maxTail = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.text = append(t.text, b...)
	if over := len(t.text) - maxTail; over > 0 {
		t.text = t.text[over:]
	}
	return len(b), nil
}

func (t *tail) String() string { return strings.TrimSpace(string(t.text)) }
