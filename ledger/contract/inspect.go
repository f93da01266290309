// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// Inspect says how a target is asked whether a resource is as the original left it: exactly one of its fields is set.
type Inspect struct {
	HTTP *Look
	// GRPC is the address of the owner's EvidenceService.
	GRPC string
}

// Look is that question over HTTP. Like a Query, it does no I/O.
type Look struct {
	question
	version, gone *program
}

// URL to ask about what an operation left.
func (l *Look) URL(op *ledger.Operation, left ledger.ResourceRef) (string, error) {
	return l.address.fill(known(op, left))
}

// Judge compares what is there with what was left.
func (l *Look) Judge(a Answer, op *ledger.Operation, left ledger.ResourceRef) (ledger.Inspection, ledger.ResourceRef) {
	current := left
	current.Version = ""
	if noAnswer(a.Status) != 0 {
		return ledger.InspectIndeterminate, current
	}
	vars := answerVariables(a, op)
	switch hear(l.gone, vars) {
	case yes:
		return ledger.InspectGone, current
	case broken:
		return ledger.InspectIndeterminate, current
	}
	version := text(l.version, vars, longestVersion)
	if version == "" && a.Status >= 300 {
		return ledger.InspectIndeterminate, current
	}
	return Compare(left, version)
}

// NoAnswer says why an answer is about the question and not about the resource, and how long the target wants to be left alone; 0: it is an answer.
func (l *Look) NoAnswer(a Answer) (ledger.IndeterminateCause, time.Duration) {
	return noAnswer(a.Status), retryAfter(a)
}

// Compare tells by its version whether a resource is as it was left. Where one of the two is not known, a later look will not know more.
func Compare(left ledger.ResourceRef, version string) (ledger.Inspection, ledger.ResourceRef) {
	current := left
	current.Version = version
	switch {
	case version == "" || left.Version == "":
		return ledger.InspectNoVersion, current
	case version == left.Version:
		return ledger.InspectUnchanged, current
	default:
		return ledger.InspectChanged, current
	}
}
