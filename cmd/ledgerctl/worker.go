// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/client"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/test/target"
)

// errand is what the demonstration gives a worker process, as JSON on its standard input.
type errand struct {
	// Target is the ticket service's URL.
	Target string `json:"target"`
	// Ledger is set for a worker that asks the ledger; without, it sends, as naive retries do.
	Ledger *client.Config `json:"ledger,omitempty"`
	// Task names the intent, the same for each worker that gets it.
	Task  string    `json:"task"`
	Since time.Time `json:"since"`
	Title string    `json:"title"`
	// Patient has it ask on while the outcome is unknown, until somebody has found out.
	Patient bool `json:"patient,omitempty"`
	// Sabotage has it take the end of another worker's lease for a permission to send.
	Sabotage bool `json:"sabotage,omitempty"`
}

// account is what a worker process says at its end, as JSON on its standard output.
type account struct {
	// Resource is what the worker made or was told of, by its id; Operation is the ledger's id of having made it.
	Resource  string `json:"resource,omitempty"`
	Operation string `json:"operation,omitempty"`
	// Unknown is set if the worker was told, or found, that the outcome is unknown; of several times it is the last.
	Unknown *unknownOperation `json:"unknown,omitempty"`
	// Other is any other end, in words.
	Other string `json:"other,omitempty"`
}

// unknownOperation is an unsettled operation as the ledger shows it.
type unknownOperation struct {
	ID          string `json:"id"`
	State       string `json:"state"`
	NextAction  string `json:"next_action"`
	WaitReason  string `json:"wait_reason,omitempty"`
	QueueReason string `json:"queue_reason,omitempty"`
	// Finding is what the last check found.
	Finding string `json:"finding,omitempty"`
	// Settles is when absence begins to prove something.
	Settles   time.Time `json:"settles"`
	NextCheck time.Time `json:"next_check"`
	// Version is what a person's decision is on.
	Version uint64 `json:"version"`

	reason client.Reason
}

const (
	step  = "open-incident"
	queue = "ops"
	// workerLease is short, so that nobody waits long for the end of a dead worker's.
	workerLease = 3 * time.Second
	// patience bounds all that a worker does.
	patience = 45 * time.Second
	// claimWait is how long one claim of a waiting worker waits; an operation in doubt is worth no longer wait here.
	claimWait = time.Second
	// askAgain is the pause of whoever asks on.
	askAgain = 100 * time.Millisecond
)

// workerCommand is one worker process.
func workerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker",
		Short:  "Be a worker of the demonstration",
		Hidden: true,
		Args:   noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var e errand
			if err := json.NewDecoder(cmd.InOrStdin()).Decode(&e); err != nil {
				return fmt.Errorf("read errand: %w", err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), patience)
			defer cancel()
			do := naively
			if e.Ledger != nil {
				do = throughLedger
			}
			a, err := do(ctx, e)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(a)
		},
	}
}

// naively sends, and takes whatever comes.
func naively(ctx context.Context, e errand) (account, error) {
	t, err := target.Client{BaseURL: e.Target}.CreateTicket(ctx, "", target.TicketRequest{Title: e.Title, Queue: queue})
	if err != nil {
		return account{}, err
	}
	return account{Resource: t.ID}, nil
}

