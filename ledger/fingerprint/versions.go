// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"context"
	"sync"

	"github.com/opsledger/opsledger/ledger"
)

// mostFetched bounds the versions that are kept in memory beside those that this
// process has had in force. A file or two of contracts are far below it.
const mostFetched = 1024

// Versions are the rules of contracts, by tool and version: of those that this
// process has had in force, and of others that it has fetched. The zero value has
// none, and fetches none.
type Versions struct {
	// Fetch finds the rules of a version that this process has not had in force,
	// and may do I/O for that. [ledger.ErrRecordTooNew]: it is not known, or
	// can't be read by this release. A version has the same rules each time. Nil:
	// none is known.
	Fetch func(ctx context.Context, tool ledger.Tool, version string) (Rules, error)

	made sync.Map

	mu      sync.Mutex
	fetched map[version]Rules
}

// version names a contract; one of a tool is always the same.
type version struct {
	tool   ledger.Tool
	digest string
}

// inForce are the rules of the contract in force.
func (v *Versions) inForce(contract ledger.Contract) (Rules, error) {
	// Tools without a contract have no rules, and names that callers choose.
	if v == nil || contract.Version == ledger.DefaultContract(contract.Tool).Version {
		return RulesOf(contract)
	}
	of := version{contract.Tool, contract.Version}
	if rules, ok := v.made.Load(of); ok {
		return rules.(Rules), nil
	}
	rules, err := RulesOf(contract)
	if err == nil {
		v.made.Store(of, rules)
	}
	return rules, err
}

// rulesOf finds the rules of a record's contract: that in force, none, or one of
// earlier or elsewhere. Its errors are those of Request.Fingerprint.
func (v *Versions) rulesOf(digest string, contract ledger.Contract, inForce Rules) (Rules, error) {
	switch {
	case digest == contract.Version:
		return inForce, nil
	case digest == ledger.DefaultContract(contract.Tool).Version:
		return Rules{}, nil
	case v == nil:
		return Rules{}, ledger.ErrRecordTooNew
	}
	of := version{contract.Tool, digest}
	if rules, ok := v.made.Load(of); ok {
		return rules.(Rules), nil
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	rules, ok := v.fetched[of]
	switch {
	case ok:
		return rules, nil
	case v.Fetch == nil:
		return Rules{}, ledger.ErrRecordTooNew
	}
	return Rules{}, &ledger.Lacking{Fetch: func(ctx context.Context) error { return v.fetch(ctx, of) }}
}

// fetch keeps what it finds for later requests, too. What is not known now may
// be later, and is asked for again.
func (v *Versions) fetch(ctx context.Context, of version) error {
	rules, err := v.Fetch(ctx, of.tool, of.digest)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fetched == nil {
		v.fetched = map[version]Rules{}
	}
	for other := range v.fetched { // any of them: it can be fetched again
		if len(v.fetched) < mostFetched {
			break
		}
		delete(v.fetched, other)
	}
	v.fetched[of] = rules
	return nil
}
