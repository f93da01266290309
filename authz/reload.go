// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Report is told about reloads: kind is what was reloaded ("policy", "tls"), err
// is nil when a new value came into force or the files are good again. A fault
// is told once, not at every poll that still finds it. It is called from the
// reloading goroutine and must not block.
type Report func(kind string, err error)

// errUnstable says that the files changed while they were read; the next poll
// reads them again.
var errUnstable = errors.New("the files changed while they were read")

// Reloader keeps the last good value of a set of files. It compares contents,
// not times: a symbolic link that is moved to another directory, as Kubernetes
// does, is a change like any other.
type Reloader[T any] struct {
	kind   string
	paths  []string
	build  func(contents [][]byte) (T, error)
	report Report

	current atomic.Pointer[T]

	mu      sync.Mutex // held while the files are read; guards what follows
	inForce digest
	faulty  digest // of the contents that were last refused
	failed  string // the last fault; "" while all is well
}

type digest [sha256.Size]byte

// NewReloader reads the files for the first time; an error means that there is
// no value at all. build gets the contents in the order of paths and must refuse
// whatever should not come into force. report may be nil.
func NewReloader[T any](kind string, paths []string, build func(contents [][]byte) (T, error), report Report) (*Reloader[T], error) {
	if report == nil {
		report = func(string, error) {}
	}
	r := &Reloader[T]{kind: kind, paths: slices.Clone(paths), build: build, report: report}
	contents, sum, err := readStable(r.paths)
	if err != nil {
		return nil, err
	}
	value, err := build(contents)
	if err != nil {
		return nil, err
	}
	r.current.Store(&value)
	r.inForce = sum
	return r, nil
}

// NewPolicyReloader is a reloader of one policy file.
func NewPolicyReloader(path string, report Report) (*Reloader[*Policy], error) {
	return NewReloader("policy", []string{path}, func(contents [][]byte) (*Policy, error) {
		return Parse(path, contents[0])
	}, report)
}

// Current returns the value in force.
func (r *Reloader[T]) Current() T { return *r.current.Load() }

// Reload reads the files now and puts a changed and good value into force. After
// an error the value in force is what it was.
func (r *Reloader[T]) Reload() (changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	contents, sum, err := readStable(r.paths)
	if err != nil {
		r.fail(digest{}, err)
		return false, err
	}
	if sum == r.inForce {
		if r.failed != "" {
			r.recovered()
		}
		return false, nil
	}
	value, err := r.build(contents)
	if err != nil {
		r.fail(sum, err)
		return false, err
	}
	r.current.Store(&value)
	r.inForce = sum
	r.recovered()
	return true, nil
}

func (r *Reloader[T]) fail(sum digest, err error) {
	if r.faulty == sum && r.failed == err.Error() {
		return
	}
	r.faulty, r.failed = sum, err.Error()
	r.report(r.kind, err)
}

func (r *Reloader[T]) recovered() {
	r.faulty, r.failed = digest{}, ""
	r.report(r.kind, nil)
}

// Run reloads every interval until ctx ends. It blocks; errors go to the report.
func (r *Reloader[T]) Run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			_, _ = r.Reload() // reported
		}
	}
}

// readStable reads the files until two readings in a row agree, so that a
// certificate of before a swap is not paired with a key of after it.
func readStable(paths []string) ([][]byte, digest, error) {
	return settled(func() ([][]byte, digest, error) {
		contents := make([][]byte, len(paths))
		for i, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, digest{}, err // it names the file
			}
			contents[i] = data
		}
		return contents, sumOf(contents...), nil
	})
}

func settled(read func() ([][]byte, digest, error)) ([][]byte, digest, error) {
	const readings = 4
	var last digest
	for i := range readings {
		contents, sum, err := read()
		if err != nil {
			return nil, digest{}, err
		}
		if i > 0 && sum == last {
			return contents, sum, nil
		}
		last = sum
	}
	return nil, digest{}, errUnstable
}

// sumOf is the digest of several contents, each after its length.
func sumOf(contents ...[]byte) digest {
	sum := sha256.New()
	for _, data := range contents {
		sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(data))))
		sum.Write(data)
	}
	return digest(sum.Sum(nil))
}
