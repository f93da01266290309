// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// retryPolicy is what the SDKs ship: UNAVAILABLE, and nothing else, is sent again.
const retryPolicy = `{"methodConfig": [{
	"name": [{"service": "opsledger.v1.LedgerService"}],
	"retryPolicy": {
		"maxAttempts": 4, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
	}
}]}`

// worker is one process that calls a ledger: a connection of its own, and a worker_id.
type worker struct {
	pb.LedgerServiceClient
	id string
	// sends counts the calls that left, each retry of the transport too.
	sends *atomic.Int64
	conn  *grpc.ClientConn
}

// dial connects a worker that shows a certificate with one URI SAN. It retries nothing by itself.
func (n *node) dial(t testing.TB, principal string) *worker {
	t.Helper()
	return connect(t, n.grpcAddr, leafOf(t, principal))
}

// dialRetrying is dial with the retry policy that the SDKs ship.
func (n *node) dialRetrying(t testing.TB, principal string) *worker {
	t.Helper()
	return connect(t, n.grpcAddr, leafOf(t, principal), grpc.WithDefaultServiceConfig(retryPolicy))
}

func leafOf(t testing.TB, principal string) *authz.Leaf {
	t.Helper()
	return mint(t, rootA(t), authz.LeafSpec{URIs: []string{principal}})
}

// connect dials any address with any certificate, a proxy's for example. The connection is made by the first call, and ends with the test.
func connect(t testing.TB, addr string, leaf *authz.Leaf, options ...grpc.DialOption) *worker {
	t.Helper()
	w := &worker{id: "worker/" + uuid.NewString(), sends: &atomic.Int64{}}
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(clientTLS(t, leaf))),
		grpc.WithStatsHandler(sendCounter{w.sends}),
		grpc.WithDisableServiceConfig(),
	}, options...)
	conn, err := grpc.NewClient(addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	w.conn, w.LedgerServiceClient = conn, pb.NewLedgerServiceClient(conn)
	return w
}

func clientTLS(t testing.TB, leaf *authz.Leaf) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(rootA(t).PEM())
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots, NextProtos: []string{"h2"},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // sent whatever the server says
			c := leaf.TLS()
			return &c, nil
		},
	}
}

// sendCounter counts attempts: grpc begins each of them anew.
type sendCounter struct{ sends *atomic.Int64 }

func (c sendCounter) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }
func (c sendCounter) HandleRPC(_ context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.Begin); ok {
		c.sends.Add(1)
	}
}

func (c sendCounter) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c sendCounter) HandleConn(context.Context, stats.ConnStats)                       {}

// request is a Claim with a claim_id of its own, decided now; worker.claim sets the worker_id.
func request(tool, task, key, body string) *pb.ClaimRequest {
	return &pb.ClaimRequest{
		Key:     &pb.OperationKey{Tool: tool, Task: task, Key: key},
		ClaimId: uuid.NewString(), RequestJson: []byte(body), IntentTime: timestamppb.New(time.Now()),
	}
}

// sameKey is a Claim of the same key by a new claim_id, with another body.
func sameKey(r *pb.ClaimRequest, body string) *pb.ClaimRequest {
	return &pb.ClaimRequest{Key: r.GetKey(), ClaimId: uuid.NewString(), RequestJson: []byte(body), IntentTime: r.GetIntentTime()}
}

// again is a Claim of the same key and body by a new claim_id.
func again(r *pb.ClaimRequest) *pb.ClaimRequest { return sameKey(r, string(r.GetRequestJson())) }

// tryClaim sends a Claim once. A worker_id that is not set becomes the worker's, in the request too, so that it can be sent again.
func (w *worker) tryClaim(t testing.TB, r *pb.ClaimRequest) (*pb.ClaimResponse, error) {
	if r.GetWorkerId() == "" {
		r.WorkerId = w.id
	}
	return w.Claim(within(t), r)
}

// claim is tryClaim for a Claim that is answered.
func (w *worker) claim(t testing.TB, r *pb.ClaimRequest) *pb.ClaimResponse {
	t.Helper()
	answer, err := w.tryClaim(t, r)
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return answer
}

// grant is claim for a Claim that must be granted, for the first time.
func (w *worker) grant(t testing.TB, r *pb.ClaimRequest) *pb.Grant {
	t.Helper()
	answer := w.claim(t, r)
	g := answer.GetGranted()
	if g == nil || g.GetResent() {
		t.Fatalf("not granted anew: %v", answer)
	}
	return g
}

// result is a success with one resource.
func result(kind, id string) *pb.Result {
	return &pb.Result{Resource: &pb.ResourceRef{Type: kind, Id: id}, Code: "created"}
}

// completion reports a success under a grant.
func completion(operation, claimID, kind, id string) *pb.CompleteRequest {
	return &pb.CompleteRequest{
		OperationId: operation, ClaimId: claimID, SentExactlyOnce: true,
		Outcome: &pb.CompleteRequest_Succeeded{Succeeded: result(kind, id)},
	}
}

// complete sends a Complete and returns its answer.
func (w *worker) complete(t testing.TB, r *pb.CompleteRequest) *pb.CompleteResponse {
	t.Helper()
	answer, err := w.Complete(within(t), r)
	if err != nil {
		t.Fatalf("Complete: %v", err)
	}
	return answer
}

