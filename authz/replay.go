// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"context"
	"errors"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"google.golang.org/grpc"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Resource is what a result names at its target.
type Resource struct{ Type, ID, URI, Version string }

// Replay is who would see what: the caller of this very call, and the result.
type Replay struct {
	Principal Principal
	Scope     string
	Subject   string // as the caller gave it
	Tool      string
	Task      string
	Resource  Resource
}

const (
	// remembered bounds how many answers are kept at a time.
	remembered = 10_000
	// longestYes bounds valid_for: what the platform took back long ago must not
	// be shown because of one careless answer.
	longestYes = 5 * time.Minute
)

// ErrReplayRefused says that the platform's service said no.
var ErrReplayRefused = errors.New("the authorization service refuses")

// ReplayAuthorizer asks the platform's AuthorizationService whether a result may
// be shown. No answer in time is a no, and a no is never kept; a yes is kept for
// as long as it says, at most 5 minutes. It is safe for concurrent use.
type ReplayAuthorizer struct {
	service pb.AuthorizationServiceClient
	timeout time.Duration
	now     func() time.Time
	yes     *lru.Cache[Replay, time.Time] // until when it holds
}

// NewReplayAuthorizer makes one that asks over conn and waits for at most
// timeout, above 0. now is a clock that never runs backwards.
func NewReplayAuthorizer(conn grpc.ClientConnInterface, timeout time.Duration, now func() time.Time) (*ReplayAuthorizer, error) {
	if timeout <= 0 {
		return nil, errors.New("timeout: must be above 0")
	}
	yes, err := lru.New[Replay, time.Time](remembered)
	if err != nil {
		return nil, err
	}
	return &ReplayAuthorizer{service: pb.NewAuthorizationServiceClient(conn), timeout: timeout, now: now, yes: yes}, nil
}

// Authorize returns nil if the result may be shown now. Any error means no:
// ErrReplayRefused, or that of a service that could not be asked.
func (a *ReplayAuthorizer) Authorize(ctx context.Context, r Replay) error {
	asked := a.now()
	if until, ok := a.yes.Get(r); ok && asked.Before(until) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	answer, err := a.service.AuthorizeReplay(ctx, &pb.AuthorizeReplayRequest{
		Principal: string(r.Principal), Scope: r.Scope, Subject: r.Subject, Tool: r.Tool, Task: r.Task,
		Resource: &pb.ResourceRef{Type: r.Resource.Type, Id: r.Resource.ID, Uri: r.Resource.URI, Version: r.Resource.Version},
	})
	switch {
	case err != nil:
		return err
	case !answer.GetAllowed():
		a.yes.Remove(r)
		return ErrReplayRefused
	}
	// From when it was asked: the answer may have been on its way for long.
	if d := answer.GetValidFor(); d.IsValid() && d.AsDuration() > 0 {
		a.yes.Add(r, asked.Add(min(d.AsDuration(), longestYes)))
	}
	return nil
}
