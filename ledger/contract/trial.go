// SPDX-License-Identifier: Apache-2.0

package contract

import "github.com/opsledger/opsledger/ledger"

// Trial stands for an operation where a contract's owner tries a query out.
type Trial struct {
	DownstreamKey string
	Attributes    map[string]string
}

// Said is what one expression says of an answer: "true", "false" or "no value".
type Said struct{ Expression, Value string }

// TrialURL is the address to ask about a trial. What the address needs and a trial does not have is an error, as in URL.
func (q *Query) TrialURL(t Trial) (string, error) {
	op := ledger.Operation{TargetAttributes: t.Attributes}
	others := known(&op, ledger.ResourceRef{})
	return q.address.fill(func(place string) string {
		switch place {
		case "downstream_key":
			return t.DownstreamKey
		case "operation_id": // there is none
			return ""
		default:
			return others(place)
		}
	})
}

// Explain judges an answer to a trial, and says what each expression of the contract says. Those that look at an operation's id or times have
// those of none.
func (q *Query) Explain(a Answer, t Trial) ([]Said, Verdict) {
	vars := answerVariables(a, &ledger.Operation{TargetAttributes: t.Attributes})
	vars["op.downstream_key"] = t.DownstreamKey
	var all []Said
	for i, p := range q.says {
		if p != nil {
			all = append(all, Said{findings[i], words[hear(p, vars)]})
		}
	}
	return all, q.judge(a, vars)
}

var words = [...]string{silent: "", no: "false", yes: "true", broken: "no value"}
