// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// raw sends one request to a path, as no client of gRPC would, and returns the answer's header fields;
// nil: the server has hung up.
func raw(t *testing.T, addr string, m *authz.Material, path string, message proto.Message) map[string]string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, authz.ClientTLS(m, "127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	body, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields := []string{":method", "POST", ":scheme", "https", ":path", path, ":authority", addr, "content-type", "application/grpc", "te", "trailers"}
	for i := 0; i < len(fields); i += 2 {
		if err := encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}); err != nil {
			t.Fatal(err)
		}
	}
	framer := http2.NewFramer(conn, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	err = errors.Join(err, framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true}),
		framer.WriteData(1, true, append([]byte{0, 0, 0, 0, byte(len(body))}, body...)))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return nil
		}
		switch f := frame.(type) {
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				got[field.Name] = field.Value
			}
			if f.StreamEnded() {
				return got
			}
		case *http2.RSTStreamFrame:
			return got
		}
	}
}

// A method is what the list of methods names, letter by letter.
func TestNoOtherPathIsServed(t *testing.T) {
	h := newHouse(t, stores["sqlite"](t))
	r := start(t, nil, h.args...)
	agent, nobodys := h.as(t, agentA), h.as(t, stranger)
	request := &pb.GetToolRequest{Tool: "tickets.create"}
	path := "/" + ledgerService + "/GetTool"
	if got := raw(t, r.at.GRPC, agent, path, request); got["grpc-status"] != "0" {
		t.Fatalf("the right path: %v", got)
	}
	for _, other := range []string{
		strings.TrimPrefix(path, "/"), "/" + path, path + "/", path + "?x", strings.ToLower(path), "/" + ledgerService + "//GetTool",
		"/x/.." + path, strings.Replace(path, "GetTool", "%47etTool", 1), "/GetTool", "GetTool", "/", "*", "",
	} {
		for _, who := range []*authz.Material{agent, nobodys} {
			if got := raw(t, r.at.GRPC, who, other, request); got["grpc-status"] == "0" {
				t.Errorf("%q is served: %v", other, got)
			}
		}
	}
}
