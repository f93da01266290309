// SPDX-License-Identifier: Apache-2.0

package target

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestReadLog(t *testing.T) {
	const line1, line2 = `{"n":1,"service":"tickets","kind":"send","key":"k"}` + "\n", `{"n":2,"service":"tickets","kind":"effect","key":"k"}` + "\n"
	tests := []struct {
		name, text string
		lines      int
		fails      bool
	}{
		{name: "empty", text: ""},
		{name: "two lines", text: line1 + line2, lines: 2},
		{name: "torn last line", text: line1 + line2[:20], lines: 1},
		{name: "broken line within", text: "{\n" + line2, fails: true},
		{name: "a line is missing", text: line2, fails: true},
		{name: "a line twice", text: line1 + line1, fails: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			log, err := ReadLog(path)
			if (err != nil) != tt.fails || len(log.Entries) != tt.lines {
				t.Errorf("%d lines, error %v", len(log.Entries), err)
			}
		})
	}
	if _, err := ReadLog(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestStartRefuses(t *testing.T) {
	broken := t.TempDir()
	if err := os.WriteFile(LogPath(broken), []byte("{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, opts := range map[string]Options{
		"no directory":     {},
		"negative window":  {Dir: t.TempDir(), KeyWindow: -1},
		"a broken log":     {Dir: broken},
		"no such address":  {Dir: t.TempDir(), Addr: "127.0.0.1:99999"},
		"a file as parent": {Dir: filepath.Join(LogPath(broken), "x")},
	} {
		if s, err := Start(t.Context(), opts); err == nil {
			t.Errorf("%s: started", name)
			s.Close()
		}
	}
}

func TestServerEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, err := Start(ctx, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-s.closing
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	c := Client{BaseURL: s.URL()}
	if _, err := c.GetTicket(t.Context(), "T-1"); ClassOf(err) != NeverSent {
		t.Errorf("after the end: %v", err)
	}
}
