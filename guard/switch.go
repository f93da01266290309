// SPDX-License-Identifier: Apache-2.0

//go:build guards

package guard

import "sync/atomic"

// off are those that a test has switched off; nil: none.
var off atomic.Pointer[map[Guard]bool]

// On says whether no test has switched it off.
func (g Guard) On() bool {
	o := off.Load()
	return o == nil || !(*o)[g]
}

// Without switches guards off, in the whole process, and all others on, until it is called again.
func Without(guards ...Guard) {
	o := map[Guard]bool{}
	for _, g := range guards {
		o[g] = true
	}
	off.Store(&o)
}