// throughLedger asks the ledger first, until it is told something that does not change by itself within moments.
func throughLedger(ctx context.Context, e errand) (account, error) {
	l, err := client.Dial(ctx, *e.Ledger)
	if err != nil {
		return account{}, err
	}
	defer func() { _ = l.Close() }()
	service := target.Client{BaseURL: e.Target}
	create := client.Effect[target.TicketRequest, target.Ticket]{
		Tool: "tickets.create",
		Execute: func(ctx context.Context, call client.Call, r target.TicketRequest) (target.Ticket, error) {
			if err := call.Sending(); err != nil {
				return target.Ticket{}, client.NotSent(err)
			}
			t, err := service.CreateTicket(ctx, call.Key, r)
			return t, classify(err)
		},
		Resource: func(t target.Ticket) *opsledgerv1.ResourceRef {
			return &opsledgerv1.ResourceRef{Type: "ticket", Id: t.ID, Version: strconv.Itoa(t.Revision)}
		},
		Lease: workerLease,
		Wait:  claimWait,
	}
	intent := client.Intent{Task: e.Task, Step: step, Time: e.Since}
	var unknown *unknownOperation // as it was told last
	for ctx.Err() == nil {
		out, err := client.Do(ctx, l, create, intent, target.TicketRequest{Title: e.Title, Queue: queue})
		if err != nil {
			return account{}, err
		}
		a := accountOf(out)
		switch {
		case a.Unknown == nil:
			a.Unknown = unknown
			return a, nil
		case a.Unknown.reason == client.ReasonInProgress: // ends with the lease of whoever has it: worth asking again. Each claim waits by itself.
			continue
		case e.Sabotage:
			sent, err := naively(ctx, e)
			a.Resource = sent.Resource
			return a, err
		case !e.Patient:
			return a, nil
		}
		unknown = a.Unknown
		rest(ctx, askAgain)
	}
	return account{}, fmt.Errorf("the operation was not settled: %w", ctx.Err())
}

// accountOf is an outcome as an account.
func accountOf[Res any](out client.Outcome[Res]) account {
	return client.Match(out,
		func(d client.Done[Res]) account {
			return account{Resource: d.Result.GetResource().GetId(), Operation: d.Operation.GetId()}
		},
		func(r client.Rejection) account { return account{Other: r.Err().Error()} },
		func(u client.Unknown) account { return account{Unknown: seen(u)} })
}

// rest waits; false: the context has ended.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func seen(u client.Unknown) *unknownOperation {
	s := &unknownOperation{
		ID:         u.OperationID,
		State:      strings.TrimPrefix(u.Operation.GetState().String(), "STATE_"),
		NextAction: strings.TrimPrefix(u.NextAction.String(), "NEXT_ACTION_"),
		Settles:    u.Operation.GetSettleTime().AsTime(),
		NextCheck:  u.Operation.GetNextCheckTime().AsTime(),
		Version:    u.Operation.GetVersion(),
		reason:     u.Reason,
	}
	if u.Operation.GetLastFinding() != opsledgerv1.Finding_FINDING_UNSPECIFIED {
		s.Finding = strings.TrimPrefix(u.Operation.GetLastFinding().String(), "FINDING_")
	}
	if u.Wait.GetReason() != opsledgerv1.WaitReason_WAIT_REASON_UNSPECIFIED {
		s.WaitReason = strings.TrimPrefix(u.Wait.GetReason().String(), "WAIT_REASON_")
	}
	if u.Operation.GetQueueReason() != opsledgerv1.QueueReason_QUEUE_REASON_UNSPECIFIED {
		s.QueueReason = strings.TrimPrefix(u.Operation.GetQueueReason().String(), "QUEUE_REASON_")
	}
	return s
}

// classify says of an error of the target's client what it proves. Only what these services are known to answer before they do
// anything is a rejection; a 5xx proves nothing.
func classify(err error) error {
	var e *target.Error
	switch {
	case err == nil:
		return nil
	case target.ClassOf(err) == target.NeverSent:
		return client.NotSent(err)
	case errors.As(err, &e) && e.Status == 402:
		return client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, e.Code, "")
	case errors.As(err, &e) && (e.Status == 400 || e.Status == 422):
		return client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_INVALID, e.Code, "")
	default:
		return err
	}
}

// targetCommand is the process of the services.
func targetCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "target",
		Short:              "Be the services of the demonstration",
		Hidden:             true,
		DisableFlagParsing: true, // they are the target's own
		RunE: func(cmd *cobra.Command, args []string) error {
			return target.Main(cmd.Context(), args, cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
}
