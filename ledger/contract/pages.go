// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"net/url"

	"cel.dev/cel-go/common/types"

	"github.com/opsledger/opsledger/ledger"
)

var errNextPage = errors.New("its next page is not named, or lies on another server")

// Next is where a list goes on of which an answer has the first page; "": there is no more. asked is the address of that question: the next page lies on the
// same server, and its address may be relative. An error means that there may be more, and that it can't be asked for; its text is constant.
func (q *Query) Next(asked string, a Answer, op *ledger.Operation) (string, error) {
	return q.nextPage(asked, a.Status, answerVariables(a, op))
}

func (q *Query) nextPage(asked string, status int, vars map[string]any) (string, error) {
	if q.next == nil || noAnswer(status) != 0 {
		return "", nil
	}
	v, err := q.next.eval(vars)
	if err != nil {
		return "", errNextPage
	}
	switch text, isText := v.(types.String); {
	case v.Type() == types.NullType, isText && text == "":
		return "", nil
	case !isText || len(text) > maxAddress:
		return "", errNextPage
	default:
		return onThatServer(asked, string(text))
	}
}

// onThatServer resolves a reference; it leads to the scheme, host and port of the question, or to nowhere.
func onThatServer(asked, reference string) (string, error) {
	base, err := url.Parse(asked)
	if err != nil {
		return "", errNextPage
	}
	u, err := base.Parse(reference)
	if err != nil || u.Scheme != base.Scheme || u.Host != base.Host || u.User != nil {
		return "", errNextPage
	}
	u.Fragment, u.RawFragment = "", ""
	return u.String(), nil
}

// Open: what the rest of a list says may matter. Nothing that it says could change any other verdict.
func (v Verdict) Open() bool {
	return v.Evidence.Finding == ledger.FoundResource || v.absent()
}

func (v Verdict) absent() bool {
	return v.Evidence.Finding == ledger.NotFound || v.Evidence.Finding == ledger.NotAccepted && !v.Evidence.Final
}

// With is what a list says whose first page says v, and whose second one says next. more: there is a third one, which nobody reads. Nothing is said to be
// absent, or to be there but once, before all is read; and what was seen is not forgotten because the rest can't be had.
func (v Verdict) With(next Verdict, more bool) Verdict {
	there := v.Evidence.Finding == ledger.FoundResource
	unread := next.Evidence.Finding == ledger.Indeterminate || more && next.Open()
	switch {
	case next.Evidence.Finding == ledger.PendingThere, !there && !unread:
		return next
	case there && next.absent() && !unread:
		return v
	case !there && next.Evidence.Finding == ledger.Indeterminate:
		return next
	case !there && next.absent():
		return indeterminate(ledger.QueryNotUnderstood, Answer{})
	}
	// Found twice, or found and refused, or found while there is more.
	both := ledger.Evidence{Finding: ledger.AmbiguousThere}
	for _, page := range []ledger.Evidence{v.Evidence, next.Evidence} {
		if page.Result != nil {
			both.Candidates = append(both.Candidates, page.Result.Resource)
		}
		both.Candidates = append(both.Candidates, page.Candidates...)
	}
	return Verdict{Evidence: both}
}
