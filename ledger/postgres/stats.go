// SPDX-License-Identifier: Apache-2.0

package postgres

import "sync/atomic"

// Stats count what a store has done since it was opened. They hold no values.
type Stats struct {
	// Reads are the calls that were served in ReadBatches, Writes those in WriteBatches.
	ReadBatches, Reads, WriteBatches, Writes uint64
	// Alone are attempts in a transaction of their own, Confirmed those to find out what became of a commit.
	Alone, Confirmed uint64
	// Statements of all of these, BEGIN and the like included.
	Statements uint64
}

type counters struct {
	readBatches, reads, writeBatches, writes, alone, confirmed, statements atomic.Uint64
}

// Stats are as they stand now.
func (s *Store) Stats() Stats {
	c := &s.stats
	return Stats{
		ReadBatches: c.readBatches.Load(), Reads: c.reads.Load(), WriteBatches: c.writeBatches.Load(), Writes: c.writes.Load(),
		Alone: c.alone.Load(), Confirmed: c.confirmed.Load(), Statements: c.statements.Load(),
	}
}
