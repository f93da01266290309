// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Kind is what a line of the effect log records.
type Kind string

// The kinds of lines.
const (
	// Send: a request that asks for an effect has arrived.
	Send Kind = "send"
	// Accepted: an effect will land later, also if the process is restarted.
	Accepted Kind = "accepted"
	// Effect: something was created, changed or removed.
	Effect Kind = "effect"
	// Query: a request that asks what exists has arrived.
	Query Kind = "query"
)

// AnyKey counts the lines of all keys, and those without one.
const AnyKey = "*"

// Entry is one line of the effect log.
type Entry struct {
	// Sequence numbers the lines from 1 without a gap.
	Sequence int64 `json:"n"`
	// Time is the service's clock when the line was written.
	Time    time.Time `json:"time"`
	Service Service   `json:"service"`
	Kind    Kind      `json:"kind"`
	// Key is the request's idempotency key; for messages the reference, which
	// the service uses for nothing else.
	Key string `json:"key,omitempty"`
	// Type is ticket, charge, refund or message.
	Type string `json:"type,omitempty"`
	// ID is the resource's.
	ID string `json:"id,omitempty"`
	// Change is created, changed or removed (effects).
	Change string `json:"change,omitempty"`
	// Fault is the knob that this request will suffer from.
	Fault Fault `json:"fault,omitempty"`
	// Active counts the requests at the service, this one included (sends and
	// queries).
	Active int `json:"active,omitempty"`
	// Due is when an accepted effect lands.
	Due time.Time `json:"due,omitzero"`
	// AcceptedBy is the line that accepted an effect which landed later.
	AcceptedBy int64 `json:"accepted_by,omitempty"`
	// Request is a digest of the request, by which payments notice that a key
	// comes with another one.
	Request string `json:"request,omitempty"`
	// Resource is the resource after the effect.
	Resource json.RawMessage `json:"resource,omitempty"`
}

// Log is the service's own account of what happened to it.
type Log struct {
	Entries []Entry
}

// LogPath is the effect log's path in the directory of a service.
func LogPath(dir string) string { return filepath.Join(dir, "effects.jsonl") }

// ReadLog reads an effect log, also while the service writes it or after it
// was killed: a last line without its end was never answered and is left out.
// A file that does not exist is an error that is [os.ErrNotExist].
func ReadLog(path string) (Log, error) {
	log, _, err := readLog(path)
	return log, err
}

// readLog also returns the length of the complete lines in bytes.
func readLog(path string) (Log, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return Log{}, 0, fmt.Errorf("effect log: %w", err)
	}
	defer f.Close()
	var (
		log    Log
		length int64
		r      = bufio.NewReader(f)
	)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return log, length, nil
		}
		if err != nil {
			return Log{}, 0, fmt.Errorf("effect log: %w", err)
		}
		var e Entry
		if err := json.Unmarshal(line, &e); err != nil {
			return Log{}, 0, fmt.Errorf("effect log: line %d cannot be read", len(log.Entries)+1)
		}
		if e.Sequence != int64(len(log.Entries)+1) {
			return Log{}, 0, fmt.Errorf("effect log: line %d has the number of another line", len(log.Entries)+1)
		}
		log.Entries = append(log.Entries, e)
		length += int64(len(line))
	}
}

// Effects counts the effects that were made under the key: resources created,
// changed or removed.
func (l Log) Effects(service Service, key string) int { return l.count(service, Effect, key) }

// Sends counts the requests for an effect that arrived with the key, whatever
// became of them.
func (l Log) Sends(service Service, key string) int { return l.count(service, Send, key) }

// Queries counts the queries for the key. A query for one id has no key.
func (l Log) Queries(service Service, key string) int { return l.count(service, Query, key) }

// MaxConcurrent returns the largest number of requests that the service had at
// one time. Requests that hang count for as long as they do.
func (l Log) MaxConcurrent(service Service) int {
	most := 0
	for _, e := range l.Entries {
		if e.Service == service {
			most = max(most, e.Active)
		}
	}
	return most
}

// Keys returns the keys under which effects were made, in the order of their
// first one.
func (l Log) Keys(service Service) []string {
	var keys []string
	seen := map[string]bool{}
	for _, e := range l.Entries {
		if e.Service == service && e.Kind == Effect && !seen[e.Key] {
			seen[e.Key] = true
			keys = append(keys, e.Key)
		}
	}
	return keys
}

// Created returns the ids of the resources that were created under the key, in
// that order.
func (l Log) Created(service Service, key string) []string {
	var ids []string
	for _, e := range l.Entries {
		if e.Service == service && e.Kind == Effect && e.Change == created && (key == AnyKey || e.Key == key) {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

func (l Log) count(service Service, kind Kind, key string) int {
	n := 0
	for _, e := range l.Entries {
		if e.Service == service && e.Kind == kind && (key == AnyKey || e.Key == key) {
			n++
		}
	}
	return n
}

// logWriter appends lines and forces each to disk.
type logWriter struct {
	file *os.File
	next int64
	err  error // the first failure; nothing is written after it
}

// openLog reads the log at path, cuts off a torn last line and appends to it
// from then on. It makes the file if there is none.
func openLog(path string) (Log, *logWriter, error) {
	log, length, err := readLog(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Log{}, nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return Log{}, nil, fmt.Errorf("effect log: %w", err)
	}
	err = f.Truncate(length)
	if err == nil {
		_, err = f.Seek(length, io.SeekStart)
	}
	if err != nil {
		return Log{}, nil, errors.Join(fmt.Errorf("effect log: %w", err), f.Close())
	}
	return log, &logWriter{file: f, next: int64(len(log.Entries) + 1)}, nil
}

// append writes one line and returns it with its number once it is on disk.
func (w *logWriter) append(e Entry) (Entry, error) {
	if w.err != nil {
		return Entry{}, w.err
	}
	e.Sequence = w.next
	var line bytes.Buffer
	if err := json.NewEncoder(&line).Encode(e); err != nil {
		return Entry{}, fmt.Errorf("effect log: %w", err)
	}
	_, err := w.file.Write(line.Bytes())
	if err == nil {
		err = w.file.Sync()
	}
	if err != nil {
		// Whether the line is there is not known, so neither is its number.
		w.err = fmt.Errorf("effect log: %w", err)
		return Entry{}, w.err
	}
	w.next++
	return e, nil
}
