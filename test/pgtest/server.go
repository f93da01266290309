// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNoBinaries says that no PostgreSQL was found on this machine.
var ErrNoBinaries = errors.New("no PostgreSQL binaries: " + install)

const (
	// binVariable names a directory with the programs to use.
	binVariable = "OPSLEDGER_TEST_PGBIN"
	// initdbVariable holds further arguments of initdb, such as another default collation.
	initdbVariable = "OPSLEDGER_TEST_INITDB"

	install = "install the package postgresql-15 (or newer), or set " + binVariable + " to a directory with initdb and postgres"
)

// Options of a server. The zero value is the fast one for suites that do not look at durability.
type Options struct {
	// Durable leaves fsync and full_page_writes on.
	Durable bool
	// Clock gives the server a clock that SetClock sets, as faketime does it.
	Clock bool
	// LogStatements makes the server log every statement with its parameters.
	LogStatements bool
	// Settings are further settings by name.
	Settings map[string]string
	// Auth is how TCP clients prove who they are, a method of pg_hba.conf; empty: not at all. The user is ledger, see Password.
	Auth string
	// Files are put beside the server's data, for settings that name them: only the server can read them.
	Files map[string][]byte
}

// Server is a running throwaway cluster, or one that is not ours.
type Server struct {
	// foreign is nil for our own.
	foreign *foreign

	files
	port int
	cmd  *exec.Cmd
	done chan error
	// primary is whom it has followed since it was made; nil for one that was no standby.
	primary *Server

	mu       sync.Mutex
	prepared map[string]bool
}

// files are what a server is started on, and how.
type files struct {
	bin, dir string
	attr     *syscall.SysProcAttr
	opts     Options
}

// findBinaries returns a directory with initdb and postgres: what the environment names, else the newest that Debian's packages
// installed, else where initdb of PATH really lies.
func findBinaries() (string, error) {
	if d := os.Getenv(binVariable); d != "" {
		for _, name := range []string{"initdb", "postgres"} {
			if _, err := os.Stat(filepath.Join(d, name)); err != nil {
				return "", fmt.Errorf("pgtest: %s: there is no %s in %s: %w; %s", binVariable, name, d, err, install)
			}
		}
		return d, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	if len(found) > 0 {
		newest := slices.MaxFunc(found, func(a, b string) int {
			if len(a) != len(b) { // 9 is older than 15
				return len(a) - len(b)
			}
			return slices.Compare([]byte(a), []byte(b))
		})
		return filepath.Dir(newest), nil
	}
	p, err := exec.LookPath("initdb")
	if err != nil {
		return "", ErrNoBinaries
	}
	if p, err = filepath.EvalSymlinks(p); err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	return filepath.Dir(p), nil
}

// Start runs initdb and postgres, as another user when we are root: postgres refuses to be root.
func Start(ctx context.Context, opts Options) (_ *Server, err error) {
	bin, err := findBinaries()
	if err != nil {
		return nil, err
	}
	f, err := newFiles(bin, opts)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(f.dir)
		}
	}()
	if err := initdb(ctx, bin, f.dir, f.attr); err != nil {
		return nil, err
	}
	if err := f.prepare(); err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	return f.launchAnywhere(ctx)
}

// newFiles makes a directory of its own for a server.
func newFiles(bin string, opts Options) (files, error) {
	// Not t.TempDir: its parent is closed to other users, and a socket's path has room for 107 bytes only.
	dir, err := os.MkdirTemp("/tmp", "pgtest-")
	if err != nil {
		return files{}, fmt.Errorf("pgtest: %w", err)
	}
	attr, err := unprivileged(dir)
	if err != nil {
		return files{}, errors.Join(err, os.RemoveAll(dir))
	}
	return files{bin, dir, attr, opts}, nil
}

// data is where the server's own files are.
func (f files) data() string { return filepath.Join(f.dir, "data") }

// launchAnywhere starts a server at an address of its own.
func (f files) launchAnywhere(ctx context.Context) (s *Server, err error) {
	for range 3 { // the free port that was found may be taken by somebody else a moment later
		if s, err = f.launch(ctx, 0); err == nil {
			return s, nil
		}
	}
	return nil, err
}

// initdb makes the files of a cluster.
func initdb(ctx context.Context, bin, dir string, attr *syscall.SysProcAttr) error {
	args := append([]string{
		"-D", filepath.Join(dir, "data"), "-U", "ledger", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions",
	}, strings.Fields(os.Getenv(initdbVariable))...)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), args...)
	cmd.Dir, cmd.SysProcAttr, cmd.Env = dir, attr, environment()
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, fs.ErrPermission): // it was not even started
		return fmt.Errorf("pgtest: %w: user %d must be able to run it, since PostgreSQL refuses to be root: its folders must be open to others",
			err, uid(attr))
	case err != nil:
		return fmt.Errorf("pgtest: %s: %w: %s", cmd.Path, err, out)
	}
	return nil
}

// prepare writes what a server finds beside its data. By the socket everybody is let in: by it a server is administered, and followed.
func (f files) prepare() error {
	beside := maps.Clone(f.opts.Files)
	if f.opts.Auth != "" {
		if beside == nil {
			beside = map[string][]byte{}
		}
		beside["pg_hba.conf"] = fmt.Appendf(nil, "local all,replication all trust\nhost all all all %s\n", f.opts.Auth)
	}
	for name, content := range beside {
		if err := f.write(name, content); err != nil {
			return err
		}
	}
	return nil
}

// unprivileged returns how to start a process that is not root, and gives it dir.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{}
	if os.Getuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("pgtest: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, nil
}

