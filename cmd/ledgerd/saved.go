// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// mostRead bounds the versions from the store that are kept in memory.
const mostRead = 256

// savedContracts are the versions of contracts that the store keeps: records are judged by those under which they were made, also by a
// process that never had them in force.
type savedContracts struct {
	store ledger.ContractStore
	log   *slog.Logger

	mu   sync.Mutex
	read map[string]contract.Contract
}

// saveContracts saves those in force, and has others saved before they come into force: nothing is recorded under a version that the
// store does not have. What could not be acted on does not come into force.
func saveContracts(ctx context.Context, declared contracts, ring *fingerprint.Ring, store ledger.ContractStore, log *slog.Logger) (*savedContracts, error) {
	ctx = context.WithoutCancel(ctx) // contracts are reloaded until the server has stopped; each call has the store's own bound
	return &savedContracts{store: store, log: log}, declared.Keep(func(set *contract.Set) error {
		if err := recognises(ring, set); err != nil {
			return err
		}
		versions := set.Versions()
		if len(versions) == 0 {
			return nil
		}
		if err := store.SaveContracts(ctx, versions); err != nil {
			return fmt.Errorf("the contracts could not be saved: %w", err)
		}
		return nil
	})
}

// recognises refuses contracts whose look-alikes a ring can't recognise.
func recognises(ring *fingerprint.Ring, set *contract.Set) error {
	if ring.HasUnique() {
		return nil
	}
	for _, tool := range set.Tools() {
		if c, _ := set.Contract(tool); len(c.Unique) > 0 {
			return fmt.Errorf("%w: the contract of %s has some; add unique_secret: \"...\" (32 random bytes in base64) to the file of secrets of each instance, "+
				"and never change it", fingerprint.ErrNoUniqueSecret, tool)
		}
	}
	return nil
}

// find reads the version of a tool's contract that a record names. What the store does not have, or a newer release has written, is
// ErrRecordTooNew.
func (s *savedContracts) find(ctx context.Context, tool ledger.Tool, version string) (contract.Contract, error) {
	s.mu.Lock()
	c, ok := s.read[version]
	s.mu.Unlock()
	if !ok {
		document, err := s.store.SavedContract(ctx, version)
		if err != nil {
			return contract.Contract{}, err
		}
		if document == nil {
			s.log.DebugContext(ctx, "the store does not have the contract of a record", "tool", tool, "version", version)
			return contract.Contract{}, ledger.ErrRecordTooNew
		}
		if c, err = contract.Decode(document); err != nil {
			s.log.DebugContext(ctx, "the contract of a record can't be read by this release", "tool", tool, "version", version, "error", err)
			return contract.Contract{}, ledger.ErrRecordTooNew
		}
		s.remember(version, c)
	}
	if c.Tool != tool || c.Version != version {
		return contract.Contract{}, fmt.Errorf("%w: a stored contract is not the one that its version names", ledger.ErrStoreUnavailable)
	}
	return c, nil
}

func (s *savedContracts) remember(version string, c contract.Contract) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.read == nil {
		s.read = map[string]contract.Contract{}
	}
	for other := range s.read { // any of them: it can be read again
		if len(s.read) < mostRead {
			break
		}
		delete(s.read, other)
	}
	s.read[version] = c
}

// rules are what a version says of its tool's requests.
func (s *savedContracts) rules(ctx context.Context, tool ledger.Tool, version string) (fingerprint.Rules, error) {
	c, err := s.find(ctx, tool, version)
	if err != nil {
		return fingerprint.Rules{}, err
	}
	return fingerprint.RulesOf(c.Contract)
}
