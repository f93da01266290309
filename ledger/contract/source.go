// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// Report is told about reloads: err is nil when new contracts came into force or the file is good again. A fault is told once, not at
// every poll that still finds it. It is called from the reloading goroutine and must not block.
type Report func(err error)

// errUnstable says that a file changed while it was read; the next poll reads it again.
var errUnstable = errors.New("the contracts changed while they were read")

// Read gives the files of a path: itself, or those of a directory whose names end in .yaml or .yml. Together they are one set. What begins
// with a dot is passed over, as it is what mounts of orchestrators keep their links in; directories below are refused, lest a
// contract in one be missed without a word.
func Read(path string) ([]File, error) {
	about, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read contracts: %w", err)
	}
	if !about.IsDir() {
		data, err := readFile(path)
		return []File{{Name: path, Data: data}}, err
	}
	entries, err := os.ReadDir(path) // sorted
	if err != nil {
		return nil, fmt.Errorf("read contracts: %w", err)
	}
	var files []File
	for _, entry := range entries {
		full := filepath.Join(path, entry.Name())
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		about, err := os.Stat(full) // of what a link leads to
		switch ext := filepath.Ext(full); {
		case err != nil:
			return nil, fmt.Errorf("read contracts: %w", err)
		case about.IsDir():
			return nil, &Error{File: full, Rule: "contracts are read from the files of one directory, not from directories below it; move the files up, or begin its name with a dot"}
		case ext != ".yaml" && ext != ".yml":
			continue
		}
		data, err := readFile(full)
		if err != nil {
			return nil, err
		}
		files = append(files, File{Name: full, Data: data})
	}
	if len(files) == 0 {
		return nil, &Error{File: path, Rule: "has no file whose name ends in .yaml; write one that begins with tools:"}
	}
	return files, nil
}

// readFile reads no more of a file than is needed to know that it is too long.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read contracts: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read contracts: %w", err)
	}
	return data, nil
}

// Load reads and checks the contracts of a file or directory. The error joins every fault found, each an *Error, or is the operating
// system's.
func Load(path string) (*Set, error) {
	files, err := Read(path)
	if err != nil {
		return nil, err
	}
	return ParseFiles(files...)
}

// Source keeps the last good contracts of a file or directory. It compares contents, not times: a symbolic link that is moved elsewhere
// is a change like any other. Any number of goroutines may ask it.
type Source struct {
	path   string
	report Report

	current atomic.Pointer[Set]

	mu      sync.Mutex // held while the files are read; guards what follows
	inForce []File
	failed  string // the last fault; "" while all is well
	keep    func(*Set) error
}

var _ ledger.Contracts = (*Source)(nil)

// Open reads the file or directory for the first time; an error means that there are no contracts at all. report may be nil.
func Open(path string, report Report) (*Source, error) {
	if report == nil {
		report = func(error) {}
	}
	s := &Source{path: path, report: report}
	files, err := readStable(path)
	if err != nil {
		return nil, err
	}
	set, err := ParseFiles(files...)
	if err != nil {
		return nil, err
	}
	s.current.Store(set)
	s.inForce = files
	return s, nil
}

// Current returns the contracts in force.
func (s *Source) Current() *Set { return s.current.Load() }

// Contract in force for a tool now; for one that is not declared the default, and false.
func (s *Source) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	return s.Current().Contract(tool)
}

// Declared is all that is declared about a tool now.
func (s *Source) Declared(tool ledger.Tool) (Contract, bool) { return s.Current().Declared(tool) }

// Tools are the declared tools, sorted.
func (s *Source) Tools() []ledger.Tool { return s.Current().Tools() }

// Strict reports whether tools without a contract are to be refused now.
func (s *Source) Strict() bool { return s.Current().Strict() }

// Youngest is that of the set in force.
func (s *Source) Youngest() time.Duration { return s.Current().Youngest() }

// Keep has each set kept before it comes into force, so that what it judges can be judged by it later, also elsewhere: the one in force now
// and, at each reload, the one that is to be. Where that fails, what is in force stays, as it does for a broken file. At a reload that
// finds nothing changed, keep is called with what is in force: it is there again soon where what keeps it has lost it.
func (s *Source) Keep(keep func(*Set) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := keep(s.Current()); err != nil {
		return err
	}
	s.keep = keep
	return nil
}

// Reload reads them now and puts changed and good contracts into force. After an error what is in force stays.
func (s *Source) Reload() (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	files, err := readStable(s.path)
	if err == nil && same(files, s.inForce) {
		if s.keep != nil {
			_ = s.keep(s.Current()) // it was kept once; the next look does it again
		}
		s.settle(nil)
		return false, nil
	}
	var set *Set
	if err == nil {
		set, err = ParseFiles(files...)
	}
	if err == nil && s.keep != nil {
		err = s.keep(set)
	}
	if err != nil {
		s.settle(err)
		return false, err
	}
	s.current.Store(set)
	s.inForce = files
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

// readStable reads until two readings in a row agree: the first half of a file that is being written can be good YAML with fewer tools, and
// so can the first files of a directory.
func readStable(path string) ([]File, error) {
	const readings = 4
	var last []File
	for i := range readings {
		files, err := Read(path)
		if err != nil {
			return nil, err
		}
		if i > 0 && same(files, last) {
			return files, nil
		}
		last = files
	}
	return nil, errUnstable
}

func same(a, b []File) bool {
	return slices.EqualFunc(a, b, func(a, b File) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) })
}
