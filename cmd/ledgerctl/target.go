// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
)

// looked is an operation, and the version of it that a person has looked at; 0: none was named.
type looked struct {
	id      string
	version uint64
}

// decision is what all commands that change something have in common.
type decision struct {
	why       string // a reason or a note
	flag      string // its flag
	commandID string
	version   uint64
	file      string
	several   bool // more than one operation may be named
	versioned bool
}

// reason defines --reason, note --note: each is required, and kept in the history.
func (d *decision) reason(cmd *cobra.Command) {
	d.define(cmd, "reason", "why: kept in the history (required)")
}

func (d *decision) note(cmd *cobra.Command) {
	d.define(cmd, "note", "what you looked at, and what you saw: kept in the history, in clear (required)")
}

func (d *decision) define(cmd *cobra.Command, flag, usage string) {
	d.flag = flag
	cmd.Flags().StringVar(&d.why, flag, "", usage)
	cmd.Flags().StringVar(&d.commandID, "command-id", "", "give the very same command again, as an earlier failure of it said")
}

// expects defines --expect-version.
func (d *decision) expects(cmd *cobra.Command, usage string) {
	d.versioned = true
	cmd.Flags().Uint64Var(&d.version, "expect-version", 0, usage)
}

// many defines --from-file.
func (d *decision) many(cmd *cobra.Command) {
	d.several = true
	cmd.Flags().StringVar(&d.file, "from-file", "", "read operations from a file or - : lines OP or OP@VERSION, or those of ledgerctl queue -o jsonl")
}

// check checks what needs no ledger, and draws the command's id.
func (d *decision) check(newID func() string) error {
	if strings.TrimSpace(d.why) == "" {
		return usageError{fmt.Errorf("--%s: is required", d.flag)}
	}
	if d.commandID == "" {
		d.commandID = newID()
	} else if id, err := uuid.Parse(d.commandID); err != nil || id.String() != d.commandID {
		return usageError{errors.New("--command-id: must be a UUID in its canonical lower-case form")}
	}
	return nil
}

// targets are the operations that a command names, each once.
func (d *decision) targets(args []string, stdin io.Reader) ([]looked, error) {
	var found []looked
	for _, arg := range args {
		l, err := parseLooked(arg)
		if err != nil {
			return nil, usageError{err}
		}
		found = append(found, l)
	}
	if d.file != "" {
		more, err := readLooked(d.file, stdin)
		if err != nil {
			return nil, err
		}
		found = append(found, more...)
	}
	seen := map[string]bool{}
	for i := range found {
		if seen[found[i].id] {
			return nil, usageError{errors.New("an operation is named twice")}
		}
		seen[found[i].id] = true
		if d.version != 0 {
			if len(found) > 1 || found[i].version != 0 && found[i].version != d.version {
				return nil, usageError{errors.New("--expect-version: is for one operation: write OP@VERSION for several")}
			}
			found[i].version = d.version
		}
	}
	switch {
	case len(found) == 0 && d.several && d.file == "":
		return nil, usageError{errors.New("name an operation, or --from-file")}
	case len(found) == 0 && d.file != "":
		return nil, usageError{errors.New("--from-file: names no operation")}
	case len(found) == 0 || len(found) > 1 && !d.several:
		return nil, usageError{errors.New("name one operation")}
	}
	return found, nil
}

const ruleOperation = "an operation must be a UUID, or UUID@VERSION"

func parseLooked(text string) (looked, error) {
	id, version, versioned := strings.Cut(text, "@")
	l := looked{id: strings.ToLower(id)}
	parsed, err := uuid.Parse(l.id)
	if err != nil || parsed.String() != l.id {
		return l, errors.New(ruleOperation)
	}
	if versioned {
		if l.version, err = strconv.ParseUint(version, 10, 64); err != nil || l.version == 0 {
			return l, errors.New(ruleOperation)
		}
	}
	return l, nil
}

// readLooked reads operations, one a line.
func readLooked(file string, stdin io.Reader) (found []looked, err error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, usageError{fmt.Errorf("--from-file: %w", err)}
		}
		defer func() { _ = f.Close() }() // it was only read
		in = f
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		if strings.HasPrefix(text, "{") {
			var op struct {
				ID      string `json:"id"`
				Version string `json:"version"`
			}
			if err := json.Unmarshal([]byte(text), &op); err != nil {
				return nil, usageError{fmt.Errorf("--from-file: line %d: must be JSON with id and version", n)}
			}
			text = op.ID + "@" + op.Version
		}
		l, err := parseLooked(text)
		if err != nil {
			return nil, usageError{fmt.Errorf("--from-file: line %d: %w", n, err)}
		}
		found = append(found, l)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("--from-file: %w", err)
	}
	return found, nil
}
