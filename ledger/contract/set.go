// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"maps"
	"slices"

	"github.com/opsledger/opsledger/ledger"
)

// Set is what one file declares. It never changes after it was made; the zero value declares nothing.
type Set struct {
	strict bool
	tools  map[ledger.Tool]ledger.Contract
}

var _ ledger.Contracts = (*Set)(nil)

// Contract in force for a tool; for one that is not declared the default, and false.
func (s *Set) Contract(tool ledger.Tool) (ledger.Contract, bool) {
	c, ok := s.tools[tool]
	if !ok {
		return ledger.DefaultContract(tool), false
	}
	return c, true
}

// Strict reports whether tools without a contract are to be refused.
func (s *Set) Strict() bool { return s.strict }

// Tools are the declared tools, sorted.
func (s *Set) Tools() []ledger.Tool { return slices.Sorted(maps.Keys(s.tools)) }
