// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/opsledger/opsledger/authz"
)

// The echo server is the limit of the transport: one unary method that answers with bytes, over ledgerd's own TLS settings and with its
// workers, and nothing else. A unit of it is two calls whose messages are as long as those of a unit of ledgerd.

// messageSizes of one call, in bytes.
type messageSizes struct{ Request, Answer int }

// echoWorkers is ledgerd's number of stream workers.
const echoWorkers = 256

const (
	echoService = "opsledger.bench.Echo"
	echoMethod  = "/" + echoService + "/Echo"
)

// beEcho serves until standard input ends, and tells where.
func beEcho(s setup, in *json.Decoder, stdout io.Writer) error {
	material, err := authz.NewMaterialReloader(s.Files, time.Now, nil)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if err := json.NewEncoder(stdout).Encode(l.Addr().String()); err != nil {
		return errors.Join(err, l.Close())
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(authz.ServerTLS(material))), grpc.NumStreamWorkers(echoWorkers))
	server.RegisterService(&echoDescription, nil)
	go func() {
		var nothing any
		_ = in.Decode(&nothing) // returns when the parent has gone
		server.Stop()
	}()
	return server.Serve(l)
}

var echoDescription = grpc.ServiceDesc{
	ServiceName: echoService,
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var request wrapperspb.BytesValue
			if err := decode(&request); err != nil {
				return nil, err
			}
			return echo(&request), nil
		},
	}},
}

// filling is what answers are cut from.
var filling = make([]byte, 64<<10)

// echo answers with as many bytes as the first two of the request say.
func echo(request *wrapperspb.BytesValue) *wrapperspb.BytesValue {
	if len(request.GetValue()) < 2 {
		return &wrapperspb.BytesValue{}
	}
	return &wrapperspb.BytesValue{Value: filling[:binary.BigEndian.Uint16(request.GetValue())]}
}

// echoMessage is a request of a length that asks for an answer of a length, both as they are on the wire.
func echoMessage(request, answer int) *wrapperspb.BytesValue {
	m := &wrapperspb.BytesValue{Value: make([]byte, request-framing(request))}
	binary.BigEndian.PutUint16(m.Value, uint16(answer-framing(answer)))
	return m
}

// framing is what a message of bytes has around them: the field's tag and the length.
func framing(size int) int {
	if size < 128+2 {
		return 2
	}
	return 3
}

func echoUnits(conns []*grpc.ClientConn, sizes []messageSizes) func(context.Context, int) error {
	var requests []*wrapperspb.BytesValue
	for _, s := range sizes {
		requests = append(requests, echoMessage(s.Request, s.Answer))
	}
	return func(ctx context.Context, caller int) error {
		for _, request := range requests {
			if err := conns[caller%len(conns)].Invoke(ctx, echoMethod, request, &wrapperspb.BytesValue{}); err != nil {
				return err
			}
		}
		return nil
	}
}
