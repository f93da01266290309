// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// Lookup returns one operation as it stands. With wait, it waits until there is something to do.
func (s *Server) Lookup(ctx context.Context, req *pb.LookupRequest) (*pb.LookupResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	f := &form{}
	var id ledger.OperationID
	subject, field := req.GetSubject(), "subject"
	switch req.GetSelector().(type) {
	case *pb.LookupRequest_Key:
		key := f.key(req.GetKey())
		key.Scope = c.scope
		f.want(subject == "" || subject == key.Subject, "subject", "must be empty, or the same as key.subject")
		id, subject, field = key.Hash().OperationID(), key.Subject, "key.subject"
	case *pb.LookupRequest_OperationId:
		id = f.operationID("operation_id", req.GetOperationId())
		f.text("subject", subject)
	default:
		f.want(false, "selector", ruleRequired)
	}
	f.schemas("accept_schemas", req.GetAcceptSchemas())
	wait := f.wait(req.GetWait())
	if err = f.err(); err == nil {
		err = c.maySay(field, subject)
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	var op ledger.Operation
	var st ledger.Standing
	may := s.sameSubject(c, subject)
	err = s.ledger.Await(ctx, id, patience(ctx, wait), func(ctx context.Context) (bool, error) {
		var err error
		op, st, err = s.look(ctx, id, may)
		return st.NextAction() != ledger.WaitThen, err
	})
	if err == nil && op.State == ledger.Retired { // only Claim tells that a key was used
		err = ledger.ErrOperationNotFound
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	annotate(ctx, op.Tool, op.ID)
	annotateFingerprint(ctx, op.Fingerprint)
	contract, _ := s.ledger.Contract(op.Tool)
	show := s.mayShow(ctx, c, subject, &op)
	m := &pb.LookupResponse{
		Operation:  encodeOperation(&op, st, show),
		NextAction: pb.NextAction(st.NextAction()), RememberedUntil: rememberedUntil(&op, contract),
	}
	switch {
	case st.Outcome == ledger.OutcomeCompleted:
		m.Outcome = &pb.LookupResponse_Completed{Completed: encodeReplay(&op, show, req.GetAcceptSchemas())}
	case st.Outcome == ledger.OutcomeFailed:
		m.Outcome = &pb.LookupResponse_Failed{Failed: encodeFailure(&op, show)}
	case st.Wait.Reason != 0: // else it is free
		m.Outcome = &pb.LookupResponse_Waiting{Waiting: encodeWait(st.Wait)}
	}
	return m, nil
}

// ListOperations pages through the caller's own operations. One that a newer release wrote has its place, without a state: a page is
// never refused for what one record is.
func (s *Server) ListOperations(ctx context.Context, req *pb.ListOperationsRequest) (*pb.ListOperationsResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	f := &form{}
	if req.GetTask() != "" {
		f.name("task", req.GetTask())
	}
	f.text("subject", req.GetSubject())
	q := ledger.Listing{Scope: c.scope, Task: ledger.Task(req.GetTask()), SubjectDigests: s.ring.SubjectDigests(req.GetSubject())}
	f.want(len(req.GetStates()) <= maxRelated, "states", "must have at most 32 entries")
	for _, state := range req.GetStates() {
		f.known("states", state, false)
		q.States = append(q.States, ledger.State(state))
	}
	q.UpdatedAfter = f.time("update_time_after", req.GetUpdateTimeAfter())
	size := f.pageSize(req.GetPageSize())
	var ok bool
	q.AfterTime, q.AfterID, ok = parsePageToken(req.GetPageToken(), listed(req))
	f.want(ok, "page_token", "must be the next_page_token of a page with the same task, states and update_time_after")
	if err = f.err(); err == nil {
		err = c.maySay("subject", req.GetSubject())
	}
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	q.Limit = size + 1 // one more tells whether there is another page
	ops, now, err := s.ledger.List(ctx, q)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	m := &pb.ListOperationsResponse{}
	if len(ops) > size {
		ops = ops[:size]
		last := &ops[size-1]
		at := last.CreateTime
		if !q.UpdatedAfter.IsZero() {
			at = last.UpdateTime
		}
		m.NextPageToken = pageToken(at, last.ID, listed(req))
	}
	for i := range ops {
		if ops[i].State == 0 { // of a newer release: that it exists is all that can be said
			m.Operations = append(m.Operations, encodeOperation(&ops[i], ledger.Standing{}, false))
			continue
		}
		op, _ := s.show(ctx, c, req.GetSubject(), &ops[i], now)
		m.Operations = append(m.Operations, op)
	}
	return m, nil
}

// A page token is a position in the listing that it came from: version, time in microseconds, id, and a digest of what was listed. It
// is no secret and no right: what may be seen is judged again for each page.
const (
	pageTokenVersion = 1
	pageTokenSize    = 1 + 8 + 16 + 8
)

func pageToken(at time.Time, id ledger.OperationID, listed []byte) string {
	b := make([]byte, 0, pageTokenSize)
	b = append(b, pageTokenVersion)
	b = binary.BigEndian.AppendUint64(b, uint64(at.UnixMicro()))
	b = append(b, id[:]...)
	b = append(b, listed...)
	return base64.RawURLEncoding.EncodeToString(b)
}

func parsePageToken(token string, listed []byte) (at time.Time, id ledger.OperationID, ok bool) {
	if token == "" {
		return time.Time{}, ledger.OperationID{}, true
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != pageTokenSize || b[0] != pageTokenVersion || string(b[25:]) != string(listed) {
		return time.Time{}, ledger.OperationID{}, false
	}
	at = time.UnixMicro(int64(binary.BigEndian.Uint64(b[1:9]))).UTC()
	if at.Year() < 1 || at.Year() > 9999 { // no operation was created or changed then
		return time.Time{}, ledger.OperationID{}, false
	}
	return at, ledger.OperationID(b[9:25]), true
}

// listed is a digest of a listing's filter, without its subject.
func listed(req *pb.ListOperationsRequest) []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(len(req.GetTask())))
	b = append(b, req.GetTask()...)
	b = binary.BigEndian.AppendUint64(b, uint64(len(req.GetStates())))
	for _, state := range req.GetStates() {
		b = binary.BigEndian.AppendUint32(b, uint32(state))
	}
	if after := req.GetUpdateTimeAfter(); after != nil {
		b = binary.BigEndian.AppendUint64(b, uint64(after.GetSeconds()))
		b = binary.BigEndian.AppendUint32(b, uint32(after.GetNanos()))
	}
	sum := sha256.Sum256(b)
	return sum[:8]
}

// GetTool returns what a client needs of a tool's contract.
func (s *Server) GetTool(ctx context.Context, req *pb.GetToolRequest) (*pb.GetToolResponse, error) {
	c, err := s.caller(ctx)
	if err != nil {
		return nil, s.fail(ctx, err, false)
	}
	f := &form{}
	f.tool("tool", req.GetTool())
	if err := f.err(); err != nil {
		return nil, s.fail(ctx, err, false)
	}
	tool := ledger.Tool(req.GetTool())
	switch {
	case !s.policy.ToolAllowed(c.principal, tool):
		return nil, s.fail(ctx, ledger.ErrToolNotAllowed, false)
	case s.unknownTool(tool):
		return nil, s.fail(ctx, ledger.ErrToolUnknown, false)
	}
	contract, _ := s.ledger.Contract(tool)
	payloadLimit := contract.PayloadLimit
	if len(contract.Schemas) == 0 { // no payload is kept
		payloadLimit = 0
	}
	return &pb.GetToolResponse{
		Tool: req.GetTool(), Effect: pb.Effect(contract.Effect),
		DefaultLease: durationpb.New(contract.LeaseDefault), MaxLease: durationpb.New(contract.LeaseMax), SendWithin: durationpb.New(contract.SendWithin),
		TargetAttributes: contract.Attributes, ResultAttributes: contract.ResultAttributes, PayloadLimitBytes: int32(payloadLimit),
		ContractVersion: contract.Version, ValidFor: durationpb.New(s.validFor),
	}, nil
}
