// SPDX-License-Identifier: Apache-2.0

package main

// limit of a figure. A change that breaks one either mends itself, or changes the limit here and says why.
type limit struct {
	// ID of the goal that it is, if it is one.
	ID   string
	Name string
	// Most and Least; 0: none.
	Most, Least float64
	// Goal is what it shall become; 0: what it is will do.
	Goal float64
	Why  string
}

// The figures. "alone" is one caller, "crowd" is 128.
const (
	walAlone               = "bytes of PostgreSQL's log a unit, alone"
	walCrowd               = "bytes of PostgreSQL's log a unit, crowd"
	walCheckpoint          = "bytes of PostgreSQL's log a unit, crowd, the first 500 after a checkpoint"
	statementsAlone        = "statements a unit on PostgreSQL, alone"
	statementsCrowd        = "statements a unit on PostgreSQL, crowd"
	tripsAlone             = "round trips to PostgreSQL a unit, alone"
	commitsAlone           = "commits a unit on PostgreSQL, alone"
	callsPerCommit         = "calls a commit on PostgreSQL, crowd"
	statementsPerCommit    = "statements a commit on PostgreSQL, crowd"
	statementsSQLiteAlone  = "statements a unit on SQLite, alone"
	statementsSQLiteCrowd  = "statements a unit on SQLite, crowd"
	callsSQLiteBatch       = "calls a batch on SQLite, crowd"
	allocationsAlone       = "allocations a unit, store on PostgreSQL, alone"
	allocationsCrowd       = "allocations a unit, store on PostgreSQL, crowd"
	allocationsSQLiteAlone = "allocations a unit, store on SQLite, alone"
	allocationsSQLiteCrowd = "allocations a unit, store on SQLite, crowd"
	allocationsServedAlone = "allocations a unit, ledgerd on PostgreSQL, alone"
	allocationsServedCrowd = "allocations a unit, ledgerd on PostgreSQL, crowd"
)

// What is counted moves by up to 2 % from run to run; a limit leaves a little more than that above what was counted when it was set.
var limits = []limit{
	{Name: walAlone, Most: 5000, Why: "each call commits a row of some sixty columns and an event, under eight indexes"},
	{ID: "2d", Name: walCrowd, Most: 5250, Goal: 1600, Why: "as alone, and indexes that grow split their pages"},
	{Name: walCheckpoint, Most: 15_500, Why: "with full_page_writes, the image of each page that is met first: hundreds of pages of indexes under random keys"},
	{Name: statementsAlone, Most: 13, Why: "a call begins, reads four things or three, writes, and commits"},
	{Name: statementsCrowd},
	{Name: tripsAlone, Most: 6, Why: "a call reads, writes and commits in a round trip each"},
	{Name: commitsAlone, Most: 2, Least: 2, Why: "each call is durable by itself before it is answered"},
	{Name: callsPerCommit, Least: 1, Why: "each call commits by itself"},
	{Name: statementsPerCommit, Most: 6.5, Why: "as alone"},
	{Name: statementsSQLiteAlone},
	{Name: statementsSQLiteCrowd},
	{Name: callsSQLiteBatch},
	{Name: allocationsAlone, Most: 700, Why: "as counted; pgx encodes each column by itself"},
	{Name: allocationsCrowd, Most: 710, Why: "as alone"},
	{Name: allocationsSQLiteAlone, Most: 1000, Why: "as counted; database/sql boxes each column"},
	{Name: allocationsSQLiteCrowd, Most: 1010, Why: "as alone"},
	{Name: allocationsServedAlone, Most: 1320, Why: "the store's, and those of TLS, gRPC, interceptors and codecs for two calls"},
	{Name: allocationsServedCrowd, Most: 1320, Why: "as alone"},
}
