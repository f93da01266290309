// SPDX-License-Identifier: Apache-2.0

//go:build profile || failpoints

package main

import (
	"net/http"
	_ "net/http/pprof" // on http.DefaultServeMux, which nothing else of ledgerd serves
	"os"
)

// A release has none of this: a profile shows what is worked on, and anybody who reaches the endpoint can keep a processor busy. It is
// built in by a tag, for test/bench, and even then it listens only where this variable says.
func init() {
	if addr := os.Getenv("OPSLEDGER_PROFILE_ADDR"); addr != "" {
		go func() { _ = http.ListenAndServe(addr, nil) }()
	}
}
