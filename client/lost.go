// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// lost says whether the ledger does not know of the operation, or, of one that has a subject, of the grant.
func lost(err error) bool {
	return err != nil && reasonGiven(err) == opsledgerv1.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND
}

// reportAgain makes a report whose grant the ledger has lost: the key is claimed once more under the grant's own claim id, so that there is a
// record again, and the report is made again. Whatever the claim is answered, nothing is executed for it.
//
// The record may be new and unknown, because the ledger knows that it may have lost something, or somebody else's by now: then the report is kept as
// evidence. Or it is granted to this claim id again: then the report is that of its holder.
//
// Later: what could not be recorded yet may be tried again.
func (a *attempt) reportAgain(
	ctx context.Context, why error, report func(context.Context) (reported, error),
) (r reported, later bool, err error) {
	op, later, err := a.claimAgain(ctx)
	if err != nil {
		return reported{}, later, fmt.Errorf("%w; claimed again: %w", why, err)
	}
	r, err = report(ctx)
	if lost(err) && a.claim.GetKey().GetSubject() != "" {
		// There is a record, and it is not this grant's: the ledger keeps what is reported of it, and does not say so.
		return reported{operation: op, disposition: opsledgerv1.Disposition_DISPOSITION_OBSERVED}, false, nil
	}
	return r, passes(err) || lost(err), err // or lost once more
}

// claimAgain sees to it that there is a record, and returns it as far as the ledger shows it.
func (a *attempt) claimAgain(ctx context.Context) (op *opsledgerv1.Operation, later bool, err error) {
	a.lost = true
	claim := proto.CloneOf(a.claim)
	claim.ClaimId = a.claimID
	claim.Reserve = false // a reservation that lapses would prove that nothing was sent
	answer, _, err := a.ledger.claim(ctx, claim)
	op = answer.GetOperation()
	switch {
	case err != nil && reasonGiven(err) == opsledgerv1.ErrorReason_ERROR_REASON_FINGERPRINT_CONFLICT:
		return nil, false, nil // there is one, of another request
	case err != nil:
		return nil, passes(err) || status.Code(err) == codes.ResourceExhausted, err
	case op.GetId() == "":
		_, wait := reasonOf(answer)
		return nil, true, fmt.Errorf("nothing is stored: %s", strings.TrimPrefix(wait.GetReason().String(), "WAIT_REASON_"))
	case op.GetId() != a.operation:
		return nil, false, errors.New("the key has become that of another operation")
	default:
		return op, false, nil
	}
}
