// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/common/types"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/opsledger/opsledger/ledger"
)

// Probe says how a target is asked what became of an operation: exactly one of its fields is set.
type Probe struct {
	HTTP *Query
	// GRPC is the address of the owner's EvidenceService.
	GRPC string
	// External: somebody with the reconciler's role asks, and reports by Reconcile.
	External bool
}

// Query is a question over HTTP, and how its answer is judged. It does no I/O: who asks sends a GET to URL with Headers, follows no
// redirect, and gives the answer to Judge. Any number of goroutines may use one.
type Query struct {
	question
	says                         [len(findings)]*program
	observed                     map[string]*program
	created, next                *program
	id, kind, uri, version, code *program
}

// question is what is sent.
type question struct {
	address *address
	headers []Header
}

// Headers to send besides those of every request.
func (q question) Headers() []Header { return slices.Clone(q.headers) }

// URL to ask about an operation. An error means that it can't be asked: an attribute that the address needs is not known, or would change
// its path.
func (q *Query) URL(op *ledger.Operation) (string, error) {
	return q.address.fill(known(op, ledger.ResourceRef{}))
}

// The findings in the order in which they count.
const (
	saysPending = iota
	saysRejected
	saysAmbiguous
	saysFound
	saysNotAccepted
	saysNotAcceptedFinal
	saysNotFound
)

// findings are the keys of the expressions, in that order.
var findings = [...]string{"pending", "rejected", "ambiguous", "found", "not_accepted", "not_accepted_final", "not_found"}

// Answer is what a target said over HTTP.
type Answer struct {
	Status int
	Header http.Header
	// Body, of which at most MaxBody bytes are looked at.
	Body []byte
}

// Verdict is what an answer says. Observed is a JSON object of the business fields as the target has them, in the request's own names,
// to be compared with the fingerprint; what then differs or lacks is added to the evidence, whose Missing names "created" if the contract wants the
// time of creation and the answer has none.
type Verdict struct {
	Evidence ledger.Evidence
	Observed []byte
}

// Judge says what an answer means for the operation that was asked about. An answer about the query itself (401, 403, 407, 408, 425, 429, 5xx) is
// never evidence, whatever the expressions say.
func (q *Query) Judge(a Answer, op *ledger.Operation) Verdict {
	return q.judge(a, answerVariables(a, op))
}

func (q *Query) judge(a Answer, vars map[string]any) Verdict {
	if cause := noAnswer(a.Status); cause != 0 {
		return indeterminate(cause, a)
	}
	var said [len(findings)]word
	for i, p := range q.says {
		said[i] = hear(p, vars)
	}
	switch kind, final := weigh(said); kind {
	case ledger.PendingThere:
		return Verdict{Evidence: ledger.Evidence{Finding: kind, RetryAfter: retryAfter(a)}}
	case ledger.RejectedThere:
		return Verdict{Evidence: ledger.Evidence{Finding: kind, Rejected: &ledger.Failure{Kind: ledger.Declined}}}
	case ledger.FoundResource:
		return q.foundThere(vars)
	case ledger.AmbiguousThere:
		return q.ambiguous(vars)
	case ledger.NotAccepted, ledger.NotFound:
		return Verdict{Evidence: ledger.Evidence{Finding: kind, Final: final}}
	default:
		return indeterminate(ledger.QueryNotUnderstood, a)
	}
}

// word is what one expression says.
type word uint8

const (
	silent word = iota // there is no such expression
	no
	yes
	broken // it has no value
)

func hear(p *program, vars map[string]any) word {
	if p == nil {
		return silent
	}
	switch v, err := p.eval(vars); {
	case err != nil:
		return broken
	case v == types.True:
		return yes
	case v == types.False:
		return no
	default:
		return broken
	}
}

// weigh takes the first that is true, in the order of findings. What can't be evaluated might be true:
//
//   - Something is there and it can't be told what: found or ambiguous, while found and rejected are both true, or rejected and ambiguous, or one
//     that comes before can't be evaluated. That is ambiguous: it must not be forgotten that something was seen, and must not count as done.
//   - Nothing is there: only where found and ambiguous say no. Then what pending and rejected ask about does not exist, and may well
//     have no value ("body.data[0].state" of an empty list).
//   - Rejected, while one of the others can't be evaluated: nothing is known.
func weigh(said [len(findings)]word) (kind ledger.Finding, final bool) {
	is := func(w word, which ...int) bool {
		return slices.ContainsFunc(which, func(i int) bool { return said[i] == w })
	}
	switch {
	case is(yes, saysPending):
		return ledger.PendingThere, false
	case is(yes, saysAmbiguous):
		return ledger.AmbiguousThere, false
	case is(yes, saysFound) && (is(yes, saysRejected) || is(broken, saysPending, saysRejected, saysAmbiguous)):
		return ledger.AmbiguousThere, false
	case is(yes, saysFound):
		return ledger.FoundResource, false
	case is(broken, saysAmbiguous, saysFound), is(broken, saysPending, saysRejected) && !is(no, saysFound):
		return ledger.Indeterminate, false
	case is(yes, saysRejected) && !is(broken, saysPending):
		return ledger.RejectedThere, false
	case is(yes, saysRejected):
		return ledger.Indeterminate, false
	case is(yes, saysNotAccepted):
		return ledger.NotAccepted, false
	case is(yes, saysNotAcceptedFinal):
		return ledger.NotAccepted, true
	case is(yes, saysNotFound):
		return ledger.NotFound, false
	default:
		return ledger.Indeterminate, false
	}
}

