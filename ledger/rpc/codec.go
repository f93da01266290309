// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"context"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// codec is gRPC's own, but lets requests of the contract through that can't be decoded (a text that is no UTF-8), as empty ones with a
// mark. gRPC would answer INTERNAL, which callers take for a fault of the ledger and send again.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// undecoded is an unknown field that no release declares. Who sends it is refused, too.
var undecoded = protowire.AppendVarint(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.VarintType), 1)

// Unmarshal decodes a request.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	m, ok := v.(proto.Message)
	if err == nil || !ok || m.ProtoReflect().Descriptor().ParentFile().Package() != pb.File_opsledger_v1_ledger_service_proto.Package() {
		return err
	}
	proto.Reset(m)
	m.ProtoReflect().SetUnknown(undecoded)
	return nil
}

// decoded refuses what the codec has marked. Which field it is, is not known: the decoder's text is not looked at, nor shown.
func decoded(log *slog.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if m, ok := req.(proto.Message); ok && bytes.Equal(m.ProtoReflect().GetUnknown(), undecoded) {
			return nil, fail(ctx, log, ledger.InvalidField("request", "must be a message of the contract, with texts in UTF-8"), false)
		}
		return handler(ctx, req)
	}
}
