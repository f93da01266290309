// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is all that a run has found.
type report struct {
	Date     time.Time
	Commit   string
	Machine  []string
	Method   string
	Samples  samples
	Verdicts []verdict
	Figures  []figure
	Log      []logPart
	Profiles []profiled
}

// table is a table for people, as text or as Markdown.
type table struct {
	Title, Note string
	Head        []string
	Rows        [][]string
}

func (t table) text(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n", t.Title)
	if t.Note != "" {
		fmt.Fprintf(w, "%s\n", t.Note)
	}
	tabs := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{t.Head}, t.Rows...) {
		fmt.Fprintf(tabs, "  %s\n", strings.Join(row, "\t"))
	}
	_ = tabs.Flush() // the writer behind it keeps its error
}

func (t table) markdown(w io.Writer) {
	fmt.Fprintf(w, "\n## %s\n\n", t.Title)
	if t.Note != "" {
		fmt.Fprintf(w, "%s\n\n", t.Note)
	}
	fmt.Fprintf(w, "| %s |\n|%s\n", strings.Join(t.Head, " | "), strings.Repeat(" --- |", len(t.Head)))
	for _, row := range t.Rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}

// number writes a value to about three digits.
func number(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	case math.Abs(v) >= 1 || v == 0:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

func (r report) goalsTable() table {
	t := table{
		Title: "Goals",
		Note: "Ratios within one round, so that the machine's drift meets both sides; judged by the median of the rounds. By processor time: what a ratio of " +
			"rates would be if processors alone were waited for, each process having what it needs; where others are on the machine, it says more.",
		Head: []string{"#", "goal", "bound", "min", "median", "max", "by processor time", "verdict"},
	}
	word := func(met bool) string {
		if met {
			return "met"
		}
		return "short"
	}
	bound := func(value float64, atMost bool) string {
		if atMost {
			return "<= " + number(value)
		}
		return ">= " + number(value)
	}
	for _, v := range r.Verdicts {
		t.Rows = append(t.Rows, []string{
			v.ID, v.Text, bound(v.Bound, v.AtMost), number(v.Min), number(v.Median), number(v.Max), number(v.Costs.Median), word(v.Met),
		})
	}
	for _, f := range r.Figures {
		if f.Goal > 0 {
			t.Rows = append(t.Rows, []string{f.ID, f.Name, bound(f.Goal, true), "", number(f.Value), "", "", word(f.Value <= f.Goal)})
		}
	}
	slices.SortStableFunc(t.Rows, func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return t
}

func (r report) figuresTable() table {
	t := table{
		Title: "Figures that are counted",
		Note:  "They do not depend on the machine's speed. A change that breaks a limit fails the tests.",
		Head:  []string{"figure", "value", "limit", "why this limit"},
	}
	for _, f := range r.Figures {
		limit := "-"
		switch {
		case f.Most > 0:
			limit = "<= " + number(f.Most)
		case f.Least > 0:
			limit = ">= " + number(f.Least)
		}
		if !f.ok() {
			limit += " BROKEN"
		}
		t.Rows = append(t.Rows, []string{f.Name, number(f.Value), limit, f.Why})
	}
	return t
}

// logRows are how many parts of the log are shown.
const logRows = 16

func (r report) logTable() table {
	t := table{
		Title: "PostgreSQL's log",
		Note:  "What a unit adds to it, by table or index and kind of record (pg_waldump), the largest first; of the crowd's figure above.",
		Head:  []string{"of", "record", "records a unit", "bytes a unit"},
	}
	for _, p := range r.Log[:min(len(r.Log), logRows)] {
		t.Rows = append(t.Rows, []string{p.Of, p.Kind, number(p.Records), number(p.Bytes)})
	}
	return t
}

// variants in the order of callers, then as they run.
func (r report) variants() []variant {
	order := []string{targetEcho, targetPostgres, targetSQLite, targetStorePostgres, targetStoreSQLite, targetYardstick}
	var all []variant
	for v := range r.Samples {
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b variant) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Target), slices.Index(order, b.Target)), cmp.Compare(a.Callers, b.Callers))
	})
	return all
}

