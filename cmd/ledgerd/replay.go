// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
)

// replayRules are the rules that contracts have about their results: those in force, and for tools that have none any more those of their
// records.
type replayRules struct {
	contracts contracts
	saved     *savedContracts
}

// MayShow reports what the tool's rule says; a tool without one leaves it to the policy. Where a tool has lost its contract, all have to
// allow it under which the record was made and last judged; what can't be read may have had a rule.
func (r replayRules) MayShow(ctx context.Context, v ledger.Viewer, op *ledger.Operation) bool {
	caller := contract.Caller{Principal: v.Principal, Scope: v.Scope, Subject: v.Subject}
	if c, declared := r.contracts.Declared(op.Tool); declared {
		return c.Replay == nil || c.Replay.Allows(caller, op)
	}
	for _, version := range []string{op.Fingerprint.Contract, op.Terms.ContractVersion} {
		if version == ledger.DefaultContract(op.Tool).Version {
			continue
		}
		c, err := r.saved.find(ctx, op.Tool, version)
		if err != nil || c.Replay != nil && !c.Replay.Allows(caller, op) {
			return false
		}
	}
	return true
}

// replayService asks the platform's AuthorizationService.
type replayService struct {
	authorizer *authz.ReplayAuthorizer
	failed     metric.Int64Counter
	log        *slog.Logger
}

// newReplayService connects when it first asks, with the server's own certificate. close ends the connection.
func newReplayService(c Config, material authz.MaterialSource, now func() time.Time, told *telemetry, log *slog.Logger) (_ ledger.Replays, closeIt func(), err error) {
	if c.AuthorizationService == "" {
		return nil, func() {}, nil
	}
	conn, err := grpc.NewClient("dns:///"+c.AuthorizationService,
		grpc.WithTransportCredentials(credentials.NewTLS(authz.ClientTLS(material, ""))), grpc.WithDisableServiceConfig())
	if err != nil {
		return nil, nil, ruleError("authorization-service", "can't be connected to")
	}
	closeIt = func() { _ = conn.Close() }
	s := &replayService{log: log}
	if s.authorizer, err = authz.NewReplayAuthorizer(conn, c.AuthorizationTimeout, now); err == nil {
		s.failed, err = told.meter().Int64Counter("ledger.replay.authorization.failures", metric.WithUnit("{request}"),
			metric.WithDescription("Questions to the authorization service that got no answer; the results were redacted."))
	}
	if err != nil {
		closeIt()
		return nil, nil, err
	}
	return s, closeIt, nil
}

// MayShow reports what the service says; no answer means no.
func (s *replayService) MayShow(ctx context.Context, v ledger.Viewer, op *ledger.Operation) bool {
	var resource ledger.ResourceRef
	if op.Result != nil {
		resource = op.Result.Resource
	}
	err := s.authorizer.Authorize(ctx, authz.Replay{
		Principal: authz.Principal(v.Principal), Scope: string(v.Scope), Subject: v.Subject, Tool: string(op.Tool), Task: string(op.Task),
		Resource: authz.Resource(resource),
	})
	if err != nil && !errors.Is(err, authz.ErrReplayRefused) {
		s.failed.Add(ctx, 1)
		s.log.DebugContext(ctx, "the authorization service gave no answer", "code", status.Code(err))
	}
	return err == nil
}
