// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// buffer is written by the server and read by the test.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// bending is a server of which a test replaces one method.
type bending struct {
	pb.LedgerServiceServer
	lookup   func(ctx context.Context, req *pb.LookupRequest) (*pb.LookupResponse, error)
	complete func(ctx context.Context, req *pb.CompleteRequest) (*pb.CompleteResponse, error)
}

func (b *bending) Lookup(ctx context.Context, req *pb.LookupRequest) (*pb.LookupResponse, error) {
	return b.lookup(ctx, req)
}

func (b *bending) Complete(ctx context.Context, req *pb.CompleteRequest) (*pb.CompleteResponse, error) {
	return b.complete(ctx, req)
}

func TestPanicShowsNothingAndIsLoggedWithItsPlace(t *testing.T) {
	log := &buffer{}
	w := newWorld(t, setup{
		log: slog.New(slog.NewTextHandler(log, nil)),
		service: func(s pb.LedgerServiceServer) pb.LedgerServiceServer {
			return &bending{LedgerServiceServer: s, lookup: func(context.Context, *pb.LookupRequest) (*pb.LookupResponse, error) { panic("canary") }}
		},
	})
	_, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{})
	s := refused(t, err, codes.Internal, "UNSPECIFIED")
	if strings.Contains(s.String()+log.String(), "canary") {
		t.Errorf("the panic's value is shown: %v, %s", s, log)
	}
	if !strings.Contains(log.String(), "panic in a call") || !strings.Contains(log.String(), "TestPanicShowsNothing") {
		t.Errorf("log: %s", log)
	}
	w.granted(t, "agent-a", w.claim("key-1"))
}

func TestLogNamesTheOperationAndNoValue(t *testing.T) {
	log := &buffer{}
	w := newWorld(t, setup{log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	req := w.claim("canary-key")
	req.Key.Subject = "canary-user"
	req.TargetAttributes = map[string]string{"canary-name": "canary-value"}
	grant := w.granted(t, "serves-users", req)
	bad := w.claim("canary key")
	_, err := w.client.Claim(as(t, "agent-a"), bad)
	refused(t, err, codes.InvalidArgument, "VALIDATION")
	done := succeeded(grant, req.GetClaimId())
	done.GetSucceeded().Payload = []byte("canary-payload")
	if _, err := w.client.Complete(as(t, "serves-users"), done); err != nil {
		t.Fatal(err)
	}
	lines := log.String()
	for _, want := range []string{"call finished", grant.GetOperationId(), "tickets.create", "grpc.method=Claim", "error_reason=VALIDATION", "ledger.fingerprint.prefix="} {
		if !strings.Contains(lines, want) {
			t.Errorf("the log lacks %q: %s", want, lines)
		}
	}
	for _, never := range []string{"canary", req.GetClaimId(), "worker-1", "T-1", "peer", "grpc.error"} {
		if strings.Contains(lines, never) {
			t.Errorf("the log has %q: %s", never, lines)
		}
	}
}

func TestDrainingServerGivesNoNewLeases(t *testing.T) {
	w := newWorld(t, setup{})
	req := w.claim("key-1")
	req.Reserve = true
	grant := w.granted(t, "agent-a", req)
	w.draining.Store(true)
	var trailer metadata.MD
	_, err := w.client.Claim(as(t, "agent-a"), w.claim("key-2"), grpc.Trailer(&trailer))
	s := refused(t, err, codes.Unavailable, "DRAINING")
	if detail[*errdetails.RetryInfo](s).GetRetryDelay().AsDuration() != time.Second || !slices.Equal(trailer.Get("grpc-retry-pushback-ms"), []string{"1000"}) {
		t.Errorf("when to send again: %v, %v", s.Proto(), trailer)
	}
	_, err = w.client.Start(as(t, "agent-a"), &pb.StartRequest{OperationId: grant.GetOperationId(), ClaimId: req.GetClaimId()})
	refused(t, err, codes.Unavailable, "DRAINING")
	_, err = w.client.BeginCheck(as(t, "checker"), &pb.BeginCheckRequest{OperationId: grant.GetOperationId(), CommandId: uuid.NewString()})
	refused(t, err, codes.Unavailable, "DRAINING")
	if _, err := w.client.Lookup(as(t, "agent-a"), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: req.GetKey()}}); err != nil {
		t.Error(err)
	}
	if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId())); err != nil {
		t.Error(err)
	}
}