// uid of what is started so.
func uid(attr *syscall.SysProcAttr) int {
	if attr.Credential == nil {
		return os.Getuid()
	}
	return int(attr.Credential.Uid)
}

func environment() []string { return []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"} }

// launch starts a server on files that are there; port 0 is a free one.
func (f files) launch(ctx context.Context, port int) (*Server, error) {
	if port == 0 {
		var err error
		if port, err = freePort(ctx); err != nil {
			return nil, err
		}
	}
	settings := map[string]string{
		"listen_addresses": "127.0.0.1", "port": strconv.Itoa(port), "unix_socket_directories": f.dir,
		"max_connections": "200", "shared_buffers": "64MB", "log_line_prefix": "%m [%p] ",
	}
	if !f.opts.Durable {
		settings["fsync"], settings["full_page_writes"] = "off", "off"
	}
	if f.opts.LogStatements {
		settings["log_statement"], settings["log_min_duration_statement"] = "all", "0"
	}
	args := []string{"-D", f.data()}
	for name, value := range settings {
		args = append(args, "-c", name+"="+value)
	}
	for name, value := range f.opts.Settings { // the last one counts
		args = append(args, "-c", name+"="+value)
	}
	s := &Server{files: f, port: port, done: make(chan error, 1)}
	log, err := os.Create(s.LogFile())
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	defer func() { _ = log.Close() }()
	s.cmd = exec.Command(filepath.Join(f.bin, "postgres"), args...)
	s.cmd.Dir, s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = f.dir, environment(), log, log
	if f.opts.Clock {
		if s.cmd.Env, err = clocked(s.cmd.Env, f.dir); err != nil {
			return nil, err
		}
	}
	own := *f.attr
	own.Pdeathsig, own.Setpgid = syscall.SIGQUIT, true // SIGQUIT is an immediate shutdown
	s.cmd.SysProcAttr = &own
	started := make(chan error)
	go func() {
		// Pdeathsig follows the thread that forked: this goroutine keeps it for the server's life.
		runtime.LockOSThread()
		if err := s.cmd.Start(); err != nil {
			started <- err
			return
		}
		close(started)
		s.done <- s.cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	return s, s.await(ctx)
}

// await polls, since a server that starts gives no sign: it connects until it is let in.
func (s *Server) await(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var last error
	for range 500 {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		last = err
		select {
		case err := <-s.done: // the port was taken, or a setting is wrong
			s.done <- err
			return s.failed(err)
		case <-ctx.Done():
			s.kill()
			return s.failed(ctx.Err())
		case <-tick.C:
		}
	}
	s.kill()
	return s.failed(last)
}

func (s *Server) failed(err error) error {
	log, readErr := os.ReadFile(s.LogFile())
	return errors.Join(fmt.Errorf("pgtest: postgres did not start: %w: %s", err, log), readErr)
}

// freePort asks the system for a TCP port that nobody uses now.
func freePort(ctx context.Context) (int, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("pgtest: %w", err)
	}
	addr, ok := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil || !ok {
		return 0, fmt.Errorf("pgtest: no free port: %w", err)
	}
	return addr.Port, nil
}

// DSN of a database, as a keyword string: by the server's unix socket where it is ours.
func (s *Server) DSN(database string) string {
	if s.foreign != nil {
		return s.foreign.of(database)
	}
	return fmt.Sprintf("host=%s port=%d user=ledger dbname=%s", s.dir, s.port, database)
}

// TCPDSN is the DSN of a database by TCP at host:port: Addr, or that of a proxy in front of it.
func (s *Server) TCPDSN(hostPort, database string) (string, error) {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	at := fmt.Sprintf("host=%s port=%s sslmode=disable", host, port)
	if s.foreign != nil {
		return s.foreign.of(database) + " " + at, nil
	}
	return fmt.Sprintf("%s user=ledger dbname=%s", at, database), nil
}

// Addr is host:port where the server listens on TCP, for proxies: of one that is not ours only where they can read what is said.
func (s *Server) Addr() string {
	if s.foreign != nil {
		return s.foreign.addr
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
}

// LogFile is the path of the server's own log.
func (s *Server) LogFile() string { return filepath.Join(s.dir, "log") }

// The ways to stop a server, as pg_ctl names them.
const (
	Fast      = syscall.SIGINT  // transactions are rolled back, and there is a checkpoint
	Immediate = syscall.SIGQUIT // its processes end at once, and the next start recovers
)

// Restart stops the server in one of these ways, and starts it again at the same address.
func (s *Server) Restart(ctx context.Context, how syscall.Signal) error {
	if err := s.end(how); err != nil {
		return err
	}
	return s.begin(ctx)
}

func (s *Server) end(how syscall.Signal) error {
	if err := s.cmd.Process.Signal(how); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	err := <-s.done
	s.done <- err // for Stop
	if err != nil && how == Fast {
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}

// begin starts a server that has ended again.
func (s *Server) begin(ctx context.Context) error {
	next, err := s.launch(ctx, s.port)
	if err != nil {
		return err
	}
	s.port, s.cmd, s.done = next.port, next.cmd, next.done
	return nil
}

// Demote restarts the server as a standby that follows nobody: it can be read and takes no writes.
func (s *Server) Demote(ctx context.Context) error {
	if err := s.end(Fast); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.data(), "standby.signal"), nil, 0o644); err != nil { // it is only looked for
		return fmt.Errorf("pgtest: %w", err)
	}
	return s.begin(ctx)
}

// Stop ends the server at once and removes its files.
func (s *Server) Stop() error {
	s.kill()
	if err := os.RemoveAll(s.dir); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}

func (s *Server) kill() {
	_ = s.cmd.Process.Signal(syscall.SIGQUIT) // it may have ended by itself
	s.done <- <-s.done
}
