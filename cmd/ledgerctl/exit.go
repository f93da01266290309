// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// The exit codes.
const (
	exitOK          = 0
	exitError       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnknown     = 5
	exitPerson      = 6
	exitUnavailable = 7
)

// exitHelp is the part of a help that explains them.
const exitHelp = `Exit codes: 0 ok, 1 error, 2 usage, 3 no such operation (or not for you), 4 it stands otherwise than the command supposes, also
too early, 5 the outcome is unknown (op get --wait), 6 a person has it or another one is needed, 7 the ledger cannot be reached.`

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// unavailableError is a ledger that cannot be reached.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error { return e.error }

// ended is how a command ended that did all that it could: its exit code, and what there is to say.
type ended struct {
	code int
	says string
	err  error // the status it stands for; nil: none
	// partly: it was one command on several operations, and may have been done for some.
	partly bool
}

func (e ended) Error() string { return e.says }
func (e ended) Unwrap() error { return e.err }

func exitCode(err error) int {
	var (
		usage       usageError
		unavailable unavailableError
		end         ended
	)
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &end):
		return end.code
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unavailable):
		return exitUnavailable
	default:
		return exitOfStatus(err)
	}
}

// exitOfStatus is the exit code of a status that says all by itself.
func exitOfStatus(err error) int {
	if code := exitOfReason(reasonOf(err)); code != exitError {
		return code
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return exitUnavailable
	case codes.NotFound:
		return exitNotFound
	case codes.Aborted:
		return exitConflict
	case codes.InvalidArgument:
		return exitUsage
	default:
		return exitError
	}
}

// exitOfReason is the exit code of a refusal, as each operation of a batch is answered.
func exitOfReason(reason pb.ErrorReason) int {
	switch reason {
	case pb.ErrorReason_ERROR_REASON_VALIDATION:
		return exitUsage
	case pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND:
		return exitNotFound
	case pb.ErrorReason_ERROR_REASON_STALE_VERSION, pb.ErrorReason_ERROR_REASON_TOO_EARLY, pb.ErrorReason_ERROR_REASON_NOT_IN_CUSTODY,
		pb.ErrorReason_ERROR_REASON_ILLEGAL_TRANSITION, pb.ErrorReason_ERROR_REASON_EFFECT_FOUND, pb.ErrorReason_ERROR_REASON_COMMAND_REUSED, pb.ErrorReason_ERROR_REASON_RECORD_TOO_NEW:
		return exitConflict
	case pb.ErrorReason_ERROR_REASON_HELD_BY_OPERATOR, pb.ErrorReason_ERROR_REASON_SECOND_PERSON_REQUIRED:
		return exitPerson
	case pb.ErrorReason_ERROR_REASON_STORE_UNAVAILABLE, pb.ErrorReason_ERROR_REASON_DRAINING:
		return exitUnavailable
	default:
		return exitError
	}
}
