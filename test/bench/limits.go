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

// What one caller does is counted to 2 % from run to run; what many do moves with the size of batches, which a machine's speed decides: their
// limits leave room for batches of a quarter of what is usual.
var limits = []limit{
	{Name: walAlone, Most: 3000, Why: "a claim writes a row of some sixty columns, a report what has changed of it; each an event; seven entries of indexes, then two"},
	{ID: "2d", Name: walCrowd, Most: 3000, Goal: 1600, Why: "as alone, and indexes that grow split their pages"},
	{Name: walCheckpoint, Most: 5300, Why: "with full_page_writes, the image of each page that is met first: hundreds of pages of indexes under random keys"},
	{Name: statementsAlone, Most: 8.2, Why: "a call begins, sets its patience, writes and commits; what it is decided on is known"},
	{Name: statementsCrowd, Most: 0.4, Why: "about five for a batch, shared by some fifty calls"},
	{Name: tripsAlone, Most: 2.1, Why: "a call writes and commits in one round trip; it reads now and then"},
	{Name: commitsAlone, Most: 2, Least: 2, Why: "each call is durable by itself before it is answered"},
	{Name: callsPerCommit, Least: 16, Why: "half of 128 callers wait while the other half commits"},
	{Name: statementsPerCommit, Most: 8, Why: "those of a batch that writes"},
	{Name: statementsSQLiteAlone, Most: 11.2, Why: "a call begins, looks whether its guess holds, writes, and commits"},
	{Name: statementsSQLiteCrowd, Most: 5.6, Why: "a batch shares BEGIN, COMMIT and the time; rows are read and written one by one"},
	{Name: callsSQLiteBatch, Least: 16, Why: "half of 128 callers wait while the other half commits"},
	{Name: allocationsAlone, Most: 560, Why: "a batch of one call writes its row as one, without arrays"},
	{Name: allocationsCrowd, Most: 260, Why: "the decisions' own, and a call's part of its batches"},
	{Name: allocationsSQLiteAlone, Most: 360, Why: "the driver boxes each column, and batches are of one call"},
	{Name: allocationsSQLiteCrowd, Most: 320, Why: "the driver boxes each column"},
	{Name: allocationsServedAlone, Most: 1180, Why: "the store's, and those of TLS, gRPC, interceptors and codecs for two calls"},
	{Name: allocationsServedCrowd, Most: 860, Why: "the store's, and those of TLS, gRPC, interceptors and codecs for two calls"},
}
