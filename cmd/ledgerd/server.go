// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/failpoint"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// contracts are those in force.
type contracts interface {
	ledger.Contracts
	Declared(tool ledger.Tool) (contract.Contract, bool)
	// Tools are those that have a contract.
	Tools() []ledger.Tool
	Strict() bool
	// Youngest is how old an operation is at least before its age may matter.
	Youngest() time.Duration
	// Keep has those in force kept now, and others before they come into force.
	Keep(keep func(*contract.Set) error) error
}

// reloader is a file, or several, that may change while the server runs.
type reloader interface {
	Run(ctx context.Context, interval time.Duration)
	Reload() (changed bool, err error)
}

// parts are what serve and dev put together in different ways, and a server runs in the same way.
type parts struct {
	config         Config
	log            *slog.Logger
	now            func() time.Time
	telemetry      *telemetry
	store          database
	clock          *ledger.Clock
	policy         func() *authz.Policy
	contracts      contracts
	saved          *savedContracts
	replayService  ledger.Replays // nil: nobody is asked
	material       authz.MaterialSource
	ring           *fingerprint.Ring
	reloaders      []reloader
	openReflection bool
}

// addresses are where a running server listens.
type addresses struct{ GRPC, Admin string }

// server is a running ledgerd.
type server struct {
	parts
	ledger    *ledger.Ledger
	grpc      *grpc.Server
	health    *health.Server
	admin     *http.Server
	readiness *readiness
	addresses addresses
	recovery  *recoverer // nil: others recover
	// noLeases: calls that would have to be finished with another instance are refused.
	noLeases atomic.Bool
	// endStreams ends what would otherwise go on for ever, such as watching the health.
	endStreams context.CancelFunc

	grpcListener, adminListener net.Listener
}

// newServer opens the listeners. A caller that gets no error must run the server: that closes them.
func newServer(ctx context.Context, p parts) (_ *server, err error) {
	if err := failpoint.Hit(ctx, failpoint.ServeBeforeListen); err != nil {
		return nil, err
	}
	s := &server{parts: p, ledger: ledger.New(p.store, p.contracts).Watching(p.clock)}
	streams, end := context.WithCancel(context.WithoutCancel(ctx))
	s.endStreams = end
	defer func() {
		if err != nil {
			end()
			if s.grpc != nil {
				s.grpc.Stop() // it has workers already
			}
		}
	}()
	grpcConns, err := newConnections("grpc", p.config.shares(), p.telemetry.meter())
	if err != nil {
		return nil, err
	}
	adminConns, err := newConnections("admin", adminShares, p.telemetry.meter())
	if err != nil {
		return nil, err
	}
	if p.config.Recovery == recoveryOn {
		if s.recovery, err = newRecoverer(p, s.ledger); err != nil {
			return nil, err
		}
	}
	if s.grpc, s.health, err = grpcServer(p, s.ledger, grpcConns, s.noLeases.Load, streams); err != nil {
		return nil, err
	}
	s.readiness = &readiness{now: p.now, certificateEnd: func() time.Time { return p.material.Current().NotAfter() }}
	if err = errors.Join(p.telemetry.watchCertificates(p.material), p.telemetry.watchSecrets(p.ring)); err != nil {
		return nil, err
	}
	s.admin = adminServer(s.readiness, p.telemetry.registry, p.log)
	if s.grpcListener, err = listen(ctx, "grpc-addr", p.config.GRPCAddr, grpcConns); err != nil {
		return nil, err
	}
	if s.adminListener, err = listen(ctx, "admin-addr", p.config.AdminAddr, adminConns); err != nil {
		return nil, errors.Join(err, s.grpcListener.Close())
	}
	s.addresses = addresses{GRPC: s.grpcListener.Addr().String(), Admin: s.adminListener.Addr().String()}
	return s, nil
}

// adminShares are those of the admin listener, where there are no principals: probes and scrapes are few.
var adminShares = shares{most: 64, address: 16}

// listen opens a listener whose connections are shared.
func listen(ctx context.Context, setting, addr string, shared *connections) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", addr)
	if err == nil {
		return sharedListener{l, shared}, nil
	}
	why := err.Error()
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		why = "another program listens there: end it, or give another address (port 0 takes a free one)"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		why = "this host has no such address: give one of its own, or :port for all of them"
	case errors.Is(err, syscall.EACCES):
		why = "this user may not listen there: give a port from 1024 on, or the right to the process"
	}
	return nil, ruleError(setting, addr+": "+why)
}

