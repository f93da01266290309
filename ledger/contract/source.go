// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// Report is told about reloads: err is nil when new contracts came into force or the file is good again. A fault is told once, not at
// every poll that still finds it. It is called from the reloading goroutine and must not block.
type Report func(err error)

// errUnstable says that the file changed while it was read; the next poll reads it again.
var errUnstable = errors.New("the contracts' file changed while it was read")

// Source keeps the last good contracts of a file. It compares contents, not times: a symbolic link that is moved elsewhere is a change
// like any other. Any number of goroutines may ask it.
type Source struct {
	path   string
	report Report

	current atomic.Pointer[Set]

	mu      sync.Mutex // held while the file is read; guards what follows
	inForce []byte
	failed  string // the last fault; "" while all is well
}

var _ ledger.Contracts = (*Source)(nil)

// Open reads the file for the first time; an error means that there are no contracts at all. report may be nil.
func Open(path string, report Report) (*Source, error) {
	if report == nil {
		report = func(error) {}
	}
	s := &Source{path: path, report: report}
	data, err := readStable(path)
	if err != nil {
		return nil, err
	}
	set, err := Parse(path, data)
	if err != nil {
		return nil, err
	}
	s.current.Store(set)
	s.inForce = data
	return s, nil
}

// Current returns the contracts in force.
func (s *Source) Current() *Set { return s.current.Load() }

// Contract in force for a tool now; for one that is not declared the default, and false.
func (s *Source) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	return s.Current().Contract(tool)
}

// Strict reports whether tools without a contract are to be refused now.
func (s *Source) Strict() bool { return s.Current().Strict() }

// Reload reads the file now and puts changed and good contracts into force. After an error what is in force stays.
func (s *Source) Reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := readStable(s.path)
	if err == nil && bytes.Equal(data, s.inForce) {
		s.settle(nil)
		return false, nil
	}
	var set *Set
	if err == nil {
		set, err = Parse(s.path, data)
	}
	if err != nil {
		s.settle(err)
		return false, err
	}
	s.current.Store(set)
	s.inForce = data
	s.failed = ""
	s.report(nil)
	return true, nil
}

// settle tells a fault once, and once that it is gone.
func (s *Source) settle(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != s.failed {
		s.failed = text
		s.report(err)
	}
}

// Run reloads every interval until ctx ends. It blocks; errors go to the report.
func (s *Source) Run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_, _ = s.Reload() // reported
		}
	}
}

// readStable reads until two readings in a row agree: the first half of a file that is being written can be good YAML with fewer tools.
func readStable(path string) ([]byte, error) {
	const readings = 4
	var last []byte
	for i := range readings {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read contracts: %w", err)
		}
		if i > 0 && bytes.Equal(data, last) {
			return data, nil
		}
		last = data
	}
	return nil, errUnstable
}
