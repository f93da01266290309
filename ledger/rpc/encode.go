// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// Enumerations of package ledger have the contract's numbers, so they are converted, not mapped; a test compares the names.

// encodeOperation shows an operation as it stands. show: its result, and so what it was about, may be shown to the caller now.
func encodeOperation(op *ledger.Operation, s ledger.Standing, show bool) *pb.Operation {
	if op == nil {
		return nil
	}
	m := &pb.Operation{
		Id: op.ID.String(), Tool: string(op.Tool), Task: string(op.Task), Scope: string(op.Scope),
		State: pb.State(op.State), Version: op.Version, Effect: pb.Effect(s.Effect),
		Custody: pb.Custody(op.Custody), Custodian: string(op.Custodian), QueueReason: pb.QueueReason(op.QueueReason),
		FingerprintPrefix: op.Fingerprint.Prefix(),
		CreateTime:        encodeTime(op.CreateTime), UpdateTime: encodeTime(op.UpdateTime),
		WorkerId: op.Grant.WorkerID, Attempts: op.Attempts, LeaseExpireTime: encodeTime(op.Grant.LeaseUntil),
		MayHaveApplied: op.MayHaveApplied, SettleTime: encodeTime(s.SettleTime), NextCheckTime: encodeTime(op.NextCheckTime),
		Checks: op.Detail.Checks, LastFinding: pb.Finding(op.Detail.LastFinding),
		DependsOn: idTexts(op.DependsOn), Compensates: idText(op.Compensates), Corrects: idText(op.Corrects),
		CompensatedBy: idTexts(op.CompensatedBy), NeedsAttention: op.NeedsAttention,
	}
	if op.State == ledger.Received {
		m.WaitingFor = pb.WaitReason(s.Wait.Reason)
		m.ClaimableTime = encodeTime(claimable(op, s))
	}
	if show {
		m.TargetSummary = op.TargetSummary
	}
	return m
}

// claimable is when what a RECEIVED operation waits for ends by itself; zero: nobody knows, or it is free now.
func claimable(op *ledger.Operation, s ledger.Standing) time.Time {
	switch s.Wait.Reason {
	case ledger.LeaseHeld:
		return op.Grant.LeaseUntil
	case ledger.ResourceCheck:
		return op.NextCheckTime
	case ledger.NotBefore:
		if op.MayHaveApplied && s.Effect == ledger.Idempotent && s.SettleTime.After(op.Detail.NotBefore) {
			return s.SettleTime
		}
		return op.Detail.NotBefore
	default:
		return time.Time{}
	}
}

func encodeGrant(op *ledger.Operation, g *ledger.Granted) *pb.Grant {
	m := &pb.Grant{
		OperationId: op.ID.String(), Epoch: g.Epoch, DownstreamKey: op.KeyHash.DownstreamKey(),
		Lease: durationpb.New(g.Lease), Resent: g.Resent,
	}
	if !g.Reserved {
		m.SendWithin = durationpb.New(g.SendWithin)
	}
	if g.Precondition != nil {
		m.Precondition = encodeResource(*g.Precondition)
	}
	return m
}

func encodeWait(w ledger.Wait) *pb.Wait {
	m := &pb.Wait{Reason: pb.WaitReason(w.Reason), OperationIds: idTexts(w.Operations)}
	if w.RetryAfter > 0 {
		m.RetryAfter = durationpb.New(w.RetryAfter)
	}
	return m
}

// encodeReplay shows a result as far as the caller may see it now and says that it can read.
func encodeReplay(op *ledger.Operation, show bool, acceptSchemas []string) *pb.Replay {
	if !show || op.Result == nil {
		return &pb.Replay{Redacted: true}
	}
	r := op.Result
	m := &pb.Replay{Result: encodeResult(r), DroppedAttributes: slices.Clone(op.Detail.DroppedAttributes)}
	switch op.Detail.PayloadOmitted {
	case payloadTooLarge:
		m.PayloadOmitted = pb.PayloadOmission_PAYLOAD_OMISSION_TOO_LARGE
	case payloadUndeclared:
		m.PayloadOmitted = pb.PayloadOmission_PAYLOAD_OMISSION_UNDECLARED
	}
	if len(r.Payload) > 0 && len(acceptSchemas) > 0 && !slices.Contains(acceptSchemas, r.Schema) {
		m.Result.Payload = nil
		m.PayloadOmitted = pb.PayloadOmission_PAYLOAD_OMISSION_SCHEMA_NOT_ACCEPTED
	}
	return m
}

func encodeResult(r *ledger.Result) *pb.Result {
	return &pb.Result{
		Resource: encodeResource(r.Resource), Code: r.Code, Attributes: maps.Clone(r.Attributes), Schema: r.Schema, Payload: r.Payload,
	}
}

// encodeFailure shows a failure; code and message are the target's answer and fall under the same right as a result.
func encodeFailure(op *ledger.Operation, show bool) *pb.Failure {
	f := op.Failure
	if f == nil {
		return &pb.Failure{}
	}
	m := &pb.Failure{Kind: pb.FailureKind(f.Kind)}
	if show {
		m.Code, m.Message = f.Code, f.Message
	}
	return m
}

func encodeResource(r ledger.ResourceRef) *pb.ResourceRef {
	if r == (ledger.ResourceRef{}) {
		return nil
	}
	return &pb.ResourceRef{Type: r.Type, Id: r.ID, Uri: r.URI, Version: r.Version}
}

// rememberedUntil is until when a settled key is refused at least.
func rememberedUntil(op *ledger.Operation, c ledger.Contract) *timestamppb.Timestamp {
	if op == nil || op.FinalTime.IsZero() {
		return nil
	}
	return timestamppb.New(op.FinalTime.Add(c.RetainCompleted))
}

// encodeTime leaves unset what is zero.
func encodeTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func idText(id ledger.OperationID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}

func idTexts(ids []ledger.OperationID) []string {
	var texts []string
	for _, id := range ids {
		texts = append(texts, id.String())
	}
	return texts
}
