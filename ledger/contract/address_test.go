// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestURLsThatAreNone(t *testing.T) {
	for _, text := range []string{
		"", "payments.internal/v1", "ftp://a.test/{downstream_key}", "https://a.test", "https://a.test?k={downstream_key}",
		"https://user:pass@a.test/{downstream_key}", "https://a.test:0/{downstream_key}", "https://a.test:65536/{downstream_key}",
		"https://{downstream_key}.a.test/", "https://a.test:{downstream_key}/", "https://A.test/{downstream_key}", "https://a.test\\@b.test/{downstream_key}",
		"https://a.test/{downstream_key}#part", "https://a.test/ {downstream_key}", "https://a.test/é/{downstream_key}",
		"https://a.test/../{downstream_key}", "https://a.test/./{downstream_key}", "https://a.test/%2e%2E/{downstream_key}",
		"https://a.test/{downstream_key", "https://a.test/downstream_key}", "https://a.test/{}", "https://a.test/{{downstream_key}}",
		"https://a.test/?{downstream_key}=1", "https://a.test/?a=1&{downstream_key}", "https://a.test/?a=1?b={downstream_key}", "https://a.test/%zz/{downstream_key}",
		"https://a.test/?a=%zz&k={downstream_key}", "https://a.test/?a;b=1&k={downstream_key}", "https://a.test/{attributes.}", "https://a.test/{attributes.y}",
		"https://a.test/{resource.id}", "https://[::1/{downstream_key}", "https://a.test/\x00{downstream_key}", "https://a.test/\n{downstream_key}",
	} {
		if _, _, rule := parseAddress(text, probePlaces, []string{"x"}); rule == "" {
			t.Errorf("%q is accepted", text)
		}
	}
}

// TestNothingThatIsFilledInLeadsElsewhere: whatever an attribute holds, the question goes to the same host, the path has the same
// segments, and the other parameters are the same.
func TestNothingThatIsFilledInLeadsElsewhere(t *testing.T) {
	a, _, rule := parseAddress("https://a.test:8443/v1/{attributes.x}/by-{attributes.x}?a=1&k={attributes.x}&z=2", probePlaces, []string{"x"})
	if rule != "" {
		t.Fatal(rule)
	}
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{".", "..", "/", "../..", "%2e%2e", "?", "#", "&a=2", "@b.test", "\\", "//b.test", "x y", "é", "\x00", ";"})).Draw(t, "value")
		text, err := a.fill(func(string) string { return value })
		if err != nil {
			return
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		path := strings.Split(u.EscapedPath(), "/")
		if u.Scheme != "https" || u.Host != "a.test:8443" || u.User != nil || u.Fragment != "" || len(path) != 4 || path[1] != "v1" {
			t.Fatalf("%q leads to %s", value, u)
		}
		second, err := url.PathUnescape(path[2])
		third, err2 := url.PathUnescape(path[3])
		query := u.Query()
		if err != nil || err2 != nil || second != value || third != "by-"+value || second == "." || second == ".." ||
			len(query) != 3 || query.Get("a") != "1" || query.Get("k") != value || query.Get("z") != "2" {
			t.Fatalf("%q became %s", value, u)
		}
	})
}

func TestASecretGoesOnlyWhereNobodyCanReadIt(t *testing.T) {
	for text, want := range map[string]bool{
		"https://a.test/{downstream_key}": true, "http://localhost/{downstream_key}": true, "http://127.1.2.3:80/{downstream_key}": true, "http://[::1]/{downstream_key}": true,
		"http://a.test/{downstream_key}": false, "http://127.a.test/{downstream_key}": false, "http://10.0.0.1/{downstream_key}": false, "http://localhost.a.test/{downstream_key}": false,
	} {
		a, _, rule := parseAddress(text, probePlaces, nil)
		if rule != "" || a.safe() != want {
			t.Errorf("%s: %s, safe %v", text, rule, !want)
		}
	}
}

func TestHeadersThatCouldHoldASecretNameIt(t *testing.T) {
	for text, want := range map[string]Header{
		"${file:/run/secrets/a-b_c.d}": {Name: "authorization", File: "/run/secrets/a-b_c.d"},
		"Bearer ${env:TOKEN}":          {Name: "authorization", Text: "Bearer ", Env: "TOKEN"},
		"Basic ${file:/x}":             {Name: "authorization", Text: "Basic ", File: "/x"},
	} {
		if got, ok := parseHeader("authorization", text); !ok || got != want {
			t.Errorf("%s: %+v, %v", text, got, ok)
		}
	}
	for _, text := range []string{
		"", "secret", "Bearer secret", "Secret ${env:TOKEN}", "${env:TOKEN} ", "${env:TOKEN}x", "${env:}", "${env:1}", "${file:relative}", "${file:}",
		"${env:LEDGERD_STORE}", "${TOKEN}", "$TOKEN", "${env:A}${env:B}", "${file:/a\n}", "Bearer  ${env:TOKEN}", "${file:/" + strings.Repeat("x", 255) + "}",
	} {
		if _, ok := parseHeader("authorization", text); ok {
			t.Errorf("%q is accepted", text)
		}
	}
	if _, ok := parseHeader("accept", "text/plain\r\nx: y"); ok {
		t.Error("a header holds the end of a line")
	}
}