// over all rounds of a variant.
func (r report) over(v variant, value func(sample) float64) spread {
	var values []float64
	for _, s := range r.Samples[v] {
		values = append(values, value(s))
	}
	return spreadOf(values)
}

func (r report) ratesTable() table {
	t := table{
		Title: "Rates and latencies",
		Note: "A unit is a Claim of a new key, then a Complete with 200 bytes: two calls, two durable commits. A unit of the echo server is two calls with messages " +
			"of the same sizes. Absolute rates are of this machine in these minutes only. Rates: min, median and max of the rounds; latencies of a unit: medians.",
		Head: []string{"variant", "callers", "units/s", "median", "max", "p50 ms", "p99 ms"},
	}
	for _, v := range r.variants() {
		rate := r.over(v, sample.rate)
		latency := func(of func(sample) time.Duration) string {
			return number(r.over(v, func(s sample) float64 { return s.ms(of(s)) }).Median)
		}
		t.Rows = append(t.Rows, []string{
			v.Target, fmt.Sprint(v.Callers), number(rate.Min), number(rate.Median), number(rate.Max),
			latency(func(s sample) time.Duration { return s.P50 }), latency(func(s sample) time.Duration { return s.P99 }),
		})
	}
	return t
}

// ms of a duration, if the run is worth anything.
func (s sample) ms(d time.Duration) float64 {
	if s.Failed != "" {
		return math.NaN()
	}
	return float64(d) / float64(time.Millisecond)
}

func (r report) costsTable() table {
	t := table{
		Title: "Processor time and log",
		Note: "Processor seconds for 1000 units, by process; bytes of PostgreSQL's log a unit. Then shares of all processors: of the load, of the whole run, of " +
			"others on the machine, and what the host took away. Medians. The stores alone run within the program that calls them: their time is with it.",
		Head: []string{"variant", "callers", "server s", "PostgreSQL s", "load s", "log B", "load %", "run %", "others %", "stolen %"},
	}
	for _, v := range r.variants() {
		row := []string{v.Target, fmt.Sprint(v.Callers)}
		cell := func(used bool, value func(sample) float64) {
			text := "-"
			if used {
				text = number(r.over(v, value).Median)
			}
			row = append(row, text)
		}
		cell(v.Target != targetYardstick, func(s sample) float64 { return 1000 * s.perUnit(s.Server) })
		cell(v.usesPostgres(), func(s sample) float64 { return 1000 * s.perUnit(s.Postgres) })
		cell(v.hasLoad(), func(s sample) float64 { return 1000 * s.perUnit(s.Client) })
		cell(v.usesPostgres(), func(s sample) float64 { return s.perUnit(s.WAL) })
		cell(v.hasLoad(), func(s sample) float64 { return 100 * s.loadShare() })
		cell(true, func(s sample) float64 { return 100 * s.Ours })
		cell(true, func(s sample) float64 { return 100 * s.Others })
		cell(true, func(s sample) float64 { return 100 * s.Stolen })
		t.Rows = append(t.Rows, row)
	}
	return t
}

// hasLoad: the callers are in a process of their own.
func (v variant) hasLoad() bool {
	return v.Target != targetStorePostgres && v.Target != targetStoreSQLite
}

// loadShare is the load's part of all processors.
func (s sample) loadShare() float64 {
	return s.Ours * ratio(s.Client, s.Server+s.Postgres+s.Client)
}

// loadBound is the load's part of a run's processor time from which on it is the load that is measured.
const loadBound = .5

// othersBound is the part of the processors from which on others are mentioned.
const othersBound = .2

