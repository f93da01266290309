// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// Owner is the EvidenceService of who owns a tool. Any number of goroutines may ask it.
type Owner struct{ service pb.EvidenceServiceClient }

// NewOwner asks over a connection.
func NewOwner(conn grpc.ClientConnInterface) Owner { return Owner{pb.NewEvidenceServiceClient(conn)} }

// Question is what an owner is asked about: the operation's id and tool, what the target knows of it, and when it was granted. Times may be zero.
type Question struct {
	OperationID, DownstreamKey string
	Tool                       ledger.Tool
	Attributes                 map[string]string
	FirstGrant, LastGrant      time.Time
	Epoch                      uint64
}

// Unanswered is why an owner's service has told nothing. Its text is constant, and none of the service's own.
type Unanswered struct {
	Cause ledger.IndeterminateCause
	Why   string
	// After is how long it wants to be left alone; 0: it said nothing of that.
	After time.Duration
}

func (u *Unanswered) Error() string { return u.Why }

// Why an owner's service has told nothing.
const (
	whyRefused   = "it does not take this process' certificate, or does not let it ask"
	whyLong      = "its answer is too long"
	whyForm      = "its answer is not what the contract of EvidenceService says"
	whyTime      = "it did not answer in time"
	whyLost      = "it can't be reached, or has failed"
	whyThrottled = "it wants to be asked later"
	whyMeaning   = "it does not know what it was asked"
)

// Probe asks once what became of an operation. What is said counts by the rules of evidence in a Reconcile; observed are the business fields as the target
// has them. An error is an *Unanswered.
func (o Owner) Probe(ctx context.Context, q Question, contract ledger.Contract) (evidence ledger.Evidence, observed []byte, err error) {
	answer, err := o.service.Probe(ctx, &pb.ProbeRequest{
		OperationId: q.OperationID, Tool: string(q.Tool), DownstreamKey: q.DownstreamKey, TargetAttributes: q.Attributes,
		FirstGrantTime: encodeTime(q.FirstGrant), LastGrantTime: encodeTime(q.LastGrant), Epoch: q.Epoch,
	})
	if err != nil {
		return ledger.Evidence{}, nil, unanswered(err)
	}
	f := &form{}
	evidence = evidenceOf(f, answer.GetEvidence(), contract)
	if f.err() != nil {
		return ledger.Evidence{}, nil, &Unanswered{Cause: ledger.QueryNotUnderstood, Why: whyForm}
	}
	return evidence, answer.GetEvidence().GetFound().GetObservedJson(), nil
}

// Inspect asks once how the resource stands that an operation has left: its version now, "" where none is known, or that it is gone. An error is an
// *Unanswered.
func (o Owner) Inspect(ctx context.Context, tool ledger.Tool, left ledger.ResourceRef, attributes map[string]string) (version string, gone bool, err error) {
	answer, err := o.service.Inspect(ctx, &pb.InspectRequest{Tool: string(tool), Resource: encodeResource(left), TargetAttributes: attributes})
	if err != nil {
		return "", false, unanswered(err)
	}
	switch a := answer.GetAnswer().(type) {
	case *pb.InspectResponse_Gone:
		return "", true, nil
	case *pb.InspectResponse_Current:
		return cut(a.Current.GetVersion(), keptText), false, nil
	case *pb.InspectResponse_Indeterminate:
		return "", false, &Unanswered{Cause: ledger.IndeterminateCause(a.Indeterminate.GetCause()), Why: whyMeaning}
	default:
		return "", false, &Unanswered{Cause: ledger.QueryNotUnderstood, Why: whyForm}
	}
}
