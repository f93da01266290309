// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// foundThere says what speaks against that an operation never happened: what was found under its key, or seems to be. Empty: nothing does. What
// came before a person last said that it never happened is dealt with.
func foundThere(v *pb.GetOperationResponse) string {
	var says []string
	add := func(text string) {
		if !slices.Contains(says, text) {
			says = append(says, text)
		}
	}
	if v.GetOperation().GetNeedsAttention() {
		add("CONTRADICTED")
	}
	reason := v.GetOperation().GetQueueReason()
	switch reason {
	case pb.QueueReason_QUEUE_REASON_EVIDENCE_MISMATCH, pb.QueueReason_QUEUE_REASON_EVIDENCE_INCOMPLETE, pb.QueueReason_QUEUE_REASON_AMBIGUOUS:
		add(word(reason))
	}
	var seen []string
	for _, e := range v.GetHistory() {
		switch finding := e.GetFacts()["finding"]; {
		case e.GetKind() == pb.EventKind_EVENT_KIND_RESOLVED:
			seen = nil
		case finding == word(pb.Finding_FINDING_FOUND), finding == word(pb.Finding_FINDING_PENDING), finding == word(pb.Finding_FINDING_AMBIGUOUS):
			seen = append(seen, finding)
		}
	}
	for _, finding := range seen {
		add("the target said " + finding)
	}
	for _, c := range v.GetCandidates() {
		add("could be " + resource(c))
	}
	return strings.Join(says, ", ")
}

// denied looks at what somebody says never happened, before that is recorded. Those are left out under whose key something was found, unless found says
// that it was looked at.
func (s *session) denied(ctx context.Context, targets []looked, found bool) (rest, left []looked, err error) {
	if found {
		return targets, nil, nil
	}
	for _, t := range targets {
		v, err := s.view(ctx, t.id)
		if err != nil && exitOfStatus(err) == exitNotFound && len(targets) > 1 { // is answered by itself
			rest = append(rest, t)
			continue
		}
		if err != nil {
			return nil, nil, s.refused(ctx, err, t.id, t.version)
		}
		says := foundThere(v)
		if says == "" {
			rest = append(rest, t)
			continue
		}
		left = append(left, t)
		if len(targets) == 1 {
			s.say("something was found under its key (%s): if you have looked at it and it is something else, say so with --including-found", says)
		} else {
			s.say("left out: %s: something was found under its key (%s): decide it by itself, or with --including-found", t.id, says)
		}
	}
	return rest, left, nil
}
