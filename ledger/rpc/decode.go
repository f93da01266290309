// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// claimOf decodes and checks a Claim.
func (s *Server) claimOf(c caller, req *pb.ClaimRequest) (ledger.Claim, *fingerprint.Request, time.Duration, error) {
	f := &form{}
	key := f.key(req.GetKey())
	key.Scope = c.scope
	contract, _ := s.ledger.Contract(key.Tool)
	f.uuid("claim_id", req.GetClaimId())
	f.want(isName(req.GetWorkerId()), "worker_id", ruleName)
	f.text("target_summary", req.GetTargetSummary())
	f.known("effect_hint", req.GetEffectHint(), true)
	f.schemas("accept_schemas", req.GetAcceptSchemas())
	cmd := ledger.Claim{
		Key: key, ClaimID: ledger.ClaimID(req.GetClaimId()), WorkerID: req.GetWorkerId(), Actor: c.actor(),
		Lease: f.lease("lease", req.GetLease(), contract.LeaseMax), Reserve: req.GetReserve(),
		TargetSummary:    req.GetTargetSummary(),
		TargetAttributes: f.attributes("target_attributes", req.GetTargetAttributes(), contract.Attributes),
		IntentTime:       f.time("intent_time", req.GetIntentTime()),
		DependsOn:        f.operationIDs("depends_on", req.GetDependsOn()),
		DistinctFrom:     f.operationIDs("distinct_from", req.GetDistinctFrom()),
		EffectHint:       ledger.Effect(req.GetEffectHint()),
	}
	switch r := req.GetRelation().(type) {
	case *pb.ClaimRequest_Compensates:
		cmd.Compensates = f.operationID("compensates", r.Compensates)
	case *pb.ClaimRequest_Corrects:
		cmd.Corrects = f.operationID("corrects", r.Corrects)
	}
	request, err := s.requests.NewRequest(s.ring, cmd, contract, req.GetRequestJson())
	if err = f.canonical("request_json", err); err != nil {
		return ledger.Claim{}, nil, 0, err
	}
	wait := f.wait(req.GetWait())
	if len(f.violations) > 0 && request != nil { // told together; alone it would be judged by the record's contract
		_ = f.canonical("request_json", request.Misfit())
	}
	if err := f.err(); err != nil {
		return ledger.Claim{}, nil, 0, err
	}
	return cmd, request, wait, c.maySay("key.subject", key.Subject)
}

// The bounds of what is kept of a report, in bytes. What is longer is cut: the effect has happened.
const (
	keptCode     = 128
	keptText     = 1024
	keptResource = 2048
	keptDropped  = 64 // names of attributes that are not kept
)

// Why a payload is not kept, as the ledger records it.
const (
	payloadTooLarge   = "TOO_LARGE"
	payloadUndeclared = "UNDECLARED"
)

// outcomeOf decodes the outcome of a Complete. A report that states no outcome is refused; nothing else about its form is.
func outcomeOf(f *form, req *pb.CompleteRequest, contract ledger.Contract) ledger.Complete {
	cmd := ledger.Complete{ClaimID: ledger.ClaimID(req.GetClaimId()), SentExactlyOnce: req.GetSentExactlyOnce()}
	switch o := req.GetOutcome().(type) {
	case *pb.CompleteRequest_Succeeded:
		cmd.Succeeded, cmd.DroppedAttributes, cmd.PayloadOmitted = resultOf(o.Succeeded, contract)
	case *pb.CompleteRequest_Rejected:
		f.definite("rejected.kind", o.Rejected.GetKind())
		cmd.Rejected = failureOf(o.Rejected)
	case *pb.CompleteRequest_NotExecuted:
		kind := o.NotExecuted.GetKind()
		f.want(kind == pb.NotExecutedKind_NOT_EXECUTED_KIND_NEVER_SENT || kind == pb.NotExecutedKind_NOT_EXECUTED_KIND_REFUSED_BEFORE_ACCEPTANCE,
			"not_executed.kind", "must be NEVER_SENT or REFUSED_BEFORE_ACCEPTANCE")
		cmd.NotExecuted = &ledger.NotExecuted{
			Kind: ledger.NotExecutedKind(kind), Detail: cut(o.NotExecuted.GetDetail(), keptText),
			RetryAfter: min(max(o.NotExecuted.GetRetryAfter().AsDuration(), 0), maxRetryAfter),
		}
	default:
		f.want(false, "outcome", ruleRequired)
	}
	return cmd
}

