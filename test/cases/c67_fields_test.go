// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// texts calls f with each field of a message, and of the messages in it, that can hold a text of the caller's.
func texts(m protoreflect.MessageDescriptor, f func(field protoreflect.FieldDescriptor)) {
	for i := range m.Fields().Len() {
		switch field := m.Fields().Get(i); {
		case field.IsMap(), field.Kind() == protoreflect.StringKind, field.Kind() == protoreflect.BytesKind:
			f(field)
		case field.Message() != nil && field.Message().ParentFile().Package() == m.ParentFile().Package():
			texts(field.Message(), f)
		}
	}
}

// carried notes which fields of a request hold a canary.
func (w *watched) carried(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		text := ""
		switch {
		case field.IsMap():
			value.Map().Range(func(key protoreflect.MapKey, value protoreflect.Value) bool {
				text += key.String() + value.String()
				return true
			})
		case field.IsList() && field.Message() != nil:
			for i := range value.List().Len() {
				w.carried(value.List().Get(i).Message())
			}
		case field.IsList():
			for i := range value.List().Len() {
				text += value.List().Get(i).String()
			}
		case field.Message() != nil:
			w.carried(value.Message())
		case field.Kind() == protoreflect.BytesKind:
			text = string(value.Bytes())
		default:
			text = value.String()
		}
		if strings.Contains(text, "canary-") {
			w.fields[field.FullName()] = true
		}
		return true
	})
}

// wantAllCarried fails unless each text of each request was a canary in some call: a field that is added to the contract has to be looked
// for, too.
func wantAllCarried(t *testing.T, w *watched) {
	t.Helper()
	methods := calledMethods()
	for _, method := range methods {
		texts(method.Input(), func(field protoreflect.FieldDescriptor) {
			if !w.fields[field.FullName()] {
				t.Errorf("%s of a %s has carried no canary", field.FullName(), method.Name())
			}
		})
	}
	t.Logf("%d fields in the requests of %d methods have carried canaries", len(w.fields), len(methods))
}

// calledMethods are those of workers and of people that answer once.
func calledMethods() (all []protoreflect.MethodDescriptor) {
	for _, file := range []protoreflect.FileDescriptor{pb.File_opsledger_v1_ledger_service_proto, pb.File_opsledger_v1_operator_service_proto} {
		methods := file.Services().Get(0).Methods()
		for i := range methods.Len() {
			if !methods.Get(i).IsStreamingServer() {
				all = append(all, methods.Get(i))
			}
		}
	}
	return all
}

// fillAll sends each request with a malformed canary in every text, once for each alternative of what it can hold. All are refused.
func fillAll(t *testing.T, w *watched) {
	t.Helper()
	for _, caller := range []*worker{w.caller(t, billing), w.caller(t, reconciler), w.caller(t, operator)} {
		for _, method := range calledMethods() {
			for variant := range 8 {
				request, answer := made(t, method.Input()), made(t, method.Output())
				fill(request.ProtoReflect(), variant)
				err := caller.conn.Invoke(within(t), "/"+string(method.Parent().FullName())+"/"+string(method.Name()), request, answer)
				if proto.Size(request) == 0 {
					continue // it says nothing
				}
				if !slices.Contains(refusals, status.Code(err)) {
					t.Errorf("a malformed %s was answered %v", method.Name(), err)
				}
			}
		}
	}
}

func made(t *testing.T, m protoreflect.MessageDescriptor) proto.Message {
	t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
	if err != nil {
		t.Fatal(err)
	}
	return kind.New().Interface()
}

func fill(m protoreflect.Message, variant int) {
	const value = canaryFilled + " \n"
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		if of := field.ContainingOneof(); of != nil && of.Fields().Get(variant%of.Fields().Len()) != field {
			continue
		}
		text := protoreflect.ValueOfString(value)
		switch {
		case field.IsMap():
			m.Mutable(field).Map().Set(text.MapKey(), text)
		case field.IsList() && field.Kind() == protoreflect.StringKind:
			m.Mutable(field).List().Append(text)
		case field.IsList() && field.Message() != nil && field.Message().ParentFile().Package() == m.Descriptor().ParentFile().Package():
			fill(m.Mutable(field).List().AppendMutable().Message(), variant)
		case field.IsList():
		case field.Kind() == protoreflect.StringKind:
			m.Set(field, text)
		case field.Kind() == protoreflect.BytesKind:
			m.Set(field, protoreflect.ValueOfBytes([]byte(value)))
		case field.Message() != nil && field.Message().ParentFile().Package() == m.Descriptor().ParentFile().Package():
			fill(m.Mutable(field).Message(), variant)
		}
	}
}
