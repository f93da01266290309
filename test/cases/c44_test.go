// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/opsledger/opsledger/client"
)

// A number travels as its digits: the request is JSON text in bytes, through the stub and through the SDK, and no message of the contract
// holds a Struct, a Value or a ListValue, whose numbers are doubles.
func TestC44(t *testing.T) {
	const id, near = "9007199254740993", "9007199254740992" // 2^53 + 1, and what a double makes of it
	each(t, func(t *testing.T, e *env) {
		t.Run("descriptors", noDoubles)
		t.Run("stub", func(t *testing.T) {
			w := e.node.dial(t, billing)
			first := request("file.delete", unique(t), "K", `{"id":`+id+`,"amount":1.10}`)
			w.grant(t, first)
			wantOutcome(t, w.claim(t, sameKey(first, `{"amount":1.1,"id":`+id+`}`)), "IN_PROGRESS")
			for _, other := range []string{`{"id":` + near + `,"amount":1.10}`, `{"id":"` + id + `","amount":1.10}`, `{"id":` + id + `,"amount":1.1000000000000000001}`} {
				_, err := w.tryClaim(t, sameKey(first, other))
				wantConflict(t, err, "other")
			}
		})
		t.Run("SDK", func(t *testing.T) {
			type order struct {
				ID     int64       `json:"id"`
				Amount json.Number `json:"amount"`
			}
			ledger := sdk(t, e.node.grpcAddr, billing)
			intent := client.Intent{Task: unique(t), Step: "delete", Time: time.Now()}
			runs := 0
			do := func(request order) error {
				_, err := client.Do(within(t), ledger, client.Effect[order, string]{
					Tool: "file.delete", Execute: func(context.Context, client.Call, order) (string, error) { runs++; return "done", nil },
				}, intent, request)
				return err
			}
			for _, amount := range []json.Number{"1.10", "1.1", "11e-1"} {
				if err := do(order{9007199254740993, amount}); err != nil {
					t.Errorf("with the amount %s: %v", amount, err)
				}
			}
			var refused *client.Error
			if err := do(order{9007199254740992, "1.10"}); !errors.As(err, &refused) || !slices.Equal(refused.Categories, []string{"other"}) {
				t.Errorf("another id was answered %v, want a conflict", err)
			}
			if runs != 1 {
				t.Errorf("it was executed %d times", runs)
			}
		})
	})
}

// noDoubles walks all messages of the contract.
func noDoubles(t *testing.T) {
	messages := 0
	var walk func(all protoreflect.MessageDescriptors)
	walk = func(all protoreflect.MessageDescriptors) {
		for i := range all.Len() {
			m := all.Get(i)
			messages++
			for j := range m.Fields().Len() {
				f := m.Fields().Get(j)
				kind := f.Kind()
				if kind == protoreflect.DoubleKind || kind == protoreflect.FloatKind {
					t.Errorf("%s is a %v", f.FullName(), kind)
				}
				if of := f.Message(); of != nil && !of.IsMapEntry() && of.ParentFile().Package() != m.ParentFile().Package() {
					switch of.FullName() {
					case "google.protobuf.Timestamp", "google.protobuf.Duration":
					default:
						t.Errorf("%s is a %s", f.FullName(), of.FullName())
					}
				}
				if strings.HasSuffix(string(f.Name()), "_json") && kind != protoreflect.BytesKind {
					t.Errorf("%s is a %v, want bytes", f.FullName(), kind)
				}
			}
			walk(m.Messages())
		}
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("opsledger.v1", func(file protoreflect.FileDescriptor) bool {
		walk(file.Messages())
		return true
	})
	if messages < 40 {
		t.Errorf("%d messages were looked at", messages)
	}
}
