// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// Store is what the loop reads besides the ledger: what is due. In its gates all loops on it agree about turns.
type Store interface {
	ledger.GateStore
	Due(ctx context.Context, q ledger.DueQuery) (ledger.DuePage, error)
}

// Probes know how the targets of tools are asked, by the contracts in force.
type Probes interface {
	// Probe asks a tool's target; nil: this loop does not, because somebody else does, or nobody can.
	Probe(tool ledger.Tool) Probe
	// Inspector asks a tool's target about what an operation of it has left; nil: that can't be asked, and people are.
	Inspector(tool ledger.Tool) Inspector
}

// Probe asks a target what became of an operation. It is called by several goroutines.
type Probe interface {
	// Ask returns by the end of ctx at the latest. Whatever goes wrong is a finding, too.
	Ask(ctx context.Context, op *ledger.Operation) Verdict
}

// Verdict is what a target says.
type Verdict struct {
	Evidence ledger.Evidence
	// Observed are the business fields as the target has them, a JSON object in the request's own names.
	Observed []byte
	// Why the target could not be asked, for logs: one of few constant texts.
	Why string
}

// Options of a loop. The zero value is useful.
type Options struct {
	Log   *slog.Logger
	Meter metric.Meter
	// Requests compare what a target shows with what was asked for.
	Requests fingerprint.Options
	// Interval is the pause between two looks at what is due, give or take a fifth; 0: a second.
	Interval time.Duration
	// Batch is how many due operations are read at a time, and wait for one tool at most; 0: 256.
	Batch int
	// Workers bounds operations that are dealt with at a time, and turns that are had; 0: 32. A tool has at most half of them.
	Workers int
}

const (
	usualInterval = time.Second
	usualBatch    = 256
	usualWorkers  = 32
	// furtherPages are read at each look beyond the first one, each time others. They pass by tools of which enough waits: what is due behind
	// a long backlog of one tool is found, too.
	furtherPages = 4
	// longestPause is that after looks that failed.
	longestPause = 30 * time.Second
)

// Loop is one recovery loop. Run and RunOnce are called one at a time.
type Loop struct {
	ledger   *ledger.Ledger
	store    Store
	gates    ledger.GateStore
	probes   Probes
	ring     *fingerprint.Ring
	requests fingerprint.Options
	log      *slog.Logger
	metrics  *metrics
	runs     runs
	interval time.Duration
	batch    int
	workers  int

	mu      sync.Mutex // held while it runs; guards what follows
	queue   *queue
	held    map[ledger.OperationID]struct{} // waiting or running
	putOff  *putOff
	tools   map[ledger.OperationID]ledger.Tool
	others  map[ledger.Tool]struct{} // whose targets somebody else asks, as far as any was due
	cursor  ledger.DuePosition
	results chan Done
	knocks  chan knock
}

// New makes a loop on a ledger and its store. The ring is that which requests are digested with.
func New(l *ledger.Ledger, store Store, probes Probes, ring *fingerprint.Ring, o Options) (*Loop, error) {
	m, err := newMetrics(o.Meter, func(tool ledger.Tool) string { return toolLabel(l, tool) })
	if err != nil {
		return nil, err
	}
	loop := &Loop{
		ledger: l, store: store, gates: store, probes: probes, ring: ring, requests: o.Requests, log: o.Log, metrics: m,
		interval: o.Interval, batch: o.Batch, workers: o.Workers,
		held: map[ledger.OperationID]struct{}{}, putOff: newPutOff(), tools: map[ledger.OperationID]ledger.Tool{},
		others: map[ledger.Tool]struct{}{},
	}
	if loop.log == nil {
		loop.log = slog.New(slog.DiscardHandler)
	}
	if loop.interval <= 0 {
		loop.interval = usualInterval
	}
	if loop.batch <= 0 {
		loop.batch = usualBatch
	}
	if loop.workers <= 0 {
		loop.workers = usualWorkers
	}
	loop.queue = newQueue(loop.batch)
	loop.results, loop.knocks = make(chan Done, loop.workers), make(chan knock)
	return loop, nil
}

