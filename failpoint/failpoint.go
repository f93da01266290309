// SPDX-License-Identifier: Apache-2.0

// Package failpoint marks the places of the product at which a test may make
// it fail: crash, stall, or report an error, also an error after the work was
// done.
//
// Product code calls [Hit] with a registered [Name] and handles the error as
// it handles the failure of the step beside it. Without the build tag
// "failpoints" Hit is an empty function that the compiler inlines, so that a
// release binary contains neither the points nor a way to switch them on.
// With the tag a point does what the environment variable LEDGER_FAILPOINTS
// says, or what a test of the same process asked for with Enable.
//
// The value of the variable is a list of "name=action", separated by
// semicolons. Actions, each with an optional count before it:
//
//	panic          panics
//	sleep(100ms)   waits, at most until the context ends, then goes on
//	hold(PATH)     makes the file, and goes on when somebody has removed it, or the context ends
//	error          returns an error that is ErrInjected
//	exit(3)        ends the process with that code, without deferred calls
//	kill           ends the process by SIGKILL
//	off            does nothing (to let the first hits pass)
//	1*error        the first hit only; later hits do nothing
//	2*off->1*kill  steps one after another: the third hit kills
//
// A last step without a count holds for all later hits. A name that is not
// registered and an action that cannot be read end a tagged program at its
// start with exit code 2, before main runs: a crash test whose point was
// renamed must not pass by never crashing.
//
// The package depends on the standard library only.
package failpoint

import "errors"

// Variable is the environment variable that a binary built with the tag reads
// at its start. A binary built without it does not; [Built] tells which it is,
// so that a program can refuse to run instead of ignoring the variable.
const Variable = "LEDGER_FAILPOINTS"

// ErrInjected is wrapped by every error that an error action returns.
var ErrInjected = errors.New("injected failure")
