// SPDX-License-Identifier: Apache-2.0

package ledger

import "context"

// Role is a right over other people's operations. No worker has one by default.
type Role string

// The roles.
const (
	RoleOperator   Role = "operator"
	RoleReconciler Role = "reconciler"
	RoleAuditor    Role = "auditor"
)

// SubjectRule says whether a principal acts for end users.
type SubjectRule uint8

// The rules.
const (
	SubjectForbidden SubjectRule = iota
	SubjectAllowed
	SubjectRequired
)

// Policy says who may do what, by the policy in force now. What it does not name is not allowed.
type Policy interface {
	// Scope of a principal's keys, and whether it names subjects; false: the principal has none and is refused.
	Scope(p Principal) (Scope, SubjectRule, bool)
	// ToolAllowed: the principal may claim this tool.
	ToolAllowed(p Principal, tool Tool) bool
	// HasRole: the principal has the role for this tool. HasAnyRole: for some tool; who has none is refused before anything is looked at.
	HasRole(p Principal, role Role, tool Tool) bool
	HasAnyRole(p Principal, role Role) bool
	// RoleTools are the tools for which the principal has the role.
	RoleTools(p Principal, role Role) ToolPatterns
}

// Viewer is who would see a result, in this very call.
type Viewer struct {
	Principal Principal
	Scope     Scope
	Subject   string // as the caller gave it
}

// Replays says whether the result of a settled operation may be shown now. Own scope and subject, and the tool by the policy, have been
// looked at before. What can't be found out is a no.
type Replays interface {
	MayShow(ctx context.Context, v Viewer, op *Operation) bool
}
