// SPDX-License-Identifier: Apache-2.0

package client

import (
	"strings"
	"unicode/utf8"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// maxPayload is the most, in bytes, that any contract lets the ledger keep of a result. More is not even sent: a message beyond the
// server's limit is refused before the ledger sees it, and that the effect exists would be lost with it.
const maxPayload = 64 << 10

// What the ledger keeps of a text, in bytes. A barest form is cut to the same, so that the ledger takes it for the same resource or
// rejection if it has recorded the full form already and its answer went wrong.
const (
	keptCode     = 128
	keptResource = 2048
)

// valid makes a text valid UTF-8, since no message with another one can be sent.
func valid(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// cut shortens a text to so many bytes, at the border of a character.
func cut(s string, most int) string {
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// validResource copies a resource, which is the caller's.
func validResource(r *opsledgerv1.ResourceRef) *opsledgerv1.ResourceRef {
	if r == nil {
		return nil
	}
	return &opsledgerv1.ResourceRef{
		Type: valid(r.GetType()), Id: valid(r.GetId()), Uri: valid(r.GetUri()), Version: valid(r.GetVersion()),
	}
}

// validResult copies a result, which is the caller's.
func validResult(r *opsledgerv1.Result) *opsledgerv1.Result {
	out := &opsledgerv1.Result{
		Resource: validResource(r.GetResource()), Code: valid(r.GetCode()), Attributes: validAttributes(r.GetAttributes()),
	}
	if r.GetSchema() != "" && len(r.GetPayload()) <= maxPayload {
		out.Schema, out.Payload = valid(r.GetSchema()), r.GetPayload()
	}
	return out
}

// validAttributes copies attributes, which are the caller's.
func validAttributes(all map[string]string) map[string]string {
	out := make(map[string]string, len(all))
	for name, value := range all {
		out[valid(name)] = valid(value)
	}
	return out
}

// barest is a report of the same outcome with nothing in it that could be refused for its form: what happened, and to which resource.
func barest(full *opsledgerv1.CompleteRequest) *opsledgerv1.CompleteRequest {
	bare := &opsledgerv1.CompleteRequest{
		OperationId: full.GetOperationId(), ClaimId: full.GetClaimId(), SentExactlyOnce: full.GetSentExactlyOnce(),
	}
	switch o := full.GetOutcome().(type) {
	case *opsledgerv1.CompleteRequest_Succeeded:
		bare.Outcome = &opsledgerv1.CompleteRequest_Succeeded{
			Succeeded: &opsledgerv1.Result{Resource: barestResource(o.Succeeded.GetResource())},
		}
	case *opsledgerv1.CompleteRequest_Rejected:
		bare.Outcome = &opsledgerv1.CompleteRequest_Rejected{
			Rejected: &opsledgerv1.Failure{Kind: o.Rejected.GetKind(), Code: cut(o.Rejected.GetCode(), keptCode)},
		}
	case *opsledgerv1.CompleteRequest_NotExecuted:
		bare.Outcome = &opsledgerv1.CompleteRequest_NotExecuted{
			NotExecuted: &opsledgerv1.NotExecuted{Kind: o.NotExecuted.GetKind(), RetryAfter: o.NotExecuted.GetRetryAfter()},
		}
	}
	return bare
}

// barestResource keeps type and id. A resource without an id has no other name than its URI.
func barestResource(r *opsledgerv1.ResourceRef) *opsledgerv1.ResourceRef {
	if r == nil {
		return nil
	}
	bare := &opsledgerv1.ResourceRef{Type: cut(r.GetType(), keptCode), Id: cut(r.GetId(), keptResource)}
	if bare.GetId() == "" {
		bare.Uri = cut(r.GetUri(), keptResource)
	}
	return bare
}