// resultOf keeps what the contract declares, up to its limits, and names the rest.
func resultOf(r *pb.Result, contract ledger.Contract) (result *ledger.Result, dropped []string, omitted string) {
	result = &ledger.Result{Resource: resourceOf(r.GetResource()), Code: cut(r.GetCode(), keptCode)}
	for name, value := range r.GetAttributes() {
		if !slices.Contains(contract.ResultAttributes, name) || len(value) > maxAttributeValue {
			dropped = append(dropped, cut(name, keptCode))
			continue
		}
		if result.Attributes == nil {
			result.Attributes = map[string]string{}
		}
		result.Attributes[name] = value
	}
	slices.Sort(dropped)
	dropped = dropped[:min(len(dropped), keptDropped)]
	declared := slices.Contains(contract.Schemas, r.GetSchema())
	if declared {
		result.Schema = r.GetSchema()
	}
	switch size := len(r.GetPayload()); {
	case size == 0:
	case !declared:
		omitted = payloadUndeclared
	case size > contract.PayloadLimit:
		omitted = payloadTooLarge
	default:
		result.Payload = slices.Clone(r.GetPayload())
	}
	return result, dropped, omitted
}

func resourceOf(r *pb.ResourceRef) ledger.ResourceRef {
	return ledger.ResourceRef{
		Type: cut(r.GetType(), keptCode), ID: cut(r.GetId(), keptResource), URI: cut(r.GetUri(), keptResource), Version: cut(r.GetVersion(), keptText),
	}
}

func failureOf(f *pb.Failure) *ledger.Failure {
	return &ledger.Failure{Kind: ledger.FailureKind(f.GetKind()), Code: cut(f.GetCode(), keptCode), Message: cut(f.GetMessage(), keptText)}
}

// keptAttributes are a report's attributes that the contract declares, cut to what is kept.
func keptAttributes(given map[string]string, contract ledger.Contract) map[string]string {
	var kept map[string]string
	for _, name := range contract.Attributes {
		if value, ok := given[name]; ok {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[name] = cut(value, maxAttributeValue)
		}
	}
	return kept
}

// cut shortens a text to so many bytes, at the border of a character.
func cut(s string, most int) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// evidenceOf decodes and checks a finding. What was observed is compared with the fingerprint by the caller.
func evidenceOf(f *form, e *pb.Evidence, contract ledger.Contract) ledger.Evidence {
	ev := ledger.Evidence{Source: e.GetSource()}
	f.text("evidence.source", e.GetSource())
	switch o := e.GetFinding().(type) {
	case *pb.Evidence_Found:
		ev.Finding = ledger.FoundResource
		f.resource("evidence.found.result.resource", o.Found.GetResult().GetResource())
		ev.Result, _, _ = resultOf(o.Found.GetResult(), contract)
		ev.CreateTime = f.time("evidence.found.create_time", o.Found.GetCreateTime())
	case *pb.Evidence_Rejected:
		ev.Finding = ledger.RejectedThere
		f.definite("evidence.rejected.kind", o.Rejected.GetKind())
		ev.Rejected = failureOf(o.Rejected)
	case *pb.Evidence_Pending:
		ev.Finding = ledger.PendingThere
		ev.RetryAfter = f.retryAfter("evidence.pending.retry_after", o.Pending.GetRetryAfter())
	case *pb.Evidence_NotAccepted:
		ev.Finding, ev.Final = ledger.NotAccepted, o.NotAccepted.GetFinal()
	case *pb.Evidence_NotFound:
		ev.Finding = ledger.NotFound
	case *pb.Evidence_Ambiguous:
		ev.Finding = ledger.AmbiguousThere
		f.want(len(o.Ambiguous.GetCandidates()) <= maxRelated, "evidence.ambiguous.candidates", "must name at most 32 resources")
		for _, candidate := range o.Ambiguous.GetCandidates() {
			ev.Candidates = append(ev.Candidates, resourceOf(candidate))
		}
	case *pb.Evidence_Indeterminate:
		ev.Finding = ledger.Indeterminate
		f.known("evidence.indeterminate.cause", o.Indeterminate.GetCause(), false)
		ev.Cause = ledger.IndeterminateCause(o.Indeterminate.GetCause())
		ev.RetryAfter = f.retryAfter("evidence.indeterminate.retry_after", o.Indeterminate.GetRetryAfter())
	default:
		f.want(false, "evidence.finding", ruleRequired)
	}
	return ev
}
