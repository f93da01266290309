// SPDX-License-Identifier: Apache-2.0

//go:build !race

package fingerprint

const raceEnabled = false
