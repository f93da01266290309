// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/opsledger/opsledger/ledger"
)

// RunOperators runs what a store that people search and pause tools in has to pass besides.
func RunOperators(t *testing.T, h Harness) {
	for _, c := range []testCase{
		{"a search by each filter", testSearch},
		{"a search in pages, in each order", testSearchPages},
		{"a search of what may be seen", testSearchVisible},
		{"a search that meets rows that can't be read", testSearchUnreadable},
		{"what can be checked", testCheckable},
		{"unsettled operations are counted by tool", testToolCounts},
		{"commands about tools", testToolCommands},
		{"commands about tools whose commit is not seen", testToolCommandFaults},
		{"a pause reaches each grant", testPauses},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, h.New(t)) })
	}
}

// people is a store as people use it.
func people(t *testing.T, s ledger.Store) ledger.OperatorStore {
	t.Helper()
	p, ok := s.(ledger.OperatorStore)
	if !ok {
		t.Fatal("people can't search the store")
	}
	return p
}

// everything may be seen.
var everything = ledger.ToolPatterns{Every: true}

// searched are the summaries of all that a search finds, in its order, page by page.
func searched(t *testing.T, s ledger.OperatorStore, q ledger.Search, size int) []string {
	t.Helper()
	names := []string{}
	q.Limit = size
	for range 1000 {
		found, err := s.Search(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if len(found.Operations) > size || found.Now.IsZero() {
			t.Fatalf("a page of %d at %v, want at most %d", len(found.Operations), found.Now, size)
		}
		for _, o := range found.Operations {
			names = append(names, o.TargetSummary)
		}
		if found.Next == nil {
			return names
		}
		q.After = *found.Next
	}
	t.Fatal("the search has no end")
	return nil
}

// row is one to be found by its name.
func row(t *testing.T, s ledger.Store, name string, make func(o *ledger.Operation, now time.Time)) ledger.Operation {
	t.Helper()
	k := testKey(name)
	return insert(t, s, k, func(now time.Time) ledger.Operation {
		o := received(k, now)
		o.TargetSummary = name
		make(&o, now)
		return o
	})
}

func queued(reason ledger.QueueReason) func(*ledger.Operation, time.Time) {
	return func(o *ledger.Operation, _ time.Time) {
		o.State, o.Custody, o.QueueReason = ledger.Unknown, ledger.Queued, reason
	}
}

func held(by ledger.Principal) func(*ledger.Operation, time.Time) {
	return func(o *ledger.Operation, _ time.Time) {
		o.State, o.Custody, o.Custodian = ledger.Unknown, ledger.Operator, by
	}
}

func completed(resource string) func(*ledger.Operation, time.Time) {
	return func(o *ledger.Operation, now time.Time) {
		o.State, o.FinalTime = ledger.Completed, now
		o.Result = &ledger.Result{Resource: ledger.ResourceRef{Type: "ticket", ID: resource}}
	}
}

func testSearch(t *testing.T, d Data) {
	clock := newSteps()
	store := d.Open(t, Options{Now: clock.at})
	s := people(t, store)
	begin := clock.now
	next := func(name string, make func(*ledger.Operation, time.Time)) ledger.Operation {
		clock.now = clock.now.Add(time.Second)
		return row(t, store, name, make)
	}
	next("free", func(*ledger.Operation, time.Time) {})
	running := next("running", func(o *ledger.Operation, now time.Time) { *o = granted(*o, "c", now); o.Tool = "charge" })
	next("unknown", func(o *ledger.Operation, now time.Time) { o.State, o.NextCheckTime = ledger.Unknown, now })
	next("queued", queued(ledger.NoMethod))
	next("gave up", func(o *ledger.Operation, now time.Time) {
		queued(ledger.GaveUp)(o, now)
		o.Detail.Candidates = []ledger.ResourceRef{{ID: "T-5"}, {ID: "T-6"}}
	})
	next("held", held("ops-a"))
	next("held too", held("ops-b"))
	next("done", completed(`T-1 "<&>`+"\u2028é"))
	next("done too", completed("T-2"))
	next("kept", func(o *ledger.Operation, _ time.Time) {
		held("ops-a")(o, time.Time{})
		o.Detail.Kept = &ledger.KeptSuccess{ClaimID: "c", Result: ledger.Result{Resource: ledger.ResourceRef{ID: "T-2"}}}
	})
	next("named elsewhere", func(o *ledger.Operation, now time.Time) {
		completed("T-3")(o, now)
		o.Result.Attributes = map[string]string{"id": "T-2"} // the very text, in another place
	})
	next("contradicted", func(o *ledger.Operation, now time.Time) {
		completed("T-4")(o, now)
		o.NeedsAttention = true
	})
	asked := func(kind ledger.ApprovalKind) *ledger.Approval {
		return &ledger.Approval{Kind: kind, Requester: "ops-a", ExpireTime: clock.now.Add(time.Hour)}
	}
	next("proposed", func(o *ledger.Operation, _ time.Time) {
		held("ops-a")(o, time.Time{})
		o.Detail.Proposal = asked(ledger.ApproveResolution)
	})
	next("changed", func(o *ledger.Operation, _ time.Time) {
		o.Custody, o.QueueReason, o.Detail.Changed = ledger.Queued, ledger.ResourceChanged, asked(ledger.ApproveChangedResource)
	})
	next("correction", func(o *ledger.Operation, _ time.Time) { o.Detail.Approval = asked(ledger.ApproveCorrection) })
	next("approved", func(o *ledger.Operation, _ time.Time) {
		o.Detail.Approval = asked(ledger.ApproveCorrection)
		o.Detail.Approval.Granted = true
	})
	next("expired", func(o *ledger.Operation, _ time.Time) {
		o.Detail.Approval = asked(ledger.ApproveCorrection)
		o.Detail.Approval.ExpireTime = begin
	})
	elsewhere := ledger.Key{Scope: "scope-b", Tool: "mail.send", Task: "task-2", Key: "k"}
	clock.now = clock.now.Add(time.Second)
	insert(t, store, elsewhere, func(now time.Time) ledger.Operation {
		o := received(elsewhere, now)
		o.TargetSummary = "elsewhere"
		return o
	})

	all := []string{
		"free", "running", "unknown", "queued", "gave up", "held", "held too", "done", "done too", "kept", "named elsewhere", "contradicted",
		"proposed", "changed", "correction", "approved", "expired", "elsewhere",
	}
	awaiting := []string{"proposed", "changed", "correction"}
	yes, no := true, false
	for what, c := range map[string]struct {
		q    ledger.Search
		want []string
	}{
		"all":                          {ledger.Search{}, all},
		"one state":                    {ledger.Search{States: []ledger.State{ledger.Processing}}, []string{"running"}},
		"unknown":                      {ledger.Search{States: []ledger.State{ledger.Unknown}}, []string{"unknown", "queued", "gave up", "held", "held too", "kept", "proposed"}},
		"unknown of a tool":            {ledger.Search{States: []ledger.State{ledger.Unknown}, Tool: "tickets.create", Custodies: []ledger.Custody{ledger.Automation}}, []string{"unknown"}},
		"unknown or running":           {ledger.Search{States: []ledger.State{ledger.Unknown, ledger.Processing}, Custodies: []ledger.Custody{ledger.Automation, ledger.Queued}}, []string{"running", "unknown", "queued", "gave up"}},
		"the queue":                    {ledger.Search{Custodies: []ledger.Custody{ledger.Queued}}, []string{"queued", "gave up", "changed"}},
		"with people":                  {ledger.Search{Custodies: []ledger.Custody{ledger.Queued, ledger.Operator}, States: []ledger.State{ledger.Received}}, []string{"changed"}},
		"a reason":                     {ledger.Search{QueueReasons: []ledger.QueueReason{ledger.GaveUp, ledger.EvidenceMismatch}}, []string{"gave up"}},
		"a person":                     {ledger.Search{Custodian: "ops-a"}, []string{"held", "kept", "proposed"}},
		"another one":                  {ledger.Search{Custodian: "OPS-A"}, []string{}},
		"a tool":                       {ledger.Search{Tool: "charge"}, []string{"running"}},
		"a scope":                      {ledger.Search{Scope: "scope-b"}, []string{"elsewhere"}},
		"a task":                       {ledger.Search{Task: "task-2"}, []string{"elsewhere"}},
		"a task of a scope":            {ledger.Search{Scope: "scope-b", Task: "task-2"}, []string{"elsewhere"}},
		"a task of another scope":      {ledger.Search{Scope: "scope-a", Task: "task-2"}, []string{}},
		"a downstream key":             {ledger.Search{DownstreamKey: running.KeyHash.DownstreamKey()}, []string{"running"}},
		"one of another scope":         {ledger.Search{DownstreamKey: running.KeyHash.DownstreamKey(), Scope: "scope-b"}, []string{}},
		"no downstream key":            {ledger.Search{DownstreamKey: "no downstream key"}, []string{}},
		"a resource":                   {ledger.Search{ResourceID: "T-2"}, []string{"done too", "kept"}},
		"a resource of odd characters": {ledger.Search{ResourceID: `T-1 "<&>` + "\u2028é"}, []string{"done"}},
		"one that may be the effect":   {ledger.Search{ResourceID: "T-6"}, []string{"gave up"}},
		"a part of a resource":         {ledger.Search{ResourceID: "T-"}, []string{}},
		"attention":                    {ledger.Search{NeedsAttention: &yes}, []string{"contradicted"}},
		"no attention":                 {ledger.Search{NeedsAttention: &no, States: []ledger.State{ledger.Completed}}, []string{"done", "done too", "named elsewhere"}},
		"an approval":                  {ledger.Search{ApprovalPending: &yes}, awaiting},
		"no approval":                  {ledger.Search{ApprovalPending: &no}, slices.DeleteFunc(slices.Clone(all), func(n string) bool { return slices.Contains(awaiting, n) })},
		"before a time":                {ledger.Search{UpdatedBefore: begin.Add(3 * time.Second)}, []string{"free", "running"}},
		"a zero in a text":             {ledger.Search{Tool: "charge\x00", Scope: "scope\x00", Custodian: "\x00"}, []string{}},
	} {
		t.Run(what, func(t *testing.T) {
			c.q.Visible = everything
			for _, size := range []int{1, 3, 100} {
				if diff := gocmp.Diff(c.want, searched(t, s, c.q, size)); diff != "" {
					t.Errorf("pages of %d (-want +got):\n%s", size, diff)
				}
			}
		})
	}
}

func testSearchPages(t *testing.T, d Data) {
	clock := newSteps()
	store := d.Open(t, Options{Now: clock.at})
	s := people(t, store)
	var rows []ledger.Operation
	for i := range 200 {
		if i%7 == 0 { // some have one time
			clock.now = clock.now.Add(time.Second)
		}
		o := row(t, store, fmt.Sprint(i), func(o *ledger.Operation, now time.Time) {
			queued(ledger.NoMethod)(o, now)
			if i%3 > 0 {
				o.LastSend, o.Terms.EffectWithin = now.Add(time.Duration(200-i)*time.Minute), time.Duration(i%5)*time.Hour
			}
		})
		if i%4 == 0 {
			clock.now = clock.now.Add(time.Second)
			mustUpdate(t, store, ledger.ReadSet{ID: o.ID}, change(note(""), unchanged))
			o = mustGet(t, store, o.ID)
		}
		rows = append(rows, o)
	}
	for order, key := range map[ledger.SearchOrder]func(ledger.Operation) time.Time{
		ledger.ByUpdateTime: func(o ledger.Operation) time.Time { return o.UpdateTime },
		ledger.ByCreateTime: func(o ledger.Operation) time.Time { return o.CreateTime },
		ledger.BySettleTime: func(o ledger.Operation) time.Time {
			if o.LastSend.IsZero() || o.Terms.EffectWithin == 0 {
				return ledger.NeverSettles
			}
			return o.LastSend.Add(o.Terms.EffectWithin)
		},
	} {
		slices.SortFunc(rows, func(a, b ledger.Operation) int {
			return cmp.Or(key(a).Compare(key(b)), slices.Compare(a.ID[:], b.ID[:]))
		})
		want := make([]string, len(rows))
		for i, o := range rows {
			want[i] = o.TargetSummary
		}
		for _, size := range []int{1, 7, 63, 64, 65, 200, 500} {
			for _, q := range []ledger.Search{{}, {Custodies: []ledger.Custody{ledger.Queued}}} {
				q.Visible, q.Order = everything, order
				if diff := gocmp.Diff(want, searched(t, s, q, size)); diff != "" {
					t.Errorf("order %d, pages of %d (-want +got):\n%s", order, size, diff)
				}
			}
		}
	}
	// Many rows that don't fit come to an end, and cost a bounded number of rows each time.
	yes := true
	if got := searched(t, s, ledger.Search{Visible: everything, ApprovalPending: &yes, ResourceID: "none"}, 1); len(got) > 0 {
		t.Errorf("found %v", got)
	}
}

func testSearchVisible(t *testing.T, d Data) {
	store := d.Open(t, Options{})
	s := people(t, store)
	for _, tool := range []string{"pay", "pay.", "pay.charge", "pay.refund", "pay%", "payments", "PAY.charge", "mail.send"} {
		row(t, store, tool, func(o *ledger.Operation, now time.Time) {
			queued(ledger.NoMethod)(o, now)
			o.Tool = ledger.Tool(tool)
		})
	}
	for what, c := range map[string]struct {
		visible ledger.ToolPatterns
		want    []string
	}{
		"nothing":         {ledger.ToolPatterns{}, []string{}},
		"everything":      {everything, []string{"PAY.charge", "mail.send", "pay", "pay%", "pay.", "pay.charge", "pay.refund", "payments"}},
		"some":            {ledger.ToolPatterns{Exact: []ledger.Tool{"pay", "mail.send", "none"}}, []string{"mail.send", "pay"}},
		"a prefix":        {ledger.ToolPatterns{Prefixes: []string{"pay."}}, []string{"pay.charge", "pay.refund"}},
		"both":            {ledger.ToolPatterns{Exact: []ledger.Tool{"pay."}, Prefixes: []string{"mail.", "pay%"}}, []string{"mail.send", "pay."}},
		"an empty prefix": {ledger.ToolPatterns{Prefixes: []string{"none."}}, []string{}},
	} {
		for _, size := range []int{1, 2, 50} {
			for _, q := range []ledger.Search{{}, {Custodies: []ledger.Custody{ledger.Queued}}, {States: []ledger.State{ledger.Unknown}}, {Scope: "scope-a"}} {
				q.Visible = c.visible
				got := searched(t, s, q, size)
				slices.Sort(got)
				if diff := gocmp.Diff(c.want, got); diff != "" {
					t.Errorf("%s, pages of %d (-want +got):\n%s", what, size, diff)
				}
			}
		}
	}
}

func testSearchUnreadable(t *testing.T, d Data) {
	store := d.Open(t, Options{})
	var ids []ledger.OperationID
	for i := range 9 {
		ids = append(ids, row(t, store, fmt.Sprint(i), queued(ledger.NoMethod)).ID)
	}
	for id, set := range map[ledger.OperationID]string{ids[2]: "record_version = 2", ids[5]: "detail = key_hash", ids[8]: "detail = key_hash"} {
		if err := d.Alter(t, id, set); err != nil {
			t.Fatal(err)
		}
	}
	s := people(t, d.Open(t, Options{}))
	for _, size := range []int{1, 2, 9, 50} {
		seen := map[ledger.OperationID]ledger.Operation{}
		q := ledger.Search{Visible: everything, Custodies: []ledger.Custody{ledger.Queued}, Limit: size}
		for more := true; more; {
			found, err := s.Search(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range found.Operations {
				seen[o.ID] = o
			}
			if more = found.Next != nil; more {
				q.After = *found.Next
			}
		}
		for i, id := range ids {
			o, ok := seen[id]
			if unreadable := i%3 == 2; !ok || o.Tool != "tickets.create" || o.CreateTime.IsZero() || (o.State == 0) != unreadable {
				t.Errorf("pages of %d: row %d is %v, %v, %v", size, i, ok, o.Tool, o.State)
			}
		}
	}
}

func testCheckable(t *testing.T, d Data) {
	clock := newSteps()
	store := d.Open(t, Options{Now: clock.at})
	s := people(t, store)
	later := func(o *ledger.Operation, now time.Time) {
		o.State, o.NextCheckTime = ledger.Unknown, now.Add(time.Hour)
	}
	var want []ledger.OperationID
	for _, c := range []struct {
		name string
		make func(*ledger.Operation, time.Time)
		ok   bool
	}{
		{"later", later, true},
		{"due", func(o *ledger.Operation, now time.Time) { o.State, o.NextCheckTime = ledger.Unknown, now }, false},
		{"queued", queued(ledger.GaveUp), true},
		{"held", held("ops-a"), false},
		{"queued, not unknown", func(o *ledger.Operation, _ time.Time) {
			o.Custody, o.QueueReason = ledger.Queued, ledger.AttemptsExhausted
		}, false},
		{"of another tool", func(o *ledger.Operation, now time.Time) { later(o, now); o.Tool = "charge" }, false},
		{"running", func(o *ledger.Operation, now time.Time) { *o = granted(*o, "c", now) }, false},
		{"later, too", later, true},
	} {
		clock.now = clock.now.Add(time.Second)
		if o := row(t, store, c.name, c.make); c.ok {
			want = append(want, o.ID)
		}
	}
	for _, limit := range []int{1, 2, 3, 100} {
		got, err := s.Checkable(t.Context(), "tickets.create", limit)
		if err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want[:min(limit, len(want))], got); diff != "" {
			t.Errorf("at most %d (-want +got):\n%s", limit, diff)
		}
	}
	clock.now = clock.now.Add(2 * time.Hour) // all but the queued one is due
	if got, err := s.Checkable(t.Context(), "tickets.create", 100); err != nil || len(got) != 1 || got[0] != want[1] {
		t.Errorf("when all is due: %v, %v", got, err)
	}
}

func testToolCounts(t *testing.T, d Data) {
	clock := newSteps()
	store := d.Open(t, Options{Now: clock.at})
	s := people(t, store)
	if counts, now, err := s.CountTools(t.Context()); err != nil || len(counts) > 0 || now.IsZero() {
		t.Errorf("of nothing: %v at %v, %v", counts, now, err)
	}
	begin := clock.now
	of := func(tool ledger.Tool, make func(*ledger.Operation, time.Time)) func(*ledger.Operation, time.Time) {
		return func(o *ledger.Operation, now time.Time) { make(o, now); o.Tool = tool }
	}
	running := func(o *ledger.Operation, now time.Time) { *o = granted(*o, "c", now) }
	for i, make := range []func(*ledger.Operation, time.Time){
		of("a", running), of("a", queued(ledger.GaveUp)), of("a", held("ops-a")), of("b", running), of("b", running),
		of("c", completed("T-1")), of("d", func(o *ledger.Operation, _ time.Time) {
			o.Custody, o.QueueReason = ledger.Queued, ledger.AttemptsExhausted
		}),
	} {
		clock.now = clock.now.Add(time.Second)
		row(t, store, fmt.Sprint(i), make)
	}
	counts, now, err := s.CountTools(t.Context())
	want := []ledger.ToolCount{
		{Tool: "a", Processing: 1, Unknown: 2, Queued: 1, OldestUnknown: begin.Add(2 * time.Second)},
		{Tool: "b", Processing: 2},
		{Tool: "d", Queued: 1},
	}
	if diff := gocmp.Diff(want, counts); diff != "" || err != nil || !now.Equal(clock.now) {
		t.Errorf("at %v, %v (-want +got):\n%s", now, err, diff)
	}
}
