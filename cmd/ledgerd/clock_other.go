// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "time"

func sinceBoot() func() time.Duration { return sinceStart() }
