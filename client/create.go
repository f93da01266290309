// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Key names an operation to [CreateOrReturn] by a key that the caller made.
type Key struct {
	// Tool is the contract's name. Required.
	Tool string
	// Task that is pursued: 1 to 255 printable ASCII characters without space. Stored in clear. Required.
	Task string
	// Key is stable for one side effect of the task, in the same form. Only a hash is stored. Required: there is no default.
	Key string
	// Subject and Time are as in [Intent].
	Subject string
	Time    time.Time
	// Wait bounds the waiting for somebody else, as in [Effect].
	Wait time.Duration
}

// CreateOrReturn is the plain form of [Do], for callers that have a key and a digest of their request: create is called at most once at
// a time for the key, and whoever comes later gets the result that was recorded. The same key with another hash is a conflict. The
// ledger never sees more of the request, so evidence can't be compared with its fields.
//
// It waits as Do does, for another caller of the key, for a person, for another operation of the task that is unknown, until the key's
// Wait is over or the context ends. Its errors are those of Do.
func CreateOrReturn(
	ctx context.Context, l *Ledger, key Key, requestHash []byte, create func(context.Context, Call) (*opsledgerv1.Result, error),
) (Outcome[*opsledgerv1.Result], error) {
	for _, required := range []struct {
		name string
		ok   bool
	}{
		{"key: tool", key.Tool != ""},
		{"key: task", key.Task != ""},
		{"key: key", key.Key != ""},
		{"request hash", len(requestHash) > 0},
		{"create", create != nil},
	} {
		if !required.ok {
			return Outcome[*opsledgerv1.Result]{}, unsent(fmt.Errorf("%s: is required", required.name))
		}
	}
	body, err := json.Marshal(map[string][]byte{"request_hash": requestHash})
	if err != nil {
		return Outcome[*opsledgerv1.Result]{}, unsent(err)
	}
	claim := &opsledgerv1.ClaimRequest{
		Key:         &opsledgerv1.OperationKey{Tool: key.Tool, Task: key.Task, Key: key.Key, Subject: key.Subject},
		RequestJson: body,
	}
	e := Effect[struct{}, *opsledgerv1.Result]{
		Tool: key.Tool, Wait: key.Wait,
		Execute: func(ctx context.Context, call Call, _ struct{}) (*opsledgerv1.Result, error) {
			r, err := create(ctx, call)
			if err == nil && r == nil {
				err = errors.New("create returned neither a result nor an error")
			}
			return r, err
		},
		whole: validResult, value: func(r *opsledgerv1.Result) (*opsledgerv1.Result, bool) { return r, r != nil },
	}
	return do(ctx, l, e, claim, key.Time, struct{}{})
}
