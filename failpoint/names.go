// SPDX-License-Identifier: Apache-2.0

package failpoint

import "slices"

// Name is the registered name of one point: place, operation, moment.
//
// The moment tells what a failure there means. "before-commit": nothing of
// the operation is kept. "after-commit": all of it is kept and the caller does
// not hear so; an error action at such a point is the fault "executed, then
// failed".
type Name string

// Points of the RPC handlers. before-commit: the request is decoded and
// authorised, nothing was written. after-commit: the store has answered, the
// caller has not been answered.
const (
	RPCClaimBeforeCommit       Name = "rpc.claim.before-commit"
	RPCClaimAfterCommit        Name = "rpc.claim.after-commit"
	RPCStartBeforeCommit       Name = "rpc.start.before-commit"
	RPCStartAfterCommit        Name = "rpc.start.after-commit"
	RPCRenewBeforeCommit       Name = "rpc.renew.before-commit"
	RPCRenewAfterCommit        Name = "rpc.renew.after-commit"
	RPCCompleteBeforeCommit    Name = "rpc.complete.before-commit"
	RPCCompleteAfterCommit     Name = "rpc.complete.after-commit"
	RPCMarkUnknownBeforeCommit Name = "rpc.mark-unknown.before-commit"
	RPCMarkUnknownAfterCommit  Name = "rpc.mark-unknown.after-commit"
	RPCCancelBeforeCommit      Name = "rpc.cancel.before-commit"
	RPCCancelAfterCommit       Name = "rpc.cancel.after-commit"
	RPCBeginCheckBeforeCommit  Name = "rpc.begin-check.before-commit"
	RPCBeginCheckAfterCommit   Name = "rpc.begin-check.after-commit"
	RPCReconcileBeforeCommit   Name = "rpc.reconcile.before-commit"
	RPCReconcileAfterCommit    Name = "rpc.reconcile.after-commit"
	RPCTakeOverBeforeCommit    Name = "rpc.take-over.before-commit"
	RPCTakeOverAfterCommit     Name = "rpc.take-over.after-commit"
	RPCHandBackBeforeCommit    Name = "rpc.hand-back.before-commit"
	RPCHandBackAfterCommit     Name = "rpc.hand-back.after-commit"
	RPCResolveBeforeCommit     Name = "rpc.resolve.before-commit"
	RPCResolveAfterCommit      Name = "rpc.resolve.after-commit"
	RPCApproveBeforeCommit     Name = "rpc.approve.before-commit"
	RPCApproveAfterCommit      Name = "rpc.approve.after-commit"
	RPCCheckNowBeforeCommit    Name = "rpc.check-now.before-commit"
	RPCCheckNowAfterCommit     Name = "rpc.check-now.after-commit"
	RPCAddNoteBeforeCommit     Name = "rpc.add-note.before-commit"
	RPCAddNoteAfterCommit      Name = "rpc.add-note.after-commit"
	RPCPauseToolBeforeCommit   Name = "rpc.pause-tool.before-commit"
	RPCPauseToolAfterCommit    Name = "rpc.pause-tool.after-commit"
	RPCResumeToolBeforeCommit  Name = "rpc.resume-tool.before-commit"
	RPCResumeToolAfterCommit   Name = "rpc.resume-tool.after-commit"
)

// Points of the stores. before-commit: the statements have run, COMMIT was not
// sent. after-commit: COMMIT was answered with success. between-read-and-write:
// an Update has read and decided, the compare-and-swap was not sent.
const (
	StoreCreateBeforeCommit        Name = "store.create.before-commit"
	StoreCreateAfterCommit         Name = "store.create.after-commit"
	StoreUpdateBetweenReadAndWrite Name = "store.update.between-read-and-write"
	StoreUpdateBeforeCommit        Name = "store.update.before-commit"
	StoreUpdateAfterCommit         Name = "store.update.after-commit"
	StorePruneBeforeCommit         Name = "store.prune.before-commit"
	StorePruneAfterCommit          Name = "store.prune.after-commit"
)

// Points of the life of the server process.
const (
	ServeBeforeListen Name = "serve.before-listen"
	ServeDrainStarted Name = "serve.drain.started"
)

// registered lists every Name of this file; a test compares the two.
var registered = []Name{
	RPCClaimBeforeCommit, RPCClaimAfterCommit,
	RPCStartBeforeCommit, RPCStartAfterCommit,
	RPCRenewBeforeCommit, RPCRenewAfterCommit,
	RPCCompleteBeforeCommit, RPCCompleteAfterCommit,
	RPCMarkUnknownBeforeCommit, RPCMarkUnknownAfterCommit,
	RPCCancelBeforeCommit, RPCCancelAfterCommit,
	RPCBeginCheckBeforeCommit, RPCBeginCheckAfterCommit,
	RPCReconcileBeforeCommit, RPCReconcileAfterCommit,
	RPCTakeOverBeforeCommit, RPCTakeOverAfterCommit,
	RPCHandBackBeforeCommit, RPCHandBackAfterCommit,
	RPCResolveBeforeCommit, RPCResolveAfterCommit,
	RPCApproveBeforeCommit, RPCApproveAfterCommit,
	RPCCheckNowBeforeCommit, RPCCheckNowAfterCommit,
	RPCAddNoteBeforeCommit, RPCAddNoteAfterCommit,
	RPCPauseToolBeforeCommit, RPCPauseToolAfterCommit,
	RPCResumeToolBeforeCommit, RPCResumeToolAfterCommit,
	StoreCreateBeforeCommit, StoreCreateAfterCommit,
	StoreUpdateBetweenReadAndWrite, StoreUpdateBeforeCommit, StoreUpdateAfterCommit,
	StorePruneBeforeCommit, StorePruneAfterCommit,
	ServeBeforeListen, ServeDrainStarted,
}

// Names returns every registered name in the order of this file, so that a
// test can walk them all.
func Names() []Name { return slices.Clone(registered) }
