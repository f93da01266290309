// SPDX-License-Identifier: Apache-2.0

package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
)

// background is the context of statements that are short and must not be torn: the driver starts a goroutine for each that can be
// interrupted.
var background = context.Background()

// conn is one connection, for one goroutine at a time. A statement is prepared once and kept, because preparing costs more than running.
// It is the driver's own: database/sql would convert and lock around each value and each row.
type conn struct {
	raw        driver.Conn
	kept       map[string]statement
	statements *atomic.Uint64
	// args and row are used again by each statement; values in a row are not.
	args []driver.NamedValue
	row  row
}

type statement interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

// cached is the most that the connection which writes keeps of the file, in KiB: a batch's pages should not leave before its commit.
const cached = 64 << 10

// connect opens a connection whose reads are durable.
//
// A commit is on the disk before anybody can see it: SQLite's walFrames writes the frames of a transaction, syncs them (synchronous=FULL),
// and only then appends them to the index through which readers find them. One case is left. When a process is killed between write
// and sync, nobody sees its commit, but the next first connection to the file, which recovers that index from the log, does, and
// what it sees is not on the disk yet. So the log is synced once more after a connection has read: what it may have recovered is
// durable then, and as long as one connection is open nobody recovers again.
func (s *Store) connect(ctx context.Context, from driver.Connector) (*conn, error) {
	raw, err := from.Connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &conn{raw: raw, kept: map[string]statement{}, statements: &s.stats.statements}
	if _, err := query(ctx, c, func(*row) (struct{}, error) { return struct{}{}, nil }, selectAny); err != nil {
		return nil, errors.Join(err, c.close())
	}
	if err := syncLog(s.path); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// connectWriter opens the connection that writes. Waiting for other processes is left to lock.
func (s *Store) connectWriter(ctx context.Context) error {
	c, err := s.connect(ctx, s.writers)
	if err != nil {
		return err
	}
	if _, err := c.exec(ctx, "PRAGMA busy_timeout = 0"); err != nil {
		return errors.Join(err, c.close())
	}
	s.writer = c
	return nil
}

// syncLog syncs the write-ahead log. SQLite has no locks on that file that closing it could drop; on the file itself it has.
func syncLog(path string) error {
	f, err := os.OpenFile(path+"-wal", os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (c *conn) close() error {
	var errs []error
	for _, s := range c.kept {
		errs = append(errs, s.Close()) // SQLite would keep the file open for them
	}
	return errors.Join(append(errs, c.raw.Close())...)
}

func (c *conn) prepare(sql string) (statement, error) {
	c.statements.Add(1)
	if s, ok := c.kept[sql]; ok {
		return s, nil
	}
	prepared, err := c.raw.Prepare(sql)
	if err != nil {
		return nil, err
	}
	s, ok := prepared.(statement)
	if !ok {
		return nil, fmt.Errorf("sqlite: the driver's %T can't be used", prepared)
	}
	c.kept[sql] = s
	return s, nil
}

func (c *conn) bind(args []any) []driver.NamedValue {
	c.args = c.args[:0]
	for i, v := range args {
		c.args = append(c.args, driver.NamedValue{Ordinal: i + 1, Value: v})
	}
	return c.args
}

// exec runs a statement and says how many rows it changed.
func (c *conn) exec(ctx context.Context, sql string, args ...any) (int64, error) {
	s, err := c.prepare(sql)
	if err != nil {
		return 0, err
	}
	result, err := s.ExecContext(ctx, c.bind(args))
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// query reads all rows of a statement.
func query[T any](ctx context.Context, c *conn, scan func(*row) (T, error), sql string, args ...any) (_ []T, err error) {
	s, err := c.prepare(sql)
	if err != nil {
		return nil, err
	}
	rows, err := s.QueryContext(ctx, c.bind(args))
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := rows.Close(); err == nil {
			err = closeErr
		}
	}()
	width := len(rows.Columns())
	c.row.values = slices.Grow(c.row.values[:0], width)[:width]
	var out []T
	for {
		if err := rows.Next(c.row.values); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		c.row.at, c.row.damaged = 0, false
		v, err := scan(&c.row)
		if err != nil {
			return nil, err
		}
		if c.row.damaged {
			return nil, errDamaged
		}
		out = append(out, v)
	}
}

// pool is a bounded number of connections that only read. A free place without a connection is nil.
type pool struct {
	life    context.Context
	connect func(context.Context) (*conn, error)
	free    chan *conn
	closing sync.Mutex
}

func newPool(life context.Context, size int, connect func(context.Context) (*conn, error)) *pool {
	p := &pool{life: life, connect: connect, free: make(chan *conn, size)}
	for range size {
		p.free <- nil
	}
	return p
}

// use lends a connection. One that fails is closed: what state it is in is not known.
func (p *pool) use(ctx context.Context, f func(*conn) error) (err error) {
	var c *conn
	select {
	case c = <-p.free:
	default:
		waiting, cancel := context.WithTimeout(ctx, callBound)
		defer cancel()
		select {
		case c = <-p.free:
		case <-waiting.Done():
			return waiting.Err()
		case <-p.life.Done():
			return p.life.Err()
		}
	}
	sound := false
	defer func() {
		if c != nil && !sound {
			_ = c.close()
			c = nil
		}
		p.free <- c
	}()
	if err = errors.Join(ctx.Err(), p.life.Err()); err == nil && c == nil {
		c, err = p.connect(ctx)
	}
	if err == nil {
		err = f(c)
	}
	sound = err == nil || harmless(err)
	return err
}

// close waits for the connections that are lent, and closes all. Its life is over by then, so that nobody opens others.
func (p *pool) close() error {
	p.closing.Lock()
	defer p.closing.Unlock()
	var errs []error
	for range cap(p.free) {
		if c := <-p.free; c != nil {
			errs = append(errs, c.close())
		}
	}
	for range cap(p.free) {
		p.free <- nil
	}
	return errors.Join(errs...)
}