func TestEveryCallHasADeadline(t *testing.T) {
	const none = time.Duration(0)
	left := make(chan time.Duration, 1)
	note := func(ctx context.Context) {
		until, ok := ctx.Deadline()
		if !ok {
			left <- none
			return
		}
		left <- time.Until(until)
	}
	w := newWorld(t, setup{service: func(s pb.LedgerServiceServer) pb.LedgerServiceServer {
		return &bending{
			LedgerServiceServer: s,
			lookup: func(ctx context.Context, _ *pb.LookupRequest) (*pb.LookupResponse, error) {
				note(ctx)
				return &pb.LookupResponse{}, nil
			},
			complete: func(ctx context.Context, _ *pb.CompleteRequest) (*pb.CompleteResponse, error) {
				note(ctx)
				return &pb.CompleteResponse{}, nil
			},
		}
	}})
	for title, test := range map[string]struct{ given, wait, most time.Duration }{
		"none given":                     {none, none, 5 * time.Second},
		"shorter than the cap":           {7 * time.Second, none, 7 * time.Second},
		"longer than the cap":            {time.Hour, none, 10 * time.Second},
		"none given, waits":              {none, 20 * time.Second, 25 * time.Second},
		"waits within a longer deadline": {time.Hour, 60 * time.Second, 70 * time.Second},
		"waits longer than its deadline": {9 * time.Second, 60 * time.Second, 9 * time.Second},
		"waits longer than is allowed":   {time.Hour, time.Hour, 70 * time.Second},
	} {
		t.Run(title, func(t *testing.T) {
			ctx := as(t, "agent-a")
			if test.given != none {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.given)
				defer cancel()
			}
			if _, err := w.client.Lookup(ctx, &pb.LookupRequest{Wait: durationpb.New(test.wait)}); err != nil {
				t.Fatal(err)
			}
			if got := <-left; got > test.most || got < test.most-2*time.Second {
				t.Errorf("got %v, want about %v", got, test.most)
			}
		})
	}
}

func TestCallsAreCounted(t *testing.T) {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	w := newWorld(t, setup{meter: provider.Meter("test"), contracts: contracts{"charge": declared("charge")}})
	req := w.claim("key-1")
	req.Key.Tool = "charge"
	grant := w.granted(t, "agent-a", req)
	again := w.claim("key-1")
	again.Key.Tool = "charge"
	if _, err := w.client.Claim(as(t, "agent-a"), again); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second settles nothing
		if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, req.GetClaimId())); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.client.Claim(as(t, "agent-a"), again); err != nil {
		t.Fatal(err)
	}
	again.RequestJson = []byte(`{}`)
	_, err := w.client.Claim(as(t, "agent-a"), again)
	refused(t, err, codes.FailedPrecondition, "FINGERPRINT_CONFLICT")
	w.granted(t, "agent-a", w.claim("key-1")) // a tool without a contract
	_, err = w.client.Start(as(t, "agent-a"), &pb.StartRequest{OperationId: grant.GetOperationId(), ClaimId: again.GetClaimId()})
	refused(t, err, codes.Aborted, "STALE_GRANT")

	got := series(t, reader)
	for name, want := range map[string]int64{
		"ledger.claims ledger.claim.outcome=granted ledger.tool.name=charge":                 1,
		"ledger.claims ledger.claim.outcome=in_progress ledger.tool.name=charge":             1,
		"ledger.claims ledger.claim.outcome=replayed ledger.tool.name=charge":                1,
		"ledger.claims ledger.claim.outcome=conflict ledger.tool.name=charge":                1,
		"ledger.claims ledger.claim.outcome=granted ledger.tool.name=other":                  1,
		"ledger.transitions.rejected ledger.rejection.reason=grant":                          1,
		"ledger.replay.authorizations ledger.replay.result=allowed":                          2,
		"ledger.operation.duration ledger.operation.state=COMPLETED ledger.tool.name=charge": 1,
	} {
		if got[name] != want {
			t.Errorf("%s = %d, want %d", name, got[name], want)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		t.Errorf("more series: %v", got)
	}
}

// series are all metrics by name and labels; of a histogram, how often something was measured.
func series(t *testing.T, reader *metric.ManualReader) map[string]int64 {
	t.Helper()
	var data metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &data); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, m := range data.ScopeMetrics[0].Metrics {
		switch points := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range points.DataPoints {
				got[m.Name+" "+p.Attributes.Encoded(encoder{})] = p.Value
			}
		case metricdata.Histogram[float64]:
			for _, p := range points.DataPoints {
				got[m.Name+" "+p.Attributes.Encoded(encoder{})] = int64(p.Count)
			}
		}
	}
	return got
}

func TestReportsThatAreNotKeptAreCounted(t *testing.T) {
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	t.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(t.Context())) })
	w := newWorld(t, setup{meter: provider.Meter("test")})
	grant := w.granted(t, "agent-a", w.claim("key-1"))
	id, err := ledger.ParseOperationID(grant.GetOperationId())
	if err != nil {
		t.Fatal(err)
	}
	const reports = 100 // more than a history has room for
	for range reports {
		if _, err := w.client.Complete(as(t, "agent-a"), succeeded(grant, uuid.NewString())); err != nil {
			t.Fatal(err)
		}
	}
	events, err := w.store.Events(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	kept := int64(len(events) - 1)
	dropped := series(t, reader)["ledger.transitions.rejected ledger.rejection.reason=dropped"]
	if dropped == 0 || kept+dropped != reports {
		t.Errorf("%d reports were kept and %d not, of %d", kept, dropped, reports)
	}
}

// encoder writes the labels of a series in the order of their names.
type encoder struct{}

func (encoder) Encode(labels attribute.Iterator) string {
	var words []string
	for labels.Next() {
		label := labels.Attribute()
		words = append(words, string(label.Key)+"="+label.Value.AsString())
	}
	return strings.Join(words, " ")
}

func (encoder) ID() attribute.EncoderID { return attribute.NewEncoderID() }
