// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// platform is an AuthorizationService: a connection whose other end is a function.
type platform struct {
	asked  []*pb.AuthorizeReplayRequest
	answer func(ctx context.Context) (*pb.AuthorizeReplayResponse, error)
}

func (p *platform) Invoke(ctx context.Context, _ string, args, reply any, _ ...grpc.CallOption) error {
	p.asked = append(p.asked, args.(*pb.AuthorizeReplayRequest))
	answer, err := p.answer(ctx)
	if err == nil {
		proto.Merge(reply.(proto.Message), answer)
	}
	return err
}

func (p *platform) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errors.New("it has no streams")
}

var charge = Replay{
	Principal: "spiffe://ledger.test/agent/billing", Scope: "billing", Subject: "user-1", Tool: "payments.charge", Task: "task-1",
	Resource: Resource{Type: "charge", ID: "CH-1", URI: "https://payments.test/CH-1", Version: "7"},
}

func yes(validFor time.Duration) func(context.Context) (*pb.AuthorizeReplayResponse, error) {
	return func(context.Context) (*pb.AuthorizeReplayResponse, error) {
		return &pb.AuthorizeReplayResponse{Allowed: true, ValidFor: durationpb.New(validFor)}, nil
	}
}

func no(context.Context) (*pb.AuthorizeReplayResponse, error) {
	return &pb.AuthorizeReplayResponse{}, nil
}

func TestReplayAnswersAreKeptAsLongAsTheySay(t *testing.T) {
	tests := []struct {
		name   string
		first  func(context.Context) (*pb.AuthorizeReplayResponse, error)
		later  time.Duration
		change func(r *Replay)
		asked  int // in all, by two questions; the service says no from the second on
		want   error
	}{
		{name: "a yes that says nothing of time", first: func(context.Context) (*pb.AuthorizeReplayResponse, error) {
			return &pb.AuthorizeReplayResponse{Allowed: true}, nil
		}, asked: 2, want: ErrReplayRefused},
		{name: "within valid_for", first: yes(time.Minute), later: time.Minute - 1, asked: 1},
		{name: "at its end", first: yes(time.Minute), later: time.Minute, asked: 2, want: ErrReplayRefused},
		{name: "longer than any yes may hold", first: yes(24 * time.Hour), later: longestYes, asked: 2, want: ErrReplayRefused},
		{name: "a negative valid_for", first: yes(-time.Minute), asked: 2, want: ErrReplayRefused},
		{name: "another subject", first: yes(time.Minute), change: func(r *Replay) { r.Subject = "user-2" }, asked: 2, want: ErrReplayRefused},
		{name: "another version of the resource", first: yes(time.Minute), change: func(r *Replay) { r.Resource.Version = "8" }, asked: 2, want: ErrReplayRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := testNow
			p := &platform{answer: tt.first}
			a, err := NewReplayAuthorizer(p, time.Second, func() time.Time { return now })
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Authorize(t.Context(), charge); err != nil {
				t.Fatalf("the first question: %v", err)
			}
			p.answer, now = no, now.Add(tt.later)
			again := charge
			if tt.change != nil {
				tt.change(&again)
			}
			if err := a.Authorize(t.Context(), again); !errors.Is(err, tt.want) {
				t.Errorf("%v, want %v", err, tt.want)
			}
			if len(p.asked) != tt.asked {
				t.Errorf("the service was asked %d times, want %d", len(p.asked), tt.asked)
			}
		})
	}
}

func TestReplayIsRefusedUnlessTheServiceSaysYes(t *testing.T) {
	tests := []struct {
		name   string
		answer func(ctx context.Context) (*pb.AuthorizeReplayResponse, error)
		want   error
	}{
		{"no", no, ErrReplayRefused},
		{"down", func(context.Context) (*pb.AuthorizeReplayResponse, error) {
			return nil, status.Error(codes.Unavailable, "down")
		}, status.Error(codes.Unavailable, "down")},
		{"silent", func(ctx context.Context) (*pb.AuthorizeReplayResponse, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}, context.DeadlineExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &platform{answer: tt.answer}
			a, err := NewReplayAuthorizer(p, 10*time.Millisecond, testClock)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // a no is never kept
				if err := a.Authorize(t.Context(), charge); err == nil || !errors.Is(err, tt.want) {
					t.Errorf("%v, want %v", err, tt.want)
				}
			}
			want := &pb.AuthorizeReplayRequest{
				Principal: "spiffe://ledger.test/agent/billing", Scope: "billing", Subject: "user-1", Tool: "payments.charge", Task: "task-1",
				Resource: &pb.ResourceRef{Type: "charge", Id: "CH-1", Uri: "https://payments.test/CH-1", Version: "7"},
			}
			if diff := cmp.Diff([]*pb.AuthorizeReplayRequest{want, want}, p.asked, protocmp.Transform()); diff != "" {
				t.Errorf("what the service was asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestReplayAuthorizerNeedsATimeout(t *testing.T) {
	if _, err := NewReplayAuthorizer(&platform{}, 0, testClock); err == nil {
		t.Error("no timeout was accepted: a silent service would hold calls for ever")
	}
}