// noAnswer says why a status is about the query and not about what was asked; 0: it is an answer.
func noAnswer(status int) ledger.IndeterminateCause {
	switch {
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusProxyAuthRequired:
		return ledger.QueryNotAuthorized
	case status == http.StatusTooManyRequests:
		return ledger.QueryThrottled
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500, status < 200:
		return ledger.QueryUnavailable
	default:
		return 0
	}
}

func indeterminate(cause ledger.IndeterminateCause, a Answer) Verdict {
	return Verdict{Evidence: ledger.Evidence{Finding: ledger.Indeterminate, Cause: cause, RetryAfter: retryAfter(a)}}
}

// retryAfter is when the target wants to be asked again, by its own clock. Who asks bounds it.
func retryAfter(a Answer) time.Duration {
	text := a.Header.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	sent, unsaid := http.ParseTime(a.Header.Get("Date"))
	if err != nil || unsaid != nil {
		return 0
	}
	return max(at.Sub(sent), 0)
}

// The bounds of what names a resource, those of reports.
const (
	longestCode     = 128
	longestResource = 2048
	longestVersion  = 1024
)

// resource names what is there; false: it can't be named.
func (q *Query) resource(vars map[string]any) (ledger.ResourceRef, bool) {
	r := ledger.ResourceRef{
		ID: text(q.id, vars, longestResource), Type: text(q.kind, vars, longestCode),
		URI: text(q.uri, vars, longestResource), Version: text(q.version, vars, longestVersion),
	}
	return r, r.ID != ""
}

func (q *Query) foundThere(vars map[string]any) Verdict {
	resource, named := q.resource(vars)
	if !named {
		return q.ambiguous(vars)
	}
	ev := ledger.Evidence{
		Finding: ledger.FoundResource,
		Result:  &ledger.Result{Resource: resource, Code: text(q.code, vars, longestCode)},
	}
	if q.created != nil {
		if ev.CreateTime = instant(q.created, vars); ev.CreateTime.IsZero() {
			ev.Missing = []string{"created"}
		}
	}
	return Verdict{Evidence: ev, Observed: q.observe(vars)}
}

func (q *Query) ambiguous(vars map[string]any) Verdict {
	ev := ledger.Evidence{Finding: ledger.AmbiguousThere}
	if resource, named := q.resource(vars); named {
		ev.Candidates = []ledger.ResourceRef{resource}
	}
	return Verdict{Evidence: ev}
}

// observe leaves out what has no value: whether that matters is the verify list's word.
func (q *Query) observe(vars map[string]any) []byte {
	if q.observed == nil {
		return nil
	}
	b := []byte{'{'}
	for _, field := range slices.Sorted(maps.Keys(q.observed)) {
		v, err := q.observed[field].eval(vars)
		if err != nil {
			continue
		}
		entry, err := jsontext.AppendQuote(nil, field)
		if err != nil {
			continue
		}
		if entry, err = appendValue(append(entry, ':'), v, 1); err != nil || len(b)+len(entry) > maxObserved {
			continue
		}
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(b, entry...)
	}
	return append(b, '}')
}

// text is an expression's value as a text; "" where it has none, or a longer one than is kept.
func text(p *program, vars map[string]any, most int) string {
	if p == nil {
		return ""
	}
	v, err := p.eval(vars)
	if err != nil {
		return ""
	}
	out := ""
	switch v := v.(type) {
	case types.String:
		out = string(v)
	case types.Int:
		out = strconv.FormatInt(int64(v), 10)
	case types.Uint:
		out = strconv.FormatUint(uint64(v), 10)
	}
	if len(out) > most {
		return ""
	}
	return out
}

// instant is an expression's value as a time; zero where it has none.
func instant(p *program, vars map[string]any) time.Time {
	v, err := p.eval(vars)
	if err != nil {
		return time.Time{}
	}
	switch v := v.(type) {
	case types.Timestamp:
		return v.UTC()
	case types.String:
		if at, err := time.Parse(time.RFC3339, string(v)); err == nil {
			return at.UTC()
		}
	}
	return time.Time{}
}

func answerVariables(a Answer, op *ledger.Operation) map[string]any {
	headers := make(map[string]string, len(a.Header))
	for name, values := range a.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	vars := operationVariables(op)
	vars["status"], vars["headers"] = int64(a.Status), headers
	vars["op.downstream_key"] = op.KeyHash.DownstreamKey()
	first := op.FirstStart
	if first.IsZero() {
		first = op.CreateTime
	}
	vars["op.first_grant_time"], vars["op.last_grant_time"], vars["op.epoch"] = first, op.Grant.Time, int64(op.Grant.Epoch)
	if body, err := decode(a.Body); err == nil {
		vars["body"] = exact{}.NativeToValue(body)
	} else {
		vars["body"] = types.NewErr("the body is not one JSON value") // only for expressions that look at it
	}
	return vars
}

func operationVariables(op *ledger.Operation) map[string]any {
	attributes := op.TargetAttributes
	if attributes == nil {
		attributes = map[string]string{}
	}
	return map[string]any{
		"op.operation_id": op.ID.String(), "op.tool": string(op.Tool), "op.task": string(op.Task), "op.attributes": attributes,
	}
}
