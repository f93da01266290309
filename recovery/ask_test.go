// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// served is a target of its own for one test; what it was sent is in requests.
func served(t *testing.T, answer http.HandlerFunc) (url string, requests chan *http.Request) {
	t.Helper()
	requests = make(chan *http.Request, 8)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

func good(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"data":[]}`)) }

func allow(t *testing.T, text string) Allowed {
	t.Helper()
	a, err := ParseAllowed(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAskingATarget(t *testing.T) {
	url, requests := served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = w.Write([]byte("slowly"))
	})
	secret := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(secret, []byte("canary-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := NewAsker(AskerOptions{Allowed: allow(t, "127.0.0.0/8"), Env: func(name string) string { return map[string]string{"TOKEN": "canary-2"}[name] }})
	got, unasked := a.Get(t.Context(), Question{URL: url + "/x?key=K", Headers: []Header{
		{Name: "authorization", Text: "Bearer ", File: secret}, {Name: "x-token", Env: "TOKEN"}, {Name: "accept", Text: "text/plain"},
	}})
	if unasked != nil {
		t.Fatal(unasked)
	}
	if got.Status != http.StatusTooManyRequests || got.Header.Get("Retry-After") != "7" || string(got.Body) != "slowly" {
		t.Errorf("the answer is %+v", got)
	}
	sent := <-requests
	want := map[string]string{"Authorization": "Bearer canary-1", "X-Token": "canary-2", "Accept": "text/plain", "User-Agent": "ledgerd"}
	for name, value := range want {
		if diff := cmp.Diff(value, sent.Header.Get(name)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if sent.Method != http.MethodGet || sent.URL.RequestURI() != "/x?key=K" {
		t.Errorf("it was sent %s %s", sent.Method, sent.URL.RequestURI())
	}
	// A secret that was rotated is sent from the next question on.
	if err := os.WriteFile(secret, []byte("canary-3"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, unasked := a.Get(t.Context(), Question{URL: url, Headers: []Header{{Name: "authorization", File: secret}}}); unasked != nil {
		t.Fatal(unasked)
	}
	if got := (<-requests).Header.Get("Authorization"); got != "canary-3" {
		t.Errorf("after the rotation it was sent %q", got)
	}
}

func TestQuestionsWithoutAnAnswer(t *testing.T) {
	elsewhere, visits := served(t, good)
	redirect, _ := served(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere, http.StatusFound) })
	long, _ := served(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(strings.Repeat("x", 65))) })
	release := make(chan struct{})
	slow, _ := served(t, func(http.ResponseWriter, *http.Request) { <-release })
	dripping, _ := served(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("{"))
		w.(http.Flusher).Flush()
		<-release
	})
	t.Cleanup(func() { close(release) })
	broken, _ := served(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "60")
		_, _ = w.Write([]byte("{"))
	})
	plain, _ := served(t, good)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(good))
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // it tells of the handshake that is to fail
	secure.StartTLS()
	t.Cleanup(secure.Close)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := "http://" + closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connections are made, and no handshake
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	controls := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(controls, []byte("canary\r\nx-admin: yes"), 0o600); err != nil {
		t.Fatal(err)
	}
	port := plain[strings.LastIndex(plain, ":"):]
	for name, tt := range map[string]struct {
		url     string
		headers []Header
		want    *Unasked
	}{
		"a redirect":                    {redirect, nil, unaskedRedirect},
		"too long a body":               {long, nil, unaskedLength},
		"no answer in time":             {slow, nil, unaskedTime},
		"a body that does not end":      {dripping, nil, unaskedTime},
		"no connection in time":         {"https://" + silent.Addr().String(), nil, unaskedLost},
		"a connection that breaks":      {broken, nil, unaskedLost},
		"a connection that is refused":  {refused, nil, unaskedLost},
		"a certificate of a stranger":   {secure.URL, nil, unaskedTLS},
		"no TLS there":                  {strings.Replace(plain, "http:", "https:", 1), nil, unaskedTLS},
		"a host that does not exist":    {"http://nowhere.invalid/", nil, unaskedLost},
		"another loopback address":      {"http://127.0.0.2" + port, nil, unaskedPlace},
		"loopback of IPv6":              {"http://[::1]" + port, nil, unaskedPlace},
		"the cloud's metadata":          {"http://169.254.169.254/latest", nil, unaskedPlace},
		"a private network":             {"http://10.0.0.1/", nil, unaskedPlace},
		"IPv4 in IPv6":                  {"http://[::ffff:10.0.0.1]/", nil, unaskedPlace},
		"no URL":                        {"http://%", nil, unaskedURL},
		"a file that is not there":      {plain, []Header{{Name: "authorization", File: "/nowhere/canary"}}, unaskedHeader},
		"a variable that is not set":    {plain, []Header{{Name: "authorization", Env: "OPSLEDGER_TEST_NOTHING"}}, unaskedHeader},
		"a secret that is two headers":  {plain, []Header{{Name: "authorization", File: controls}}, unaskedHeader},
		"a directory instead of a file": {plain, []Header{{Name: "authorization", File: t.TempDir()}}, unaskedHeader},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := NewAsker(AskerOptions{Allowed: allow(t, "127.0.0.1"), MaxBody: 64})
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if tt.want != unaskedTime && !strings.Contains(tt.url, silent.Addr().String()) { // slow machines are no fault of the target
				ctx = t.Context()
			}
			_, unasked := a.Get(ctx, Question{URL: tt.url, Headers: tt.headers})
			if unasked != tt.want {
				t.Errorf("it ended with %v, want %v", unasked, tt.want)
			}
			select {
			case <-visits:
				t.Error("the redirect was followed")
			default:
			}
		})
	}
}

// A name is judged by the address that is connected to, unless the name itself is listed.
func TestNamesThatResolveInside(t *testing.T) {
	url, _ := served(t, good)
	named := strings.Replace(url, "127.0.0.1", "localhost", 1)
	for allowed, want := range map[string]*Unasked{
		"":                            unaskedPlace,
		"192.0.2.0/24, payments.test": unaskedPlace,
		"localhost":                   nil,
		"127.0.0.0/8,::1":             nil,
	} {
		a := NewAsker(AskerOptions{Allowed: allow(t, allowed)})
		if _, unasked := a.Get(t.Context(), Question{URL: named}); unasked != want {
			t.Errorf("with %q it ended with %v, want %v", allowed, unasked, want)
		}
	}
}

// An address of the public network is not refused; the certificate's authority is asked for.
func TestATargetOverTLS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(good))
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	a := NewAsker(AskerOptions{Allowed: allow(t, "127.0.0.1/32"), RootCAs: roots})
	if got, unasked := a.Get(t.Context(), Question{URL: s.URL}); unasked != nil || string(got.Body) != `{"data":[]}` {
		t.Errorf("the answer is %+v, %v", got, unasked)
	}
}

func TestWhereItMayConnect(t *testing.T) {
	listed := allow(t, "10.1.0.0/16,fd00::1,127.0.0.1")
	for text, want := range map[string]bool{
		"10.1.2.3": true, "fd00::1": true, "127.0.0.1": true, "::ffff:127.0.0.1": true, "203.0.114.7": true, "2a00::1": true, "8.8.8.8": true,
		"10.2.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "127.0.0.2": false, "169.254.169.254": false, "0.0.0.0": false, "::": false, "::1": false,
		"fe80::1": false, "fd00::2": false, "100.64.0.1": false, "224.0.0.1": false, "ff02::1": false, "255.255.255.255": false, "240.0.0.1": false,
		"64:ff9b::a00:1": false, "2002:a00:1::": false, "::ffff:10.2.0.1": false, "::a00:1": false, "192.0.0.192": false, "fec0::1": false,
	} {
		if got := listed.permits(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	for _, text := range []string{"10.0.0.0/33", "http://a.test", "a.test:80", "A.test", "10.0.9", ",", "a_b", "fe80::1%eth0", "*.test"} {
		if _, err := ParseAllowed(text); err == nil || strings.Contains(err.Error(), text) && text != "," {
			t.Errorf("%q: %v", text, err)
		}
	}
}
