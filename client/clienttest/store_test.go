// SPDX-License-Identifier: Apache-2.0

package clienttest

import (
	"errors"
	"fmt"
	"testing"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/storetest"
)

// TestStore holds what users test against to what the ledger's stores promise.
func TestStore(t *testing.T) { storetest.Run(t, harness{}) }

type harness struct{}

// Exceptions are about what memory does not have.
func (harness) Exceptions() map[string]string {
	const (
		noCommit = "a change in memory has no commit whose outcome could be missed"
		noFile   = "nothing but this store writes its rows, so none can be newer, impossible or damaged"
	)
	return map[string]string{
		"a commit that failed is found or decided again":    noCommit,
		"a commit that fails in a crowd":                    noCommit,
		"a crowd whose commits are not seen":                noCommit,
		"a commit that keeps failing is said to be unknown": noCommit,
		"a change that overtakes an unseen commit":          noCommit,
		"slots whose commit is not seen":                    noCommit,
		"failpoints":                                        noCommit,
		"a record of a newer release":                       noFile,
		"a slot of a record of a newer release":             noFile,
		"another history of the same length":                noFile,
		"impossible rows":                                   noFile,
		"a crowd, some of whose rows are refused":           noFile,
		"a damaged history":                                 noFile,
		"versions of contracts":                             "what is in memory is never judged by another process",
		"gates of tools":                                    "what is in memory has no target that another process could ask",
	}
}

func (harness) New(*testing.T) storetest.Data { return data{newRows()} }

type data struct{ rows *rows }

func (d data) Open(t *testing.T, opts storetest.Options) ledger.Store {
	s := d.rows.open(opts.Now)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (d data) Row(_ *testing.T, id ledger.OperationID) string {
	d.rows.mu.Lock()
	defer d.rows.mu.Unlock()
	return fmt.Sprintf("%+v", d.rows.ops[id])
}

func (data) Alter(*testing.T, ledger.OperationID, string) error {
	return errors.New("nobody else writes these rows")
}