// remarks say what must not be overlooked.
func (r report) remarks() []string {
	var out []string
	var crowded []float64
	for _, v := range r.variants() {
		for round, s := range r.Samples[v] {
			if s.Failed != "" {
				out = append(out, fmt.Sprintf("%v, round %d, is not counted: %s", v, round+1, s.Failed))
			}
		}
		if others := r.over(v, func(s sample) float64 { return s.Others + s.Stolen }).Median; others > othersBound {
			crowded = append(crowded, others)
		}
		share := r.over(v, func(s sample) float64 { return ratio(s.loadShare(), s.Ours) }).Median
		if v.hasLoad() && v.Target != targetYardstick && share > loadBound {
			out = append(out, fmt.Sprintf("%v: the load takes %.0f %% of the run's processor time: a cheaper load would get more out of the server", v, 100*share))
		}
	}
	if len(crowded) > 0 {
		out = append(out, fmt.Sprintf("others took %.0f to %.0f %% of the processors beside %d of %d variants: waits for a processor are in their rates and latencies, "+
			"and processor time a unit is larger than on a quiet machine", 100*slices.Min(crowded), 100*slices.Max(crowded), len(crowded), len(r.Samples)))
	}
	return out
}

func (r report) tables() []table {
	out := []table{r.goalsTable(), r.figuresTable(), r.logTable()}
	if len(r.Samples) > 0 {
		out = append(out, r.ratesTable(), r.costsTable())
	}
	return out
}

func (r report) text(w io.Writer) {
	fmt.Fprintf(w, "\ncommit %s\n%s\n%s\n", r.Commit, strings.Join(r.Machine, "\n"), r.Method)
	for _, t := range r.tables() {
		t.text(w)
	}
	for _, remark := range r.remarks() {
		fmt.Fprintf(w, "\n%s\n", remark)
	}
	r.writeProfiles(w, "\nProfile of %v\n", "", "")
}

func (r report) markdown(w io.Writer) {
	fmt.Fprintf(w, "# Benchmarks\n\nMade by `make bench MARKDOWN=docs/benchmarks.md`, which test/bench explains; not edited by hand.\n\n")
	fmt.Fprintf(w, "%s, commit %s.\n\n", r.Date.UTC().Format(time.DateOnly), r.Commit)
	for _, line := range append(slices.Clone(r.Machine), r.Method) {
		fmt.Fprintf(w, "- %s\n", line)
	}
	for i, t := range r.tables() {
		t.markdown(w)
		if remarks := r.remarks(); i == 0 && len(remarks) > 0 { // beside the verdicts, which they are about
			fmt.Fprintf(w, "\n- %s\n", strings.Join(remarks, "\n- "))
		}
	}
	r.writeProfiles(w, "\n## Profile of %v\n\nPer cent of the processor time: by what it is spent on, then of functions themselves, and with what they call.\n\n", "```text\n", "```\n")
}

func (r report) writeProfiles(w io.Writer, title, begin, end string) {
	for _, p := range r.Profiles {
		fmt.Fprintf(w, title+"%s", p.Of, begin)
		var spent []string
		for _, part := range p.Parts {
			spent = append(spent, fmt.Sprintf("%s %.0f", part.Name, part.Share))
		}
		fmt.Fprintf(w, "%s\n\n", strings.Join(spent, ", "))
		for i := range max(len(p.Own), len(p.Sum)) {
			cell := func(frames []frame) string {
				if i >= len(frames) {
					return ""
				}
				return fmt.Sprintf("%5.1f %s", frames[i].Share, shortName(frames[i].Name))
			}
			fmt.Fprintf(w, "%-62s %s\n", cell(p.Own), cell(p.Sum))
		}
		fmt.Fprint(w, end)
	}
}

// shortName drops the folders of a function's package, and what pprof says beside it.
func shortName(name string) string {
	name = strings.TrimSuffix(name, " (inline)")
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:]
	}
	const most = 54
	return name[:min(len(name), most)]
}
