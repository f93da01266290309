// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"
)

// Options sets up a service.
type Options struct {
	// Dir keeps the effect log; it is made if it does not exist. Required. One
	// service a directory.
	Dir string
	// Addr is the TCP address; unset: a free port of 127.0.0.1.
	Addr string
	// KeyWindow is how long payments remember a key after its effect; unset:
	// 24 hours.
	KeyWindow time.Duration
	// Now is the service's clock, for windows and times in answers; unset: the
	// system's. Delays of knobs always take real time.
	Now func() time.Time
}

// Server is a running service.
type Server struct {
	now       func() time.Time
	keyWindow time.Duration
	logPath   string
	addr      string
	http      *http.Server

	mu     sync.Mutex
	log    *logWriter
	book   book
	knobs  map[Service]*knobList
	active map[Service]int
	timers map[int64]*time.Timer // by the line that accepted the effect
	closed bool

	closing     chan struct{}
	requests    sync.WaitGroup
	connections sync.WaitGroup
	served      chan error
	close       func() error

	stopWatching func() bool
}

// Start rebuilds the state from the effect log in opts.Dir and serves until
// the context ends or Close is called.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Dir == "" {
		return nil, errors.New("dir: is required")
	}
	if opts.KeyWindow < 0 {
		return nil, errors.New("key window: must not be negative")
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("dir: %w", err)
	}
	s := &Server{
		now:       opts.Now,
		keyWindow: opts.KeyWindow,
		logPath:   LogPath(opts.Dir),
		book:      book{issued: map[string]int{}},
		knobs:     map[Service]*knobList{Tickets: {}, Payments: {}, Messages: {}},
		active:    map[Service]int{},
		timers:    map[int64]*time.Timer{},
		closing:   make(chan struct{}),
		served:    make(chan error, 1),
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.keyWindow == 0 {
		s.keyWindow = 24 * time.Hour
	}
	addr := opts.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	// The address first: a second service on the directory of a running one is
	// then refused as a rule before it touches the log.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	s.addr = listener.Addr().String()
	past, log, err := openLog(s.logPath)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	s.log = log
	for _, e := range past.Entries {
		s.book.apply(e)
	}
	s.mu.Lock()
	for _, p := range s.book.pending {
		s.schedule(p)
	}
	s.mu.Unlock()

	s.http = &http.Server{Handler: s.routes(), ReadHeaderTimeout: 10 * time.Second, ConnState: s.count}
	go func() { s.served <- s.http.Serve(listener) }()
	s.close = sync.OnceValue(s.shutDown)
	s.stopWatching = context.AfterFunc(ctx, func() { _ = s.close() })
	return s, nil
}

// URL is the service's base URL.
func (s *Server) URL() string { return "http://" + s.addr }

// LogPath is the path of the effect log.
func (s *Server) LogPath() string { return s.logPath }

// count knows how many connections have a goroutine. The server does not wait
// for them itself, and one whose body was too long outlives its request by half
// a second.
func (s *Server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.connections.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.connections.Done()
	}
}

// Close ends the service and waits for its requests and connections: those that
// hang are cut without an answer. Effects that have not landed stay in the log and land
// after the next start.
func (s *Server) Close() error {
	s.stopWatching()
	return s.close()
}

func (s *Server) shutDown() error {
	s.mu.Lock()
	s.closed = true
	for _, t := range s.timers {
		t.Stop()
	}
	s.mu.Unlock()
	close(s.closing)
	err := s.http.Close()
	if serveErr := <-s.served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	s.requests.Wait()
	s.connections.Wait()
	return errors.Join(err, s.log.file.Close())
}

// SetKnobs replaces the knobs of a service; none clears them.
func (s *Server) SetKnobs(service Service, knobs ...Knob) error {
	if !service.known() {
		return Knob{}.Validate(service)
	}
	for _, k := range knobs {
		if err := k.Validate(service); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	list := knobList(slices.Clone(knobs))
	s.knobs[service] = &list
	return nil
}

// Knobs returns the knobs of a service that have requests left.
func (s *Server) Knobs(service Service) []Knob {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.knobs[service]; l != nil {
		return slices.Clone(*l)
	}
	return nil
}

// Land makes all effects that late_commit holds back land now, in the order in
// which they were accepted, and returns their number.
func (s *Server) Land() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for len(s.book.pending) > 0 {
		if err := s.land(s.book.pending[0]); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

// schedule lets an accepted effect land when it is due. The caller holds mu.
func (s *Server) schedule(accepted Entry) {
	line := accepted.Sequence
	s.timers[line] = time.AfterFunc(max(0, accepted.Due.Sub(s.now())), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, waiting := s.timers[line]; waiting && !s.closed {
			// A log that cannot be written fails every later request as well;
			// there is nobody to tell here.
			_ = s.land(accepted)
		}
	})
}

// land makes an accepted effect. The caller holds mu.
func (s *Server) land(accepted Entry) error {
	if t := s.timers[accepted.Sequence]; t != nil {
		t.Stop()
		delete(s.timers, accepted.Sequence)
	}
	e := accepted
	e.Kind, e.Due, e.AcceptedBy = Effect, time.Time{}, accepted.Sequence
	return s.record(e)
}

// record writes a line, then brings it into the book. The caller holds mu.
func (s *Server) record(e Entry) error {
	e.Time = s.now()
	e, err := s.log.append(e)
	if err != nil {
		return err
	}
	s.book.apply(e)
	return nil
}
