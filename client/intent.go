// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"
	"time"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Intent names one side effect that a task has decided on. It must be the same in each attempt, in each process: derive it from
// the task's own state, never from the id of a model's tool call, an attempt, or a position in a list that may change.
type Intent struct {
	// Task that is pursued: 1 to 255 printable ASCII characters without space. Stored in clear: no personal data. Required.
	Task string
	// Step of the task, any text. Required. Only a digest of it leaves this process.
	Step string
	// Occurrence tells effects of the same step apart that are all wanted: 0, 1, 2, ...
	Occurrence uint64
	// Subject is the end user acted for, where one principal serves many; needs a right in the ledger's policy.
	Subject string
	// Time at which the task decided this. A task that resumes gives the time that it stored, since the ledger answers for
	// lost records by it. Zero: now, which is right only where this very call decides.
	Time time.Time

	// DependsOn are the ids of operations whose resources this one uses: they must have completed. Compensates, or Corrects, is
	// the one that this undoes, or follows up on. All of them are part of what the effect is.
	DependsOn   []string
	Compensates string
	Corrects    string
	// DistinctFrom are the ids of unsettled or similar operations that this one knowingly does not repeat.
	DistinctFrom []string
}

// Key is the ledger's key of the intent: 64 lower-case hex digits, the SHA-256 of the parts "opsledger/intent/1", task, step and
// occurrence (in decimal digits), each with its length before it as 8 bytes big endian.
func (i Intent) Key() string {
	h := sha256.New()
	for _, part := range []string{"opsledger/intent/1", i.Task, i.Step, strconv.FormatUint(i.Occurrence, 10)} {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// validate leaves the form of the parts to the ledger, which names the field; what is missing would give a key that means nothing.
func (i Intent) validate() error {
	switch {
	case i.Task == "":
		return errors.New("intent: task: is required")
	case i.Step == "":
		return errors.New("intent: step: is required")
	}
	return nil
}

// relate says in the claim what the operation undoes or follows up on.
func (i Intent) relate(claim *opsledgerv1.ClaimRequest) error {
	switch {
	case i.Compensates != "" && i.Corrects != "":
		return errors.New("intent: compensates and corrects: only one may be set")
	case i.Compensates != "":
		claim.Relation = &opsledgerv1.ClaimRequest_Compensates{Compensates: i.Compensates}
	case i.Corrects != "":
		claim.Relation = &opsledgerv1.ClaimRequest_Corrects{Corrects: i.Corrects}
	}
	return nil
}
