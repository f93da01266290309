// SPDX-License-Identifier: Apache-2.0

package ledger_test

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// answer is what the sender of a command sees.
func (s *script) answer(cmd ledger.Command, a ledger.Answer, err error) string {
	var refusal *ledger.Refusal
	errors.As(err, &refusal)
	switch {
	case err != nil:
		line := refusalName(err)
		if refusal == nil {
			return line
		}
		if refusal.Reason != 0 {
			line += " " + refusal.Reason.String()
		}
		if refusal.Categories != nil {
			line += " (" + strings.Join(refusal.Categories, ", ") + ")"
		}
		return line + after(refusal.RetryAfter)
	case a.Grant != nil:
		line := "GRANTED epoch=" + halves(a.Grant.Epoch, 32) + " lease=" + a.Grant.Lease.String()
		if a.Grant.SendWithin != 0 {
			line += " send=" + a.Grant.SendWithin.String()
		}
		line += when(a.Grant.Reserved, " reserved") + when(a.Grant.Resent, " resent")
		if p := a.Grant.Precondition; p != nil {
			line += " precondition=" + p.ID + "@" + p.Version
		}
		return line
	case a.Outcome != 0:
		line := a.Outcome.String()
		if a.Wait.Reason != 0 {
			line += " " + a.Wait.Reason.String()
		}
		return line + after(a.Wait.RetryAfter)
	case a.Disposition != 0:
		return a.Disposition.String() + when(a.Dropped, " dropped")
	}
	switch cmd.(type) {
	case ledger.Renew:
		if a.Stop != 0 {
			return "STOP " + a.Stop.String()
		}
		return "lease=" + a.Lease.String() + " send=" + a.SendWithin.String()
	case ledger.BeginCheck:
		if a.CheckNumber == 0 {
			return "not taken"
		}
		return "check=" + halves(a.CheckNumber, 16) + " lease=" + a.CheckLease.String()
	default:
		return "ok"
	}
}

// row is how an operation stands. Times count from the beginning of the file.
func (s *script) row(on string, op *ledger.Operation) string {
	if op == nil {
		return "absent"
	}
	line := op.State.String()
	if !op.State.Final() {
		line += " " + strings.ToLower(op.Custody.String())
		switch op.Custody {
		case ledger.Queued:
			line += "(" + op.QueueReason.String() + ")"
		case ledger.Operator:
			line += "(" + string(op.Custodian) + ")"
		}
	}
	line += fmt.Sprintf(" s%d v%d epoch=%s starts=%d", op.Sequence, op.Version, halves(op.Grant.Epoch, 32), op.Starts)
	for _, at := range []struct {
		name string
		time time.Time
	}{
		{"lease", op.Grant.LeaseUntil},
		{"window", op.Grant.SendUntil},
		{"settle", ledger.Stand(op, s.contractOf(on), s.sys.now()).SettleTime},
		{"due", op.NextCheckTime},
		{"not-before", op.Detail.NotBefore},
	} {
		if !at.time.IsZero() {
			line += " " + at.name + "=" + s.offset(at.time)
		}
	}
	if op.Check.Open {
		line += " checking=" + halves(op.Check.Number, 16)
	}
	line += when(op.MayHaveApplied && !op.State.Final(), " doubt") + when(op.NeedsAttention, " attention")
	if k := op.Detail.Kept; k != nil {
		line += " kept=" + k.Result.Resource.ID
	}
	if a := op.Detail.Approval; a != nil {
		line += " approval=" + when(!a.Granted && !op.Grant.UsedApproval, "open") + when(a.Granted, "given") + when(op.Grant.UsedApproval && !a.Granted, "used")
	}
	line += when(op.Detail.Proposal != nil, " proposal=open") + when(op.Detail.Changed != nil, " changed=open")
	if op.Result != nil {
		line += " resource=" + op.Result.Resource.ID
	}
	if f := op.Failure; f != nil {
		line += " failure=" + f.Kind.String() + when(f.Code != "", ":"+f.Code)
	}
	if len(op.CompensatedBy) > 0 {
		line += fmt.Sprintf(" compensations=%d", len(op.CompensatedBy))
	}
	return line
}

func (s *script) offset(t time.Time) string { return t.Sub(s.begins).String() }

func showEvent(e *ledger.Event) string {
	line := "  " + e.Kind.String()
	for _, k := range sortedKeys(e.Facts) {
		v := e.Facts[k]
		if k == "check" {
			n, _ := strconv.ParseUint(v, 10, 64)
			v = halves(n, 16)
		}
		line += " " + k + "=" + v
	}
	if e.Note != "" {
		line += " (" + e.Note + ")"
	}
	return line
}

// halves shows a number of the form (timeline << bits) + count.
func halves(n uint64, bits int) string {
	return fmt.Sprintf("%d/%d", n>>bits, n&(1<<bits-1))
}

func after(d time.Duration) string { return when(d != 0, " retry="+d.String()) }

func when(holds bool, s string) string {
	if holds {
		return s
	}
	return ""
}
