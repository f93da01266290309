// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// OperatorStore is what people need of a store beside the operations' own: a search over all scopes, and commands about whole tools. No
// decision reads it, but for which tools are paused, which a View has. The stores are OperatorStores, too, and have the same errors.
type OperatorStore interface {
	// Search returns a page of operations of all scopes. Of a record that a newer release wrote, or that is damaged, it has the identity and
	// times only, and state 0. A search that would take too long is a Refusal that says how to narrow it.
	Search(ctx context.Context, q Search) (Found, error)
	// History returns the events of one operation, in order, but for those that are not what their hashes were made of; whole: there are none
	// of these.
	History(ctx context.Context, id OperationID) (events []Event, whole bool, err error)
	// Checkable returns UNKNOWN operations of a tool that nobody has and that are not due now, those first that have not changed for longest.
	Checkable(ctx context.Context, tool Tool, limit int) ([]OperationID, error)
	// CommandTool does what a command says and keeps it for ever; one that was kept before under its id is returned as it was, or it is
	// ErrCommandReused. The time is the store's.
	CommandTool(ctx context.Context, c ToolCommand) (ToolCommand, error)
	// ToolCommand that is kept under an id; nil: none is.
	ToolCommand(ctx context.Context, id CommandID) (*ToolCommand, error)
	// Pauses are the last pauses of the tools that are paused now, in their order.
	Pauses(ctx context.Context) ([]ToolCommand, error)
	// CountTools counts unsettled operations by their tools, in the order of these, with the store's time.
	CountTools(ctx context.Context) ([]ToolCount, time.Time, error)
}

// AllTools stands for all tools in what pauses and resumes them. It is no tool's name.
const AllTools Tool = "*"

// PausedTools get no new grant. They are sorted; the zero value pauses none.
type PausedTools []Tool

// Has reports whether a tool is paused, alone or with all others.
func (p PausedTools) Has(tool Tool) bool {
	return len(p) > 0 && (slices.Contains(p, tool) || slices.Contains(p, AllTools))
}

// With returns them with or without one tool.
func (p PausedTools) With(tool Tool, paused bool) PausedTools {
	others := slices.DeleteFunc(slices.Clone(p), func(t Tool) bool { return t == tool })
	if paused {
		others = append(others, tool)
	}
	slices.Sort(others)
	return others
}

// The kinds of commands about whole tools. KindCheckNow is one, too.
const (
	KindPauseTool  CommandKind = "pause_tool"
	KindResumeTool CommandKind = "resume_tool"
)

// ToolCommand is what a person has said about a whole tool.
type ToolCommand struct {
	CommandID CommandID
	Kind      CommandKind
	// Tool, or AllTools. What is paused with all others and alone is resumed twice.
	Tool   Tool
	Actor  Principal
	Reason string
	Time   time.Time
	// Due is how many operations a KindCheckNow has made due.
	Due int64
}

// Same reports whether two commands under one id are one, sent again.
func (c ToolCommand) Same(o ToolCommand) bool {
	return c.Kind == o.Kind && c.Tool == o.Tool && c.Reason == o.Reason
}

// Pauses says what the command makes of the tools that are paused.
func (c ToolCommand) Pauses(paused PausedTools) PausedTools {
	switch c.Kind {
	case KindPauseTool:
		return paused.With(c.Tool, true)
	case KindResumeTool:
		return paused.With(c.Tool, false)
	default:
		return paused
	}
}

// ToolCount is how many operations of a tool are not settled.
type ToolCount struct {
	Tool Tool
	// Processing counts live leases, among the 50,000 of all tools that end first.
	Processing int64
	Unknown    int64
	Queued     int64
	// OldestUnknown is when the oldest UNKNOWN one was created; zero: there is none.
	OldestUnknown time.Time
}

// ToolCounts are counts that are being made.
type ToolCounts map[Tool]*ToolCount

// Of a tool, to be set.
func (c ToolCounts) Of(tool Tool) *ToolCount {
	if c[tool] == nil {
		c[tool] = &ToolCount{Tool: tool}
	}
	return c[tool]
}

// Sorted by their tools.
func (c ToolCounts) Sorted() []ToolCount {
	all := make([]ToolCount, 0, len(c))
	for _, tool := range slices.Sorted(maps.Keys(c)) {
		all = append(all, *c[tool])
	}
	return all
}

// ToolPatterns are the tools that somebody has a right for. The zero value is none.
type ToolPatterns struct {
	Every bool
	Exact []Tool
	// Prefixes are those that longer names begin with.
	Prefixes []string
}

// SearchOrder is the time by which a search is ordered, oldest first; operations of one time by their ids.
type SearchOrder uint8

// The orders.
const (
	ByUpdateTime SearchOrder = iota
	ByCreateTime
	// BySettleTime is by the end of the last send window plus the recorded effect_within. Those where that is not known come last.
	BySettleTime
)