// Run looks and asks until ctx ends; then it begins nothing more, and returns when what it had begun has ended. The end of cut cuts that off: what
// was being asked is asked again when the check's lease is over, by whoever finds it.
func (l *Loop) Run(ctx, cut context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	look := time.NewTimer(0)
	defer look.Stop()
	failures := 0
	for {
		next := l.start(cut)
		paced := time.NewTimer(next)
		select {
		case <-ctx.Done():
			paced.Stop()
			l.finish(cut)
			return
		case d := <-l.results:
			l.finished(d)
		case k := <-l.knocks:
			l.knocked(k)
		case <-paced.C:
		case <-look.C:
			switch err := l.look(ctx); {
			case err == nil:
				failures = 0
			case ctx.Err() == nil:
				failures++
				l.log.Warn("recovery could not read what is due", "reason", reason(err))
			}
			look.Reset(l.pause(failures))
		}
		paced.Stop()
	}
}

// pause between looks: jittered, so that loops don't look all at once, and longer after failures.
func (l *Loop) pause(failures int) time.Duration {
	d := l.interval
	for range min(failures, 10) {
		d *= 2
	}
	d = min(d, max(longestPause, l.interval))
	return spread(d)
}

// RunOnce looks once, deals with what it finds, and returns what came of it. It does not wait for targets that want to be left alone or answer
// nobody: what is due there is left.
func (l *Loop) RunOnce(ctx context.Context) ([]Done, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.look(ctx); err != nil {
		return nil, err
	}
	var all []Done
	for {
		l.leaveClosed(time.Now())
		next := l.start(ctx)
		if len(l.held) == 0 {
			return append(all, l.finish(ctx)...), ctx.Err()
		}
		paced := time.NewTimer(next)
		select {
		case d := <-l.results:
			all = append(all, l.finished(d))
		case k := <-l.knocks:
			l.knocked(k)
		case <-paced.C:
		case <-ctx.Done():
			all = append(all, l.finish(ctx)...)
			return all, ctx.Err()
		}
		paced.Stop()
	}
}

// leaveClosed forgets what waits for targets that nobody may ask soon.
func (l *Loop) leaveClosed(now time.Time) {
	for tool, t := range l.queue.tools {
		if a := &t.access; !a.full && a.from.Sub(now) > soon || a.failed > 0 {
			l.drop(tool)
		}
	}
}

// drop forgets what waits for a tool: it is found again.
func (l *Loop) drop(tool ledger.Tool) {
	for _, id := range l.queue.drop(tool) {
		delete(l.held, id)
	}
}

// look reads what is due: always the first page, so that what has waited longest comes first, and some further ones.
func (l *Loop) look(ctx context.Context) error {
	found := 0
	var now time.Time // the store's
	read := func(q ledger.DueQuery) (end ledger.DuePosition, err error) {
		page, err := l.store.Due(ctx, q)
		if err != nil {
			return end, err
		}
		found += len(page.Due)
		now = page.Now
		return page.End, l.take(ctx, page)
	}
	end, err := read(ledger.DueQuery{Limit: l.batch})
	if err != nil {
		return err
	}
	if end == (ledger.DuePosition{}) || before(l.cursor, end) {
		l.cursor = end
	}
	for n := 0; n < furtherPages && l.cursor != (ledger.DuePosition{}); n++ {
		if l.cursor, err = read(ledger.DueQuery{After: l.cursor, Without: l.passedBy(now), Limit: l.batch}); err != nil {
			return err
		}
	}
	l.metrics.looked(found)
	return nil
}

// passedBy are tools of which nothing more would be taken behind the cursor.
func (l *Loop) passedBy(now time.Time) []ledger.Tool {
	maps.DeleteFunc(l.others, func(tool ledger.Tool, _ struct{}) bool { return !l.left(tool) })
	tools := l.queue.full()
	for tool := range l.others {
		if !l.longDue(tool, l.cursor.Time, now) {
			tools = append(tools, tool)
		}
	}
	return tools
}

func before(a, b ledger.DuePosition) bool {
	if !a.Time.Equal(b.Time) {
		return a.Time.Before(b.Time)
	}
	return bytes.Compare(a.ID[:], b.ID[:]) < 0
}

// take lets due operations wait for their tools' turns.
func (l *Loop) take(ctx context.Context, page ledger.DuePage) error {
	now := time.Now()
	for _, p := range page.Due {
		if _, held := l.held[p.ID]; held || l.putOff.waits(p.ID, now) {
			continue
		}
		tool, err := l.toolOf(ctx, p.ID)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ledger.ErrStoreUnavailable) && !errors.Is(err, ledger.ErrDamaged): // the store's fault, not this one's
			return err
		case err != nil:
			l.fail(Done{ID: p.ID, Err: err})
			continue
		}
		if l.left(tool) {
			l.others[tool] = struct{}{}
			if !l.longDue(tool, p.Time, page.Now) {
				continue
			}
		}
		if !l.queue.add(tool, p.ID) {
			continue
		}
		l.held[p.ID] = struct{}{}
	}
	return nil
}

