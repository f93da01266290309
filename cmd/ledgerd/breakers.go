// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/rpc"
	"github.com/opsledger/opsledger/recovery"
)

// breakers are those of all loops on a store, as people are told of them.
type breakers struct{ store ledger.GateStore }

var breakerStates = map[recovery.Breaker]rpc.Breaker{
	recovery.BreakerClosed: rpc.BreakerClosed, recovery.BreakerOpen: rpc.BreakerOpen,
	recovery.BreakerHalfOpen: rpc.BreakerHalfOpen,
}

func (b breakers) states(ctx context.Context) (map[ledger.Tool]rpc.Breaker, error) {
	standings, err := recovery.Standings(ctx, b.store)
	if err != nil {
		return nil, err
	}
	states := make(map[ledger.Tool]rpc.Breaker, len(standings))
	for tool, s := range standings {
		states[tool] = breakerStates[s.Breaker]
	}
	return states, nil
}