// errForced says that somebody did not want to wait.
var errForced = errors.New("stopped at once by a second signal")

// run serves until ctx ends or a signal says stop, then drains. A second signal ends it at once. ready is called when the server
// serves.
func (s *server) run(ctx context.Context, signals <-chan os.Signal, ready func(addresses)) error {
	// What runs beside the server ends with it, not with ctx: a reload during the drain does no harm.
	beside, stop := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	for _, r := range s.reloaders {
		group.Go(func() { r.Run(beside, s.config.ReloadInterval) })
	}
	s.recovery.start(beside, &group)
	failed := make(chan error, 2)
	group.Go(func() { failed <- s.grpc.Serve(s.grpcListener) })
	group.Go(func() { failed <- s.admin.Serve(s.adminListener) })

	s.readiness.started.Store(true)
	s.setHealth(grpc_health_v1.HealthCheckResponse_SERVING)
	s.log.Info("serving", "grpc", s.addresses.GRPC, "admin", s.addresses.Admin, "version", thisRelease().Version)
	if ready != nil {
		ready(s.addresses)
	}
	for {
		select {
		case err := <-failed:
			s.log.Error("a listener has failed", "error", err)
			s.stop(handlerBound)
			return fmt.Errorf("serve: %w", err)
		case <-ctx.Done():
			return s.drain(signals)
		case signal := <-signals:
			if signal == syscall.SIGHUP {
				s.reload()
				continue
			}
			return s.drain(signals)
		}
	}
}

func (s *server) setHealth(status grpc_health_v1.HealthCheckResponse_ServingStatus) {
	for _, name := range healthNames {
		s.health.SetServingStatus(name, status)
	}
}

// reload looks at every file now. Faults are reported by the reloaders.
func (s *server) reload() {
	for _, r := range s.reloaders {
		_, _ = r.Reload()
	}
}

// drain stops without failing anybody: unready first, then time for load balancers to notice, then waiting callers get the current
// view, then calls finish. Whatever is still running after the timeout is cut off; its callers send it again elsewhere.
func (s *server) drain(signals <-chan os.Signal) error {
	s.readiness.draining.Store(true)
	s.health.Shutdown()
	s.log.Info("draining", "delay", s.config.DrainDelay.String(), "timeout", s.config.DrainTimeout.String())
	if err := failpoint.Hit(context.Background(), failpoint.ServeDrainStarted); err != nil {
		s.stop(handlerBound)
		return err
	}
	hurry := make(chan struct{})
	over := make(chan struct{})
	defer close(over)
	go func() {
		for {
			select {
			case signal := <-signals:
				if signal != syscall.SIGHUP {
					close(hurry)
					return
				}
			case <-over:
				return
			}
		}
	}()
	if !pause(s.config.DrainDelay, hurry) {
		s.stop(hurriedBound)
		return errForced
	}
	s.letGo()
	graceful := make(chan struct{})
	go func() { defer close(graceful); s.grpc.GracefulStop(); s.recovery.wait() }()
	timeout := time.NewTimer(s.config.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-graceful:
	case <-hurry:
		s.stop(hurriedBound)
		return errForced
	case <-timeout.C:
		s.log.Warn("calls were still running when the drain timeout was over")
	}
	s.stop(handlerBound)
	return nil
}

// pause waits; false: somebody is in a hurry.
func pause(d time.Duration, hurry <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-hurry:
		return false
	}
}

// How long handlers get to notice that their connections are gone. The first is more than the store's own limit for a write, 5 seconds,
// and 3 more where the outcome of its commit can't be seen.
const (
	handlerBound = 10 * time.Second
	hurriedBound = time.Second
)

// letGo ends what waits: callers get the current view and nothing new, streams end.
func (s *server) letGo() {
	s.noLeases.Store(true)
	s.recovery.stop()
	s.ledger.Drain()
	s.endStreams()
}

// stop closes every connection. On a server that has stopped it only closes the admin listener, which goes last: until here it says
// that the server is not ready.
func (s *server) stop(bound time.Duration) {
	s.letGo()
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.grpc.Stop() }()
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		s.log.Warn("a handler did not end with its connection")
	}
	if err := s.admin.Close(); err != nil {
		s.log.Warn("the admin listener did not close", "error", err)
	}
}
