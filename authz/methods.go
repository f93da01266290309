// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/reflection/grpc_reflection_v1alpha"

	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// Access is what a method asks of its caller before its handler runs. The
// handler then asks for the operation's tool.
type Access uint8

// The levels of access. The zero value is nobody.
const (
	AccessNobody     Access = iota
	AccessVerified          // any client whose certificate the handshake verified
	AccessScope             // a principal with a scope
	AccessReconciler        // a reconciler of some tool
	AccessReader            // an operator or an auditor of some tool
	AccessOperator          // an operator of some tool
)

// methods is the whole list of what a server of ours may serve. A method that is
// not here is refused.
var methods = map[string]Access{
	opsledgerv1.LedgerService_Claim_FullMethodName:          AccessScope,
	opsledgerv1.LedgerService_Start_FullMethodName:          AccessScope,
	opsledgerv1.LedgerService_Renew_FullMethodName:          AccessScope,
	opsledgerv1.LedgerService_Complete_FullMethodName:       AccessScope,
	opsledgerv1.LedgerService_MarkUnknown_FullMethodName:    AccessScope,
	opsledgerv1.LedgerService_Cancel_FullMethodName:         AccessScope,
	opsledgerv1.LedgerService_Lookup_FullMethodName:         AccessScope,
	opsledgerv1.LedgerService_ListOperations_FullMethodName: AccessScope,
	opsledgerv1.LedgerService_GetTool_FullMethodName:        AccessScope,
	opsledgerv1.LedgerService_BeginCheck_FullMethodName:     AccessReconciler,
	opsledgerv1.LedgerService_Reconcile_FullMethodName:      AccessReconciler,

	opsledgerv1.OperatorService_SearchOperations_FullMethodName: AccessReader,
	opsledgerv1.OperatorService_GetOperation_FullMethodName:     AccessReader,
	opsledgerv1.OperatorService_ListTools_FullMethodName:        AccessReader,
	opsledgerv1.OperatorService_ExportEvents_FullMethodName:     AccessReader,
	opsledgerv1.OperatorService_TakeOver_FullMethodName:         AccessOperator,
	opsledgerv1.OperatorService_HandBack_FullMethodName:         AccessOperator,
	opsledgerv1.OperatorService_Resolve_FullMethodName:          AccessOperator,
	opsledgerv1.OperatorService_BatchResolve_FullMethodName:     AccessOperator,
	opsledgerv1.OperatorService_Approve_FullMethodName:          AccessOperator,
	opsledgerv1.OperatorService_CheckNow_FullMethodName:         AccessOperator,
	opsledgerv1.OperatorService_AddNote_FullMethodName:          AccessOperator,
	opsledgerv1.OperatorService_PauseTool_FullMethodName:        AccessOperator,
	opsledgerv1.OperatorService_ResumeTool_FullMethodName:       AccessOperator,

	grpc_reflection_v1.ServerReflection_ServerReflectionInfo_FullMethodName:      AccessOperator,
	grpc_reflection_v1alpha.ServerReflection_ServerReflectionInfo_FullMethodName: AccessOperator,

	grpc_health_v1.Health_Check_FullMethodName: AccessVerified,
	grpc_health_v1.Health_Watch_FullMethodName: AccessVerified,
	grpc_health_v1.Health_List_FullMethodName:  AccessVerified,
}

// MethodAccess returns what a method asks, by its full name
// ("/package.Service/Method"); AccessNobody for one that is not listed.
func MethodAccess(fullMethod string) Access { return methods[fullMethod] }

// allows says whether the policy gives a principal the access.
func (a Access) allows(policy *Policy, principal Principal) bool {
	switch a {
	case AccessScope:
		_, ok := policy.Scope(principal)
		return ok
	case AccessReconciler:
		return policy.HasAnyRole(principal, RoleReconciler)
	case AccessReader:
		return policy.HasAnyRole(principal, RoleOperator) || policy.HasAnyRole(principal, RoleAuditor)
	case AccessOperator:
		return policy.HasAnyRole(principal, RoleOperator)
	default:
		return false
	}
}

// CheckComplete fails if a server has registered a method that the list does not
// name; services is grpc.Server.GetServiceInfo. A server that fails it must not
// serve: the method would be refused, or one day be served to the wrong caller.
func CheckComplete(services map[string]grpc.ServiceInfo) error {
	var missing []string
	for service, info := range services {
		for _, method := range info.Methods {
			name := "/" + service + "/" + method.Name
			if MethodAccess(name) == AccessNobody {
				missing = append(missing, name)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("methods without an entry in the list of who may call them: %s", strings.Join(missing, ", "))
}
