// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// announcement stands before the URL on the first line that [Main] prints.
const announcement = "target listening on "

// Main is the service as a process: it prints "target listening on URL", then
// serves until the context ends, SIGINT or SIGTERM arrives, or, with
// -until-stdin-closes, its standard input ends. A program that spawns itself
// calls it from a hidden command.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("target", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var opts Options
	flags.StringVar(&opts.Dir, "dir", "", "directory of the effect log (required)")
	flags.StringVar(&opts.Addr, "addr", "127.0.0.1:0", "TCP address")
	flags.DurationVar(&opts.KeyWindow, "key-window", 24*time.Hour, "how long payments remember a key")
	bound := flags.Bool("until-stdin-closes", false, "end when standard input ends")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *bound {
		go func() {
			_, _ = io.Copy(io.Discard, stdin)
			stop()
		}()
	}
	server, err := Start(ctx, opts)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s%s\n", announcement, server.URL())
	<-ctx.Done()
	return server.Close()
}

// SpawnOptions sets up a service in a process of its own.
type SpawnOptions struct {
	// Dir, Addr and KeyWindow are as in [Options].
	Dir       string
	Addr      string
	KeyWindow time.Duration
	// Command is the program that calls [Main], and the arguments before
	// Main's own; unset: the command of this package is built by [Build] into
	// Dir.
	Command []string
	// Env is added to this process's environment.
	Env []string
	// Stderr gets the process's standard error; unset: this process's.
	Stderr io.Writer
}

// Process is a service in a process of its own. It ends with its parent,
// however that ends.
type Process struct {
	url  string
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended

	stdin io.Closer
	once  sync.Once
}

// Build builds the command of this package into dir and returns its path. It
// needs the go tool and the module's source.
func Build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "target")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "github.com/opsledger/opsledger/test/target/cmd/target").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build target: %w: %s", err, out)
	}
	return path, nil
}

// Spawn starts a service process and waits until it listens. The process is
// killed when the context ends, and with this process at the latest. Call Kill
// or Stop to release it.
func Spawn(ctx context.Context, opts SpawnOptions) (*Process, error) {
	if opts.Dir == "" {
		return nil, errors.New("dir: is required")
	}
	dir, err := filepath.Abs(opts.Dir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("dir: %w", err)
	}
	command := opts.Command
	if len(command) == 0 {
		path, err := Build(ctx, dir)
		if err != nil {
			return nil, err
		}
		command = []string{path}
	}
	args := append(append([]string{}, command[1:]...), "-dir", dir, "-until-stdin-closes")
	if opts.Addr != "" {
		args = append(args, "-addr", opts.Addr)
	}
	if opts.KeyWindow != 0 {
		args = append(args, "-key-window", opts.KeyWindow.String())
	}
	cmd := exec.CommandContext(ctx, command[0], args...)
	cmd.Env = append(os.Environ(), opts.Env...)
	cmd.Stderr = opts.Stderr
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	dieWithParent(cmd)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("spawn target: %w", err)
	}
	stdout, write, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("spawn target: %w", err), stdin.Close())
	}
	defer stdout.Close()
	cmd.Stdout = write
	p := &Process{dir: dir, cmd: cmd, done: make(chan struct{}), stdin: stdin}
	started := make(chan error, 1)
	go func() {
		// The signal at the parent's death is bound to the thread that forked:
		// it has to live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		_ = write.Close() // the child has its own copy
		started <- err
		if err == nil {
			_ = cmd.Wait() // its result stays in cmd.ProcessState
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("spawn target: %w", err), stdin.Close())
	}
	// The end of the process, at the latest by the context, ends the read.
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), announcement)
	if err != nil || !ok {
		return nil, errors.Join(errors.New("spawn target: the process did not announce its address"), p.Kill())
	}
	p.url = url
	return p, nil
}

// URL is the service's base URL.
func (p *Process) URL() string { return p.url }

// Addr is the service's TCP address, for a restart at the same one.
func (p *Process) Addr() string { return strings.TrimPrefix(p.url, "http://") }

// LogPath is the path of the effect log.
func (p *Process) LogPath() string { return LogPath(p.dir) }

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process by SIGKILL and waits for its end. A process that has
// ended already is no error.
func (p *Process) Kill() error { return p.end(os.Kill) }

// Stop ends the process by SIGTERM and waits for its end.
func (p *Process) Stop() error { return p.end(syscall.SIGTERM) }

func (p *Process) end(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("end target: %w", err)
	}
	<-p.done
	p.once.Do(func() { _ = p.stdin.Close() })
	return nil
}

// State is how the process ended; nil while it runs.
func (p *Process) State() *os.ProcessState {
	select {
	case <-p.done:
		return p.cmd.ProcessState
	default:
		return nil
	}
}