// NeverSettles is the place of operations without a settle time.
var NeverSettles = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// Search selects operations of all scopes. What is unset does not narrow it.
type Search struct {
	// Visible are the tools that may be seen at all.
	Visible       ToolPatterns
	States        []State
	Custodies     []Custody
	QueueReasons  []QueueReason
	Tool          Tool
	Scope         Scope
	Task          Task
	Custodian     Principal
	DownstreamKey string
	// ResourceID of the result, of a success that is kept and not applied, or of what may be the effect.
	ResourceID     string
	NeedsAttention *bool
	// ApprovalPending: a second person is asked for.
	ApprovalPending *bool
	UpdatedBefore   time.Time
	Order           SearchOrder
	// After is where the page before ended.
	After SearchPosition
	Limit int
}

// SearchPosition is a place in the order of a search; the zero value is before all.
type SearchPosition struct {
	Time time.Time
	ID   OperationID
}

// Found is a page of a search. It may be shorter than its limit, and even empty, with more to come.
type Found struct {
	Operations []Operation
	// Next is where the next page begins; nil: there is none.
	Next *SearchPosition
	// Now is the store's time.
	Now time.Time
}

// FoundRow is what a store has read for a search, with its place in the order.
type FoundRow struct {
	Operation
	At SearchPosition
}

const (
	// searchChunk is how many rows are read at least at a time, searchRounds how often at most for one page.
	searchChunk  = 64
	searchRounds = 8
)

// Fill makes a page out of rows that a store reads in their order, so many after a place, in a bounded number of rounds.
func (q Search) Fill(read func(after SearchPosition, limit int) ([]FoundRow, time.Time, error)) (Found, error) {
	var found Found
	after := q.After
	for round := 1; ; round++ {
		chunk := max(q.Limit-len(found.Operations), searchChunk)
		rows, now, err := read(after, chunk+1) // one more tells whether there is another page
		if err != nil {
			return Found{}, err
		}
		found.Now = now
		for i, row := range rows[:min(len(rows), chunk)] {
			after = row.At
			if row.Tool != "" && q.Selects(&row.Operation, now) { // without a tool nobody can be said to have a right for it
				found.Operations = append(found.Operations, row.Operation)
			}
			if len(found.Operations) == q.Limit && i+1 < len(rows) {
				found.Next = &after
				return found, nil
			}
		}
		switch {
		case len(rows) <= chunk:
			return found, nil
		case round == searchRounds:
			found.Next = &after
			return found, nil
		}
	}
}

// SearchTooBroad is what a search gets that would read too much.
func SearchTooBroad() *Refusal {
	return InvalidField("scope", "must be set, or the search narrowed by custodies, a custodian, queue_reasons, needs_attention, states UNKNOWN or PROCESSING, or downstream_key: "+
		"what is left would take too long to look through")
}

// Selects judges what no store compares itself. What can't be read is not judged.
func (q Search) Selects(op *Operation, now time.Time) bool {
	if op.State == 0 {
		return true
	}
	if q.ApprovalPending != nil && op.AwaitsApproval(now) != *q.ApprovalPending {
		return false
	}
	if q.ResourceID == "" {
		return true
	}
	kept := op.Detail.Kept
	if slices.ContainsFunc(op.Detail.Candidates, func(r ResourceRef) bool { return r.ID == q.ResourceID }) {
		return true
	}
	return op.Result != nil && op.Result.Resource.ID == q.ResourceID || kept != nil && kept.Result.Resource.ID == q.ResourceID
}

// ResourceText is what the stored document of an operation has in it that Selects by its resource; nil: anything.
func (q Search) ResourceText() []byte {
	if q.ResourceID == "" {
		return nil
	}
	text, err := json.Marshal(q.ResourceID)
	if err != nil {
		return nil // no text is like it: every document is looked at
	}
	return append([]byte(`"id":`), bytes.TrimSpace(text)...)
}

// AwaitsApproval reports whether a second person is asked about the operation, and the question is still open.
func (o *Operation) AwaitsApproval(now time.Time) bool {
	open := func(a *Approval) bool { return a != nil && !a.Granted && !a.ExpireTime.Before(now) }
	return open(o.Detail.Proposal) || open(o.Detail.Changed) || o.State == Received && open(o.Detail.Approval)
}

// QuietTime is until when somebody may still send, or ask the target, for an operation that a person has; zero: nobody does.
func (o *Operation) QuietTime(now time.Time) time.Time {
	var quiet time.Time
	if !o.Grant.Released {
		quiet = o.Grant.SendUntil
	}
	quiet = latest(quiet, o.Check.LeaseUntil)
	if !quiet.After(now) {
		return time.Time{}
	}
	return quiet
}

// Question is what a second person is asked about the operation, open or not; nil: nothing.
func (o *Operation) Question() *Approval {
	switch {
	case o.Detail.Proposal != nil:
		return o.Detail.Proposal
	case o.Detail.Changed != nil:
		return o.Detail.Changed
	default:
		return o.Detail.Approval
	}
}
