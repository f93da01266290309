// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	livePath  = "/livez"
	readyPath = "/readyz"
)

// readiness is what load balancers go by. A store that can't be reached later on does not count: calls then say so themselves, and
// taking every instance out at once would help nobody.
type readiness struct {
	started  atomic.Bool // the store was reached, its schema fits, files are loaded, listeners are open
	draining atomic.Bool
	// certificateEnd is the end of the life of the server's certificate; nil: it has none.
	certificateEnd func() time.Time
	now            func() time.Time
}

type check struct {
	name string
	ok   bool
}

func (r *readiness) checks() []check {
	checks := []check{{"started", r.started.Load()}, {"not-draining", !r.draining.Load()}}
	if r.certificateEnd != nil {
		checks = append(checks, check{"certificate", r.now().Before(r.certificateEnd())})
	}
	return checks
}

// ServeHTTP answers /readyz: 200 or 503; ?verbose lists the checks.
func (r *readiness) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	ready := true
	var text strings.Builder
	for _, c := range r.checks() {
		mark := "+"
		if !c.ok {
			mark, ready = "-", false
		}
		fmt.Fprintf(&text, "[%s] %s\n", mark, c.name)
	}
	if !request.URL.Query().Has("verbose") {
		text.Reset()
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	if ready {
		text.WriteString("ready\n")
	} else {
		text.WriteString("not ready\n")
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write([]byte(text.String()))
}

// adminServer serves health and metrics, without any data of operations.
func adminServer(r *readiness, metrics prometheus.Gatherer, log *slog.Logger) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+livePath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("alive\n"))
	})
	mux.Handle("GET "+readyPath, r)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	return &http.Server{
		Handler:           mux,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      15 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    8 << 10,
	}
}
