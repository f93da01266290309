// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// reasonOf is the ledger's reason of a status; zero for none, and for one of a later release.
func reasonOf(err error) pb.ErrorReason {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == "opsledger" {
			return pb.ErrorReason(pb.ErrorReason_value["ERROR_REASON_"+info.GetReason()])
		}
	}
	return 0
}

// rules are the fields and rules that a request broke.
func rules(err error) []string {
	var broken []string
	for _, d := range status.Convert(err).Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				broken = append(broken, v.GetField()+": "+v.GetDescription())
			}
		}
	}
	return broken
}

// retryAfter is how long the ledger says to wait; 0: it does not say.
func retryAfter(err error) time.Duration {
	for _, d := range status.Convert(err).Details() {
		if r, ok := d.(*errdetails.RetryInfo); ok {
			return r.GetRetryDelay().AsDuration()
		}
	}
	return 0
}

// refused says in plain words why the ledger did not do as asked. looked: the version that the command went by; 0: none.
func (s *session) refused(ctx context.Context, err error, id string, looked uint64) error {
	end := ended{code: exitOfStatus(err), err: err}
	again := ""
	if id != "" {
		again = "\nnext: ledgerctl op get " + id
	}
	switch reasonOf(err) {
	case pb.ErrorReason_ERROR_REASON_OPERATION_NOT_FOUND:
		end.says = "there is no such operation, or it is none of yours"
	case pb.ErrorReason_ERROR_REASON_STALE_VERSION:
		end.says = "it is not any more what you looked at; nothing was done" + s.changed(ctx, id, looked) + again
	case pb.ErrorReason_ERROR_REASON_TOO_EARLY:
		end.says = s.tooEarly(ctx, err, id) + again
	case pb.ErrorReason_ERROR_REASON_NOT_IN_CUSTODY:
		return s.notMine(ctx, end, id)
	case pb.ErrorReason_ERROR_REASON_HELD_BY_OPERATOR:
		end.says = "a person has it: they decide, or hand it back" + again
	case pb.ErrorReason_ERROR_REASON_SECOND_PERSON_REQUIRED:
		end.says = "this needs another person than the one who asked for it" + again
	case pb.ErrorReason_ERROR_REASON_EFFECT_FOUND:
		end.says = "something was found under its key, or a worker reported it; nothing was done. What was found and is something else takes --including-found; what " +
			"was reported can only be the result (--happened --as-reported), or be handed back" + again
	case pb.ErrorReason_ERROR_REASON_ILLEGAL_TRANSITION:
		end.says = "this can't be done with it as it stands" + again
	case pb.ErrorReason_ERROR_REASON_ROLE_REQUIRED:
		end.says = "the policy does not give you the role for this tool; whoever keeps the policy can"
	case pb.ErrorReason_ERROR_REASON_IDENTITY_INVALID:
		end.says = "the ledger does not accept your certificate: " + status.Convert(err).Message()
	case pb.ErrorReason_ERROR_REASON_COMMAND_REUSED:
		end.says = "--command-id: was used for this operation with other content; leave it out to give a new command"
	default:
		end.says = unexplained(err)
	}
	return end
}

func unexplained(err error) string {
	switch broken := rules(err); {
	case len(broken) > 0:
		return "the ledger refuses the request: " + strings.Join(broken, "; ")
	case status.Code(err) == codes.DeadlineExceeded:
		return "the ledger did not answer in time (--timeout)"
	case status.Code(err) == codes.Unimplemented:
		return "this ledger does not know the command: it is of another release"
	case exitOfStatus(err) == exitUnavailable:
		return "the ledger can't be reached now: " + status.Convert(err).Message()
	default:
		return status.Convert(err).Message()
	}
}

// tooEarly says when it is not: the settle time, or for a tool that states no bound what the ledger says to wait.
func (s *session) tooEarly(ctx context.Context, err error, id string) string {
	at := s.now().Add(retryAfter(err)).Truncate(time.Second).Add(time.Second)
	if v, err := s.view(ctx, id); err == nil && v.GetOperation().GetSettleTime() != nil {
		at = v.GetOperation().GetSettleTime().AsTime()
		if lease := v.GetOperation().GetLeaseExpireTime(); lease != nil && lease.AsTime().After(at) {
			at = lease.AsTime()
		}
	}
	text := "too early: what was sent could still arrive, so that finding nothing counts only of a search that begins at " + instant(at) + " or later"
	if now := s.now(); at.After(now) {
		return text + " (in " + span(at.Sub(now)) + "). Look again then, search, and show the new --search-time"
	}
	return text + ". Look again, search, and show the new --search-time"
}

// notMine says who has it.
func (s *session) notMine(ctx context.Context, end ended, id string) error {
	v, err := s.view(ctx, id)
	if err != nil {
		end.says = "you don't have it: take it over first"
		return end
	}
	op := v.GetOperation()
	switch {
	case op.GetCustody() == pb.Custody_CUSTODY_OPERATOR && op.GetCustodian() != s.me:
		end.code = exitPerson
		end.says = plain(op.GetCustodian()) + " has it: ask them, or take it over from them"
	case final(op):
		end.says = "nobody can decide it any more: it is " + word(op.GetState())
	default:
		end.says = "you don't have it: take it over first"
	}
	lines := next(v, s.me)
	end.says += "\n" + lines[len(lines)-1]
	return end
}

// changed says what became of an operation since a version of it; empty if that can't be seen.
func (s *session) changed(ctx context.Context, id string, looked uint64) string {
	v, err := s.view(ctx, id)
	if err != nil {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\nyou looked at version %d, it is now version %d: %s", looked, v.GetOperation().GetVersion(), answer(v, s.now()))
	var since []*pb.Event
	for _, e := range v.GetHistory() {
		if e.GetVersion() > looked {
			since = append(since, e)
		}
	}
	if len(since) > 0 {
		b.WriteString("\nsince then:\n")
		writeEvents(&b, since, "  ")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// sent ends a command. Where its end is not known, or not all of it was done, the very same one can be given again; what was refused has
// left no trace, and needs a command that differs.
func (s *session) sent(err error, commandID string) error {
	var end ended
	switch code := exitCode(err); {
	case errors.As(err, &end) && end.partly:
		s.say("the same command line with --command-id %s does what is missing, if it can be done then", commandID)
	case code == exitUnavailable, code == exitError && reasonOf(err) == 0 && status.Code(err) != codes.PermissionDenied:
		s.say("it may have been done or not. The same command line with --command-id %s does it once, whichever is true", commandID)
	}
	return err
}

// worst is how a command on several operations ended: as all that failed did, if these agree.
func worst(errs []error) error {
	code := exitOK
	for _, err := range errs {
		switch c := exitCode(err); {
		case c == exitOK:
		case code == exitOK || code == c:
			code = c
		default:
			code = exitError
		}
	}
	if code == exitOK {
		return nil
	}
	if len(errs) == 1 {
		return errs[0]
	}
	failed := 0
	for _, err := range errs {
		if err != nil {
			failed++
		}
	}
	return ended{code: code, says: fmt.Sprintf("%d of %d failed", failed, len(errs)), err: errors.Join(errs...), partly: true}
}
