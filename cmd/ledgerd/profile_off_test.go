// SPDX-License-Identifier: Apache-2.0

//go:build !profile && !failpoints

package main

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestReleaseHasNoProfiles(t *testing.T) {
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/profile", "/debug/pprof/heap"} {
		if _, pattern := http.DefaultServeMux.Handler(httptest.NewRequest(http.MethodGet, path, nil)); pattern != "" {
			t.Errorf("%s is served by %s: something of a release imports net/http/pprof", path, pattern)
		}
	}
}
