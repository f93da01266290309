// SPDX-License-Identifier: Apache-2.0

package contract

import "github.com/opsledger/opsledger/ledger"

// Trial stands for an operation where a contract's owner tries a query out.
type Trial struct {
	DownstreamKey string
	Attributes    map[string]string
}

// Said is what one expression says of an answer: "true", "false" or "no value"; of next, in constant words, where a list goes on.
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

// Explain judges an answer to a trial's question, and says what each expression of the contract says, what is next of which there is more or no saying, and
// whether what was found can't be named. The verdict is that of recovery where it can't have the rest of the list. Expressions that look at an operation's id or
// times have those of none.
func (q *Query) Explain(asked string, a Answer, t Trial) ([]Said, Verdict) {
	vars := answerVariables(a, &ledger.Operation{TargetAttributes: t.Attributes})
	vars["op.downstream_key"] = t.DownstreamKey
	var all []Said
	var said [len(findings)]word
	for i, p := range q.says {
		if said[i] = hear(p, vars); p != nil {
			all = append(all, Said{findings[i], words[said[i]]})
		}
	}
	v := q.judge(a, vars)
	if kind, _ := weigh(said); kind == ledger.FoundResource && v.Evidence.Finding == ledger.AmbiguousThere {
		all = append(all, Said{"result.id", "no value"})
	}
	switch next, err := q.nextPage(asked, a.Status, vars); {
	case err != nil:
		all = append(all, Said{"next", err.Error()})
	case next != "":
		all = append(all, Said{"next", "a further page, which is not asked for"})
	default:
		return all, v
	}
	if v.Open() {
		v = v.With(indeterminate(ledger.QueryNotUnderstood, a), false)
	}
	return all, v
}

var words = [...]string{silent: "", no: "false", yes: "true", broken: "no value"}
