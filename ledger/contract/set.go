// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"maps"
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
)

// Contract is all that is declared about one tool: the plain values by which operations are decided, and what is run besides.
type Contract struct {
	ledger.Contract
	// Probe says how the target is asked; nil: it can't be.
	Probe *Probe
	// Inspect says how the target is asked for the version of a resource; nil: it can't be.
	Inspect *Inspect
	// Replay judges who may see a result; nil: whom the policy lets.
	Replay *Rule

	undone         undoing // by the tool that compensation names
	stored         []byte  // see Encode
	effective      *object
	compensationAt *yaml.Node
}

// Set is what the files of one place declare. It never changes after it was made; the zero value declares nothing.
type Set struct {
	strict   bool
	tools    map[ledger.Tool]Contract
	undo     map[ledger.Tool]undoing
	warnings []*Error
}

// undoing is what the tools that are undone want of the one that undoes them.
type undoing struct {
	requireUnchanged bool
	freshFor         time.Duration
	perOriginal      int
}

// strictest of what several of them want: who undoes has one contract.
func strictest(a, b undoing) undoing {
	return undoing{a.requireUnchanged || b.requireUnchanged, min(a.freshFor, b.freshFor), min(a.perOriginal, b.perOriginal)}
}

var _ ledger.Contracts = (*Set)(nil)

// Contract in force for a tool; for one that is not declared the default, and false.
func (s *Set) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	declared, ok := s.tools[tool]
	c := declared.Contract
	if !ok {
		c = ledger.DefaultContract(tool)
	}
	if u, undoes := s.undo[tool]; undoes {
		c.RequireUnchanged, c.FreshFor, c.PerOriginal = u.requireUnchanged, u.freshFor, u.perOriginal
	}
	return c, ok
}

// undoneBy notes what a tool wants of the one that undoes it.
func (s *Set) undoneBy(c Contract) {
	u, others := s.undo[c.Compensation]
	if !others {
		u = c.undone
	}
	if s.undo == nil {
		s.undo = map[ledger.Tool]undoing{}
	}
	s.undo[c.Compensation] = strictest(u, c.undone)
}

// Declared is all that is declared about a tool; false: nothing is.
func (s *Set) Declared(tool ledger.Tool) (Contract, bool) {
	c, ok := s.tools[tool]
	return c, ok
}

// Versions are those of all declared contracts, as a store keeps them.
func (s *Set) Versions() []ledger.ContractVersion {
	var all []ledger.ContractVersion
	for _, tool := range s.Tools() {
		c := s.tools[tool]
		all = append(all, ledger.ContractVersion{Version: c.Version, Document: Encode(c)})
	}
	return all
}

// Keep has the set kept: it is the only one that there will ever be. See Source.Keep.
func (s *Set) Keep(keep func(*Set) error) error { return keep(s) }

// Strict reports whether tools without a contract are to be refused.
func (s *Set) Strict() bool { return s.strict }

// Youngest is how old an operation of any tool is at least before its age may matter.
func (s *Set) Youngest() time.Duration {
	youngest := ledger.DefaultContract("").Youngest()
	for _, c := range s.tools {
		youngest = min(youngest, c.Contract.Youngest())
	}
	return youngest
}

// Tools are the declared tools, sorted.
func (s *Set) Tools() []ledger.Tool { return slices.Sorted(maps.Keys(s.tools)) }

// Warnings are what is allowed and looks like a mistake.
func (s *Set) Warnings() []*Error { return slices.Clone(s.warnings) }
