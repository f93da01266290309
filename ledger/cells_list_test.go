// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"slices"
	"strings"
)

// cellTable names the cells of one table.
type cellTable struct {
	name  string
	specs []string
}

// The cells that there must be. "states : commands : who": a state may name the only lease, custody or doubt that counts; without
// a who the commands show no claim_id.
const (
	everyone = "holder,earlier,stranger"
	worker   = "claim,claim-other,start,renew,succeeded,rejected,not-executed,mark-unknown"
	others   = "check,found,rejected-evidence,pending,not-accepted,not-accepted-final,not-found,ambiguous,indeterminate,take-over,hand-back," +
		"resolve-happened,resolve-retry,resolve-stop,approve,check-now,note,expire,retire"
	findings   = "found,rejected-evidence,pending,not-accepted,not-accepted-final,not-found,ambiguous,indeterminate"
	unsettled  = "RECEIVED,PROCESSING,UNKNOWN"
	inspection = "inspect-unchanged,inspect-changed"
	waitsFor   = "RECEIVED/over/no/automation,RECEIVED/over/no/operator"
	rewritten  = "RECEIVED/over/no,PROCESSING/alive/no,UNKNOWN/no"
)

var tables = []cellTable{
	{"main", []string{
		unsettled + ",COMPLETED,FAILED : " + worker + " : " + everyone,
		unsettled + ",COMPLETED,FAILED : cancel : " + everyone + ",nobody",
		unsettled + ",COMPLETED,FAILED : " + others,
		"RETIRED,absent : " + worker + ",cancel," + others,
	}},
	{"unsafe", []string{unsettled + " : claim,succeeded : " + everyone, unsettled + " : not-found,not-accepted-final"}},
	{"unsafe-repeat", []string{"UNKNOWN : not-found,not-accepted-final"}},
	{"read", []string{"RECEIVED,PROCESSING : claim,rejected,mark-unknown : " + everyone}},
	{"idempotent-early", []string{"RECEIVED/over : claim : " + everyone, "RECEIVED/over : resolve-retry,resolve-stop"}},
	{"unbounded", []string{
		"RECEIVED/over : claim : stranger",
		"UNKNOWN : rejected-evidence,not-accepted,not-accepted-final,not-found,resolve-happened,resolve-retry,resolve-stop",
	}},
	{"late", []string{"RECEIVED/over : claim : stranger", "UNKNOWN : not-accepted,not-accepted-final,not-found"}},
	{"exhausted", []string{"RECEIVED/over : claim : " + everyone}},
	{"sticky", []string{unsettled + " : rejected : " + everyone, "UNKNOWN : rejected-evidence"}},
	{"sent-twice", []string{unsettled + " : rejected,not-executed : holder"}},
	{"no-method", []string{unsettled + " : claim,rejected,mark-unknown : " + everyone, unsettled + " : check,hand-back,check-now"}},
	{"regrant", []string{unsettled + ",COMPLETED,FAILED,RETIRED,absent : regrant"}},
	{"regrant-exhausted", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-unsafe", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-late", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-idempotent", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"regrant-idempotent-early", []string{"PROCESSING,UNKNOWN : regrant"}},
	{"freed", []string{"RECEIVED/over : claim,renew,succeeded,rejected,not-executed,mark-unknown : holder,earlier"}},
	{"released", []string{"RECEIVED/over : claim,renew,succeeded,rejected,not-executed,mark-unknown : holder,earlier"}},
	{"never-started", []string{"RECEIVED/over/no : claim : stranger", "RECEIVED/over/no : found,resolve-happened,resolve-retry,resolve-stop"}},
	{"mismatch", []string{unsettled + " : found-different,found-missing,found-older"}},
	{"other-resource", []string{"COMPLETED : succeeded : " + everyone, "COMPLETED : found"}},
	{"cancelled", []string{"FAILED : cancel : " + everyone + ",nobody"}},
	{"kept", []string{"RECEIVED/operator,PROCESSING/operator,UNKNOWN/operator : hand-back,resolve-happened,resolve-retry,resolve-stop"}},
	{"overtaken", []string{"PROCESSING/automation : claim : " + everyone, "PROCESSING/automation : renew,rejected,not-executed,mark-unknown : holder"}},
	{"proposal", []string{"UNKNOWN/operator : resolve-happened,resolve-retry,resolve-stop"}},
	{"approval", []string{waitsFor + " : claim : stranger", waitsFor + " : approve,approve-reject,expire"}},
	{"resource-changed", []string{"RECEIVED/over/queued : claim : stranger", "RECEIVED/over/queued : approve,approve-reject,check-now"}},
	{"inspect", []string{
		"RECEIVED/over : " + inspection + ",inspect-gone,inspect-no-version,inspect-indeterminate",
		"PROCESSING,UNKNOWN,COMPLETED,FAILED,RETIRED,absent : " + inspection,
	}},
	{"older-timeline", []string{
		rewritten + " : " + worker + " : " + everyone,
		rewritten + " : cancel : holder,nobody",
		rewritten + " : found,not-found,check-now,note,expire",
	}},
	{"early-check", []string{"UNKNOWN : " + findings}},
	{"unasked", []string{"UNKNOWN/automation : " + findings}},
	{"seen", []string{"UNKNOWN : not-accepted,not-accepted-final,not-found"}},
	{"over-budget", []string{"UNKNOWN : found,rejected-evidence,pending,not-accepted,not-found,indeterminate"}},
	{"not-repeated", []string{"UNKNOWN : not-accepted,not-accepted-final,not-found"}},
	{"verify-unstated", []string{unsettled + ",COMPLETED,FAILED : found"}},
	{"other-worker", []string{"RECEIVED/alive,PROCESSING,UNKNOWN,COMPLETED,FAILED : claim : holder"}},
	{"window-over", []string{
		"RECEIVED/alive,PROCESSING/alive : claim : " + everyone,
		"RECEIVED/alive,PROCESSING/alive : start,renew,succeeded : holder",
	}},
	{"paused", []string{
		unsettled + ",COMPLETED,FAILED : claim,start,renew,succeeded : " + everyone,
		"UNKNOWN,RECEIVED : check,not-found,check-now", "RETIRED,absent : claim",
	}},
	{"revoked", []string{
		unsettled + ",COMPLETED,FAILED : claim,claim-other : " + everyone, unsettled + ",COMPLETED,FAILED : renew,succeeded,mark-unknown : holder",
		"RECEIVED/alive/automation : start : holder", "RETIRED,absent : claim",
	}},
	{"reserve", []string{"RECEIVED/over : claim : stranger", "absent : claim"}},
	{"stale-version", []string{unsettled + ",COMPLETED,FAILED : take-over,hand-back,resolve-happened,resolve-retry,resolve-stop,approve"}},
	{"another-has-it", []string{
		"RECEIVED/operator,PROCESSING/operator,UNKNOWN/operator : take-over,hand-back,resolve-happened,resolve-retry,resolve-stop,note",
	}},
	{"early-search", []string{"RECEIVED/over/operator,PROCESSING/operator,UNKNOWN/operator : resolve-happened,resolve-retry,resolve-stop"}},
	{"not-cleared", []string{"RECEIVED/over : claim : stranger"}},
	{"cleared", []string{"RECEIVED : claim : stranger", "RECEIVED/alive : start : holder"}},
	{"original-contradicted", []string{"RECEIVED : claim : stranger", "RECEIVED/alive : start : holder", "PROCESSING : claim,renew,succeeded : holder"}},
	{"kept-other", []string{"PROCESSING/operator : hand-back,resolve-happened"}},
	{"other-failure", []string{"FAILED : rejected : " + everyone}},
	{"completed-by-earlier", []string{"COMPLETED : rejected : " + everyone}},
	{"completed-by-evidence", []string{"COMPLETED : rejected : " + everyone}},
	{"too-old", []string{"RECEIVED/over/automation : claim : stranger", "COMPLETED,FAILED : claim : stranger", "RETIRED,absent : claim"}},
	{"too-old-read", []string{"absent : claim"}},
	{"dependency-retired", []string{"RECEIVED/over/automation : claim : stranger", "RECEIVED/alive/automation : start : holder", "absent : claim"}},
	{"dependency-retired-failed", []string{"RECEIVED/over/automation : claim : stranger", "RECEIVED/alive/automation : start : holder", "absent : claim"}},
	{"referenced", []string{"COMPLETED,FAILED : retire"}},
	{"contradicted", []string{"COMPLETED,FAILED : retire"}},
	{"open-windows", []string{"RECEIVED : expire", "COMPLETED,FAILED : retire"}},
	{"watermark", []string{"RECEIVED/over : claim : stranger", "absent : claim"}},
	{"watermark-no-method", []string{"absent : claim"}},
	{"watermark-read", []string{"absent : claim"}},
}

// situations are the ways in which an operation of a state can stand: lease, custody, doubt.
func situations(state string) [][3]string {
	leases, custodies := []string{"-"}, []string{"automation", "queued", "operator"}
	switch state {
	case "RECEIVED":
		leases = []string{"alive", "over"}
	case "PROCESSING":
		leases, custodies = []string{"alive", "over"}, []string{"automation", "operator"}
	case "UNKNOWN":
	default:
		return [][3]string{{"-", "-", "-"}}
	}
	var all [][3]string
	for _, lease := range leases {
		for _, custody := range custodies {
			all = append(all, [3]string{lease, custody, "no"}, [3]string{lease, custody, "yes"})
		}
	}
	return all
}

func (table cellTable) enumerate() []cell {
	var all []cell
	for _, spec := range table.specs {
		parts := append(strings.Split(spec, " : "), "-")
		for _, named := range strings.Split(parts[0], ",") {
			only := strings.Split(named, "/")
			for _, command := range strings.Split(parts[1], ",") {
				for _, s := range situations(only[0]) {
					if slices.ContainsFunc(only[1:], func(word string) bool { return !slices.Contains(s[:], word) }) {
						continue
					}
					for _, who := range strings.Split(parts[2], ",") {
						all = append(all, cell{table.name, only[0], command, who, s[0], s[1], s[2]})
					}
				}
			}
		}
	}
	return all
}

var words = struct{ answers, states, custodies, doubts, events []string }{
	answers: []string{
		"granted", "resent", "started", "renewed", "completed", "failed", "in-progress:LEASE_HELD", "in-progress:SETTLED", "unknown:CHECK_SCHEDULED",
		"unknown:QUEUED", "unknown:HELD_BY_OPERATOR", "waiting:QUEUED", "waiting:HELD_BY_OPERATOR", "waiting:NOT_BEFORE",
		"awaiting-approval:APPROVAL_PENDING", "stop:SUPERSEDED", "stop:SETTLED", "stop:HELD_BY_OPERATOR", "stop:LEASE_OVER",
		"applied", "observed", "contradiction", "taken", "not-taken", "ok", "nothing", "FINGERPRINT_CONFLICT", "KEY_RETIRED", "STALE_GRANT",
		"LEASE_OVER", "TOO_EARLY", "KEY_TOO_OLD", "DEPENDENCY_FAILED", "NOT_IN_CUSTODY", "HELD_BY_OPERATOR", "BLOCKED", "ILLEGAL_TRANSITION", "EFFECT_FOUND", "OPERATION_NOT_FOUND", "STALE_VERSION",
		"TOOL_PAUSED", "TOOL_NOT_ALLOWED", "ORIGINAL_UNSETTLED", "blocked:TOOL_PAUSED", "blocked:ORIGINAL_UNSETTLED", "waiting:RESOURCE_CHECK",
	},
	states: []string{"RECEIVED", "PROCESSING", "COMPLETED", "FAILED", "UNKNOWN", "RETIRED", "absent"},
	custodies: []string{
		"-", "automation", "operator", "queued(NO_METHOD)", "queued(GAVE_UP)", "queued(EVIDENCE_MISMATCH)", "queued(EVIDENCE_INCOMPLETE)",
		"queued(AMBIGUOUS)", "queued(KEY_WINDOW_OVER)", "queued(RESOURCE_CHANGED)", "queued(ATTEMPTS_EXHAUSTED)", "queued(REPEAT_NOT_ALLOWED)",
		"queued(QUARANTINE)",
	},
	doubts: []string{"-", "no", "yes"},
	events: []string{
		"-", "GRANTED", "STARTED", "COMPLETED", "FAILED", "NOT_EXECUTED", "MARKED_UNKNOWN", "LEASE_LAPSED", "CHECK_TAKEN", "EVIDENCE", "QUEUED",
		"TAKEN_OVER", "HANDED_BACK", "RESOLVED", "APPROVAL", "OBSERVED", "OBSERVED+attention", "OBSERVED+kept", "OBSERVED+seen", "OBSERVED+seen+raised", "OBSERVED+attention+seen+raised", "OBSERVED+attention+raised", "CONTRADICTED", "CONTRADICTED+kept", "CONTRADICTED+seen", "CONTRADICTED+seen+raised",
		"NOTE", "CANCELLED", "QUARANTINED", "RETIRED", "REGRANTED", "CHECK_REQUESTED", "PROPOSED", "CLEARED", "EXPIRED",
	},
}
