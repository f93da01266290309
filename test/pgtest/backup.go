// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Backup is a base backup of a server: what it had committed at a moment, and nothing of what came later.
type Backup struct{ files }

// Backup takes one while the server runs. Its files go with the test.
func (s *Server) Backup(t testing.TB) *Backup {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	f, err := s.copied(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(f.dir); err != nil {
			t.Error(err)
		}
	})
	return &Backup{f}
}

// Recovery is how a backup becomes a server.
type Recovery int

const (
	// SameTimeline starts the copy as if it were the server after a crash: neither its system identifier nor its timeline tells them apart.
	SameTimeline Recovery = iota + 1
	// NewTimeline recovers as from an archive that has nothing more: what is written from then on is on the next timeline.
	NewTimeline
)

// Restore starts a server on a copy of the backup, at an address of its own. It ends with the test.
func (b *Backup) Restore(t testing.TB, how Recovery) *Server {
	t.Helper()
	f, err := newFiles(b.bin, b.opts)
	if err == nil {
		err = f.take(b.data(), ".")
	}
	if err == nil && how == NewTimeline {
		err = errors.Join(f.set("restore_command", "false"), f.write("recovery.signal", nil))
	}
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(f.dir)))
	}
	s := f.started(t)
	if err := s.until(t.Context(), "NOT pg_is_in_recovery()"); err != nil {
		t.Fatal(err)
	}
	return s
}

// started makes a server of files that are whole. It ends with the test.
func (f files) started(t testing.TB) *Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	s, err := f.launchAnywhere(ctx)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(f.dir)))
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// copied are the files of a base backup, made by SQL: a build of PostgreSQL for tests comes without pg_basebackup.
func (s *Server) copied(ctx context.Context) (_ files, err error) {
	f, err := newFiles(s.bin, s.opts)
	if err != nil {
		return files{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("pgtest: backup: %w", err), os.RemoveAll(f.dir))
		}
	}()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return files{}, err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "SELECT pg_backup_start('pgtest', TRUE)"); err != nil {
		return files{}, err
	}
	if err := f.take(s.data(), ".", "postmaster.pid", "postmaster.opts", "pg_replslot", "pg_wal"); err != nil {
		return files{}, err
	}
	var label string
	if err := conn.QueryRow(ctx, "SELECT labelfile FROM pg_backup_stop(FALSE)").Scan(&label); err != nil {
		return files{}, err
	}
	// The log, which makes whole what was changed while it was copied, comes last.
	return f, errors.Join(f.take(s.data(), "pg_wal"), f.write("backup_label", []byte(label)), f.set(synchronous, ""))
}

// take copies a part of the files of a server that may run. What is in the directories that are left out is not copied, they are.
func (f files) take(from, part string, leftOut ...string) error {
	root := os.DirFS(from)
	return fs.WalkDir(root, part, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // it is gone: the log knows of that, too
			return nil
		case err != nil:
			return err
		case d.IsDir():
			if err := os.MkdirAll(filepath.Join(f.data(), path), 0o700); err != nil {
				return err
			}
			if err := f.give(path); err != nil {
				return err
			}
			if slices.Contains(leftOut, path) {
				return fs.SkipDir
			}
			return nil
		case slices.Contains(leftOut, path) || !d.Type().IsRegular():
			return nil
		}
		source, err := root.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		defer func() { _ = source.Close() }()
		target, err := f.open(path, os.O_TRUNC)
		if err != nil {
			return err
		}
		_, err = io.Copy(target, source)
		return errors.Join(err, target.Close())
	})
}

// set adds a setting, as ALTER SYSTEM would.
func (f files) set(name, value string) error {
	file, err := f.open("postgresql.auto.conf", os.O_APPEND)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(file, "%s = %s\n", name, quoted(value))
	return errors.Join(err, file.Close())
}

// quoted is a literal of PostgreSQL's SQL and settings, which take no parameters everywhere.
func quoted(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }

// write makes a file beside the server's data that only the server can read.
func (f files) write(name string, content []byte) error {
	file, err := f.open(name, os.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// open opens a file of the server's for writing, and makes it where there is none.
func (f files) open(name string, flag int) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(f.data(), name), os.O_CREATE|os.O_WRONLY|flag, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.give(name); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// give makes a file or directory the server's.
func (f files) give(name string) error {
	if f.attr.Credential == nil {
		return nil
	}
	return os.Chown(filepath.Join(f.data(), name), int(f.attr.Credential.Uid), int(f.attr.Credential.Gid))
}