// applied is complete for a report that must be applied.
func (w *worker) applied(t testing.TB, r *pb.CompleteRequest) *pb.CompleteResponse {
	t.Helper()
	answer := w.complete(t, r)
	if answer.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Fatalf("Complete was not applied: %v", answer)
	}
	return answer
}

// markUnknown reports that the outcome could not be seen, which must be applied.
func (w *worker) markUnknown(t testing.TB, operation, claimID string) *pb.MarkUnknownResponse {
	t.Helper()
	answer, err := w.MarkUnknown(within(t), &pb.MarkUnknownRequest{OperationId: operation, ClaimId: claimID, Cause: pb.UnknownCause_UNKNOWN_CAUSE_TIMEOUT})
	if err != nil {
		t.Fatalf("MarkUnknown: %v", err)
	}
	if answer.GetDisposition() != pb.Disposition_DISPOSITION_APPLIED {
		t.Fatalf("MarkUnknown was not applied: %v", answer)
	}
	return answer
}

// outcome names the kind of a Claim's answer as the cases do.
func outcome(r *pb.ClaimResponse) string {
	switch r.GetOutcome().(type) {
	case *pb.ClaimResponse_Granted:
		return "EXECUTE"
	case *pb.ClaimResponse_Completed:
		return "REPLAY"
	case *pb.ClaimResponse_Failed:
		return "FAILED"
	case *pb.ClaimResponse_InProgress:
		return "IN_PROGRESS"
	case *pb.ClaimResponse_Unknown:
		return "UNKNOWN"
	case *pb.ClaimResponse_AwaitingApproval:
		return "AWAITING_APPROVAL"
	case *pb.ClaimResponse_Blocked:
		return "BLOCKED"
	case *pb.ClaimResponse_Waiting:
		return "WAITING"
	default:
		return "NONE"
	}
}

// wantOutcome fails unless a Claim was answered so.
func wantOutcome(t testing.TB, r *pb.ClaimResponse, want string) {
	t.Helper()
	if got := outcome(r); got != want {
		t.Errorf("the Claim was answered %s, want %s: %v", got, want, r)
	}
}

// wantRefusal fails unless an error has the code and, in the detail that every refusal carries, the reason.
func wantRefusal(t testing.TB, err error, code codes.Code, reason pb.ErrorReason) {
	t.Helper()
	name := strings.TrimPrefix(reason.String(), "ERROR_REASON_")
	info := detail[*errdetails.ErrorInfo](err)
	if status.Code(err) != code || info.GetReason() != name || info.GetDomain() != "opsledger" {
		t.Errorf("refused with %v, reason %q of domain %q; want %v, %s", err, info.GetReason(), info.GetDomain(), code, name)
	}
}

// wantConflict fails unless an error is a conflict in these categories, if any are named; it returns the detail.
func wantConflict(t testing.TB, err error, categories ...string) *pb.FingerprintConflict {
	t.Helper()
	wantRefusal(t, err, codes.FailedPrecondition, pb.ErrorReason_ERROR_REASON_FINGERPRINT_CONFLICT)
	conflict := detail[*pb.FingerprintConflict](err)
	if got := strings.Join(conflict.GetCategories(), ","); len(categories) > 0 && got != strings.Join(categories, ",") {
		t.Errorf("the conflict names the categories %q, want %q", got, categories)
	}
	return conflict
}

// wantInvalid fails unless an error is INVALID_ARGUMENT that names exactly this field, and a rule; it returns the rule.
func wantInvalid(t testing.TB, err error, field string) string {
	t.Helper()
	wantRefusal(t, err, codes.InvalidArgument, pb.ErrorReason_ERROR_REASON_VALIDATION)
	violations := detail[*errdetails.BadRequest](err).GetFieldViolations()
	if len(violations) != 1 || violations[0].GetField() != field || violations[0].GetDescription() == "" {
		t.Errorf("the refusal names %v, want the field %s and its rule", violations, field)
		return ""
	}
	return violations[0].GetDescription()
}

// detail returns the first detail of the type; nil if the status has none.
func detail[D any](err error) D {
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(D); ok {
			return d
		}
	}
	var none D
	return none
}

// told is what one of several callers was told.
type told struct {
	answer *pb.ClaimResponse
	err    error
}

// name of what the caller was told: an outcome, CONFLICT, or the status code.
func (o told) name() string {
	switch {
	case o.err == nil:
		return outcome(o.answer)
	case detail[*pb.FingerprintConflict](o.err) != nil:
		return "CONFLICT"
	default:
		return status.Code(o.err).String()
	}
}

// together lets each worker send its Claim at one moment, and returns what they were told, in their order.
func together(t testing.TB, workers []*worker, requests []*pb.ClaimRequest) []told {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all, barrier := make([]told, len(workers)), make(chan struct{})
	var ready, done sync.WaitGroup
	for i, w := range workers {
		if requests[i].GetWorkerId() == "" {
			requests[i].WorkerId = w.id
		}
		ready.Add(1)
		done.Go(func() {
			ready.Done()
			<-barrier
			all[i].answer, all[i].err = w.Claim(ctx, requests[i])
		})
	}
	ready.Wait()
	close(barrier)
	done.Wait()
	return all
}

// tally counts what callers were told.
func tally(all []told) map[string]int {
	counts := map[string]int{}
	for _, o := range all {
		counts[o.name()]++
	}
	return counts
}

// epoch of a grant as its column has it.
func epoch(g *pb.Grant) string { return number(g.GetEpoch()) }

// number as a column has it.
func number(n uint64) string { return strconv.FormatUint(n, 10) }
