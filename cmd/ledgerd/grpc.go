// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
	"github.com/opsledger/opsledger/ledger/rpc"
)

// ledgerService is the name under which the health of the ledger itself is asked for.
const ledgerService = protoPackage + ".LedgerService"

// healthNames are those under which the health is told: of all, and of each service.
var healthNames = []string{"", ledgerService, protoPackage + ".OperatorService"}

// The limits of one connection and one message. gRPC's own are meant for a network of friends. A request has at most 256 KiB of JSON:
// there is room for much more, so that who sends too much is told which field it is, and the report of an effect is taken without its
// payload. An answer is at most a page of operations.
const (
	handshakeBound    = 5 * time.Second
	streamsPerConn    = 128
	largestRequest    = 1 << 20
	largestAnswer     = 4 << 20
	largestHeaderList = 8 << 10
)

// grpcServer makes the server with everything registered, not serving yet. It refuses one whose methods are not all in the list of who may call them.
func grpcServer(parts parts, l *ledger.Ledger, shared *connections, draining func() bool, streams context.Context) (*grpc.Server, *health.Server, error) {
	policy := policyInForce(parts.policy)
	limiter, err := rpc.NewLimiter(policy, identify, policy.limits, parts.telemetry.meter())
	if err != nil {
		return nil, nil, err
	}
	requests, err := parts.requests()
	if err != nil {
		return nil, nil, err
	}
	service, err := rpc.New(l, policy, parts.ring, identify, rpc.Options{
		Log: parts.log, Meter: parts.telemetry.meter(), Strict: parts.contracts.Strict, Limiter: limiter,
		ReplayRules: replayRules{parts.contracts, parts.saved}, ReplayService: parts.replayService,
		Requests: requests,
	})
	if err != nil {
		return nil, nil, err
	}
	people, err := rpc.NewOperators(service, parts.store, rpc.OperatorOptions{Tools: parts.contracts.Tools, Breakers: breakers{parts.store}.states})
	if err != nil {
		return nil, nil, err
	}
	admission := authz.NewInterceptor(parts.policy, parts.now)
	chain := rpc.InterceptorOptions{Log: parts.log, Draining: draining, Limiter: limiter}
	options := append(rpc.Interceptors(gate{admission, parts.openReflection, streams}, chain),
		grpc.Creds(sharedCredentials{credentials.NewTLS(authz.ServerTLS(parts.material)), shared, func(info credentials.AuthInfo) (authz.Principal, error) {
			return parts.policy().PrincipalFromPeer(info, parts.now())
		}}),
		grpc.StatsHandler(parts.telemetry.statsHandler()),
		grpc.ConnectionTimeout(handshakeBound),
		grpc.MaxConcurrentStreams(streamsPerConn),
		grpc.MaxRecvMsgSize(largestRequest),
		grpc.MaxSendMsgSize(largestAnswer),
		grpc.MaxHeaderListSize(largestHeaderList),
		grpc.NumStreamWorkers(uint32(parts.config.Workers)),
		grpc.WaitForHandlers(true),
		// Connections end now and then, so that new certificates, authorities and instances are met.
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: 5 * time.Minute, MaxConnectionAge: 5 * time.Minute, MaxConnectionAgeGrace: time.Minute,
			Time: time.Minute, Timeout: 20 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 30 * time.Second}),
	)
	s := grpc.NewServer(options...)
	rpc.Register(s, service)
	rpc.RegisterOperators(s, people)
	healthy := health.NewServer()
	for _, name := range healthNames {
		healthy.SetServingStatus(name, grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	}
	grpc_health_v1.RegisterHealthServer(s, healthy)
	if parts.config.Reflection != "off" {
		reflection.Register(s)
	}
	if err := authz.CheckComplete(s.GetServiceInfo()); err != nil {
		return nil, nil, fmt.Errorf("start: %w", err)
	}
	return s, healthy, nil
}

// requests are digested, and compared with what targets show, by the contracts of their records.
func (p parts) requests() (fingerprint.Options, error) {
	forms, err := specs(p.config.WriteSpec)
	return fingerprint.Options{Specs: forms, Versions: &fingerprint.Versions{Fetch: p.saved.rules}}, err
}

// identify takes the caller from where the admission put it.
func identify(ctx context.Context) (ledger.Principal, error) {
	who, ok := authz.PrincipalFrom(ctx)
	if !ok {
		return "", ledger.ErrIdentityInvalid
	}
	return ledger.Principal(who), nil
}

// gate is the admission of every call. Where reflectionIsOpen, on a developer's own host, every verified identity may ask for the
// descriptors, which are public.
type gate struct {
	*authz.Interceptor
	reflectionIsOpen bool
	// streams ends when no stream shall go on: a watcher of the health would hold up a graceful stop to its limit.
	streams context.Context
}

// Stream admits a stream, and ends it when all streams end.
func (g gate) Stream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	defer context.AfterFunc(g.streams, cancel)()
	stream = boundStream{stream, ctx}
	if g.reflectionIsOpen && strings.HasPrefix(info.FullMethod, "/grpc.reflection.") {
		return handler(server, stream)
	}
	return g.Interceptor.Stream(server, stream, info, handler)
}

type boundStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context ends with the stream, or when all streams end.
func (s boundStream) Context() context.Context { return s.ctx }

// RecvMsg waits for a message, or until all streams end: that of a client that has nothing to say.
func (s boundStream) RecvMsg(m any) error {
	received := make(chan error, 1)
	// It ends with the stream at the latest, and nobody looks at m then.
	go func() { received <- s.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		return err
	case <-s.ctx.Done():
		return status.FromContextError(s.ctx.Err()).Err()
	}
}
