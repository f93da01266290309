// SPDX-License-Identifier: Apache-2.0

//go:build !failpoints

package failpoint

import "context"

// Built says whether this binary contains the failpoints.
const Built = false

// Hit does nothing in a binary built without the tag "failpoints".
func Hit(context.Context, Name) error { return nil }