// left: somebody else asks the tool's target, and the loop keeps out of the way.
func (l *Loop) left(tool ledger.Tool) bool {
	c, _ := l.ledger.Contract(tool)
	return c.Method == ledger.MethodProbe && l.probes.Probe(tool) == nil
}

// longDue: who else asks has had as long as the contract lets a target be asked in vain; people are told then.
func (l *Loop) longDue(tool ledger.Tool, due, now time.Time) bool {
	c, _ := l.ledger.Contract(tool)
	return !now.Before(due.Add(c.GiveUpAfter))
}

// mostTools bounds what is remembered of operations' tools, which never change.
const mostTools = 1 << 16

func (l *Loop) toolOf(ctx context.Context, id ledger.OperationID) (ledger.Tool, error) {
	if tool, ok := l.tools[id]; ok {
		return tool, nil
	}
	op, _, err := l.ledger.Look(ctx, id, func(*ledger.Operation) error { return nil })
	if err != nil {
		return "", err
	}
	if len(l.tools) >= mostTools {
		clear(l.tools)
	}
	l.tools[id] = op.Tool
	return op.Tool, nil
}

// start begins what may begin now, and says after which time more may.
func (l *Loop) start(ctx context.Context) time.Duration {
	for {
		id, tool, with, ok := l.queue.next(l.workers, l.rule)
		if !ok {
			return l.request(ctx, time.Now())
		}
		l.metrics.running(1)
		go func() { l.results <- l.deal(ctx, id, tool, with) }()
	}
}

// rule of a tool.
func (l *Loop) rule(tool ledger.Tool) rule {
	half := max(l.workers/2, 1)
	c, _ := l.ledger.Contract(tool)
	if c.Method != ledger.MethodProbe || l.left(tool) { // nobody is asked
		return rule{atOnce: half}
	}
	return rule{atOnce: min(half, max(c.CheckConcurrency, 1)), gated: true}
}

// finished notes the end of one. Its turn is for the next one, if the target was not asked.
func (l *Loop) finished(d Done) Done {
	l.metrics.running(-1)
	a := &l.queue.tools[d.Tool].access
	switch {
	case d.with == nil:
	case d.Check == 0 && time.Now().Before(d.with.begins.Add(soon)):
		a.free = append(a.free, d.with)
	default:
		a.ended = append(a.ended, ended{id: d.with.id, how: d.how, after: d.after, over: d.with.over})
	}
	delete(l.held, d.ID)
	l.queue.done(d.Tool, time.Now())
	l.fail(d)
	return d
}

// finish waits for what runs, gives the turns back, and forgets what waits.
func (l *Loop) finish(cut context.Context) []Done {
	var all []Done
	for tool := range l.queue.tools {
		l.drop(tool)
	}
	for l.queue.running > 0 || l.asking() {
		select {
		case d := <-l.results:
			all = append(all, l.finished(d))
		case k := <-l.knocks:
			l.knocked(k)
		}
	}
	l.leaveGates(context.WithoutCancel(cut))
	l.queue = newQueue(l.batch)
	return all
}

// fail puts off what could not be dealt with.
func (l *Loop) fail(d Done) {
	switch {
	case d.Err != nil:
		l.putOff.failed(d.ID, time.Now())
		l.log.Warn("a due operation could not be dealt with; it is put off", attrTool, string(d.Tool), attrOperation, d.ID.String(), "reason", reason(d.Err))
	case d.turned:
		l.putOff.turned(d.ID, d.again, time.Now())
	case d.Left:
		l.putOff.left(d.ID, time.Now())
	default:
		l.putOff.forget(d.ID)
	}
}

// reason names an error in a log: its text may hold what has no place there.
func reason(err error) string {
	for _, known := range []error{ledger.ErrDamaged, ledger.ErrStoreUnavailable, ledger.ErrRecordTooNew, ledger.ErrRateLimited, ledger.ErrOperationNotFound, errPanicked, errGate, errLate, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return "an unexpected error"
}
