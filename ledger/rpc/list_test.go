// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// pages reads a listing to its end, which must come within a bounded number of pages.
func (w *world) pages(t *testing.T, p string, req *pb.ListOperationsRequest) [][]string {
	t.Helper()
	var all [][]string
	for range 20 {
		page, err := w.client.ListOperations(as(t, p), req)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, op := range page.GetOperations() {
			ids = append(ids, op.GetId())
		}
		all = append(all, ids)
		if page.GetNextPageToken() == "" {
			return all
		}
		req = proto.CloneOf(req)
		req.PageToken = page.GetNextPageToken()
	}
	t.Fatal("the listing does not end")
	return nil
}

func TestListingIsTheCallersOwnInPages(t *testing.T) {
	w := newWorld(t, setup{})
	var mine []string
	claims := map[string]*pb.ClaimRequest{}
	for i := range 5 {
		w.pass(time.Second)
		req := w.claim(fmt.Sprintf("key-%d", i))
		id := w.granted(t, "fleet-1", req).GetOperationId()
		mine = append(mine, id)
		claims[id] = req
	}
	w.granted(t, "agent-b", w.claim("key-0"))
	forUser := w.claim("key-0")
	forUser.Key.Subject = "u"
	subjects := w.granted(t, "serves-users", forUser).GetOperationId()

	if diff := cmp.Diff([][]string{mine[:2], mine[2:4], mine[4:]}, w.pages(t, "fleet-2", &pb.ListOperationsRequest{PageSize: 2})); diff != "" {
		t.Errorf("by creation: %s", diff)
	}
	if diff := cmp.Diff([][]string{nil}, w.pages(t, "serves-users", &pb.ListOperationsRequest{})); diff != "" {
		t.Errorf("without the subject: %s", diff)
	}
	if diff := cmp.Diff([][]string{{subjects}}, w.pages(t, "serves-users", &pb.ListOperationsRequest{Subject: "u"})); diff != "" {
		t.Errorf("with the subject: %s", diff)
	}
	if diff := cmp.Diff([][]string{nil}, w.pages(t, "fleet-1", &pb.ListOperationsRequest{Task: "task-2"})); diff != "" {
		t.Errorf("of another task: %s", diff)
	}

	since := timestamppb.New(w.now())
	for _, i := range []int{3, 1, 2} {
		w.pass(time.Second)
		if _, err := w.client.Complete(as(t, "fleet-1"), succeeded(&pb.Grant{OperationId: mine[i]}, claims[mine[i]].GetClaimId())); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([][]string{{mine[3], mine[1]}, {mine[2]}}, w.pages(t, "fleet-1", &pb.ListOperationsRequest{PageSize: 2, UpdateTimeAfter: since})); diff != "" {
		t.Errorf("by update: %s", diff)
	}
	completed := &pb.ListOperationsRequest{PageSize: 2, States: []pb.State{pb.State_STATE_COMPLETED}}
	if diff := cmp.Diff([][]string{{mine[1], mine[2]}, {mine[3]}}, w.pages(t, "fleet-1", completed)); diff != "" {
		t.Errorf("completed: %s", diff)
	}

	page, err := w.client.ListOperations(as(t, "fleet-1"), completed)
	if err != nil {
		t.Fatal(err)
	}
	for title, token := range map[string]string{"cut": page.GetNextPageToken()[:10], "padded": page.GetNextPageToken() + "=", "no base64": "?"} {
		_, err := w.client.ListOperations(as(t, "fleet-1"), &pb.ListOperationsRequest{States: completed.GetStates(), PageToken: token})
		if violations(refused(t, err, codes.InvalidArgument, "VALIDATION"))["page_token"] == "" {
			t.Errorf("%s: %v", title, err)
		}
	}
	for _, us := range []int64{math.MinInt64, math.MaxInt64, 1 << 62, -1 << 60} { // forged: no store has such times
		b, err := base64.RawURLEncoding.DecodeString(page.GetNextPageToken())
		if err != nil {
			t.Fatal(err)
		}
		binary.BigEndian.PutUint64(b[1:9], uint64(us))
		_, err = w.client.ListOperations(as(t, "fleet-1"), &pb.ListOperationsRequest{
			States: completed.GetStates(), PageToken: base64.RawURLEncoding.EncodeToString(b),
		})
		if violations(refused(t, err, codes.InvalidArgument, "VALIDATION"))["page_token"] == "" {
			t.Errorf("%d µs: %v", us, err)
		}
	}
	_, err = w.client.ListOperations(as(t, "fleet-1"), &pb.ListOperationsRequest{PageToken: page.GetNextPageToken()})
	if violations(refused(t, err, codes.InvalidArgument, "VALIDATION"))["page_token"] == "" {
		t.Errorf("of another listing: %v", err)
	}
}
