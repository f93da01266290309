// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package client

import "time"

// boot says that there is no clock here that counts suspension for certain.
func boot() (time.Duration, bool) { return 0, false }
