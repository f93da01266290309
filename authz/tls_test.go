// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

const clientID = "spiffe://ledger.test/agent/billing"

func TestHandshakes(t *testing.T) {
	trusted, other := newTestCA(t, "root A"), newTestCA(t, "root B")
	server := mustMaterial(t, leafPEM(t, mustIssue(t, trusted, serverSpec()), trusted.PEM()))
	listener := listenTLS(t, atTestNow(ServerTLS(server)))
	honest := mustIssue(t, trusted, clientSpec(clientID))
	expired := clientSpec(clientID)
	expired.NotAfter = testNow.Add(-time.Minute)

	for _, c := range []struct {
		name   string
		client *tls.Config
		change func(*tls.Config)
		ok     bool
	}{
		{name: "honest client", client: testClient(trusted.PEM(), honest), ok: true},
		{name: "TLS 1.2", client: testClient(trusted.PEM(), honest), change: func(c *tls.Config) {
			c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
		}},
		{name: "no client certificate", client: testClient(trusted.PEM(), nil)},
		{name: "untrusted root", client: testClient(trusted.PEM(), mustIssue(t, other, clientSpec(clientID)))},
		{name: "expired", client: testClient(trusted.PEM(), mustIssue(t, trusted, expired))},
		{name: "another protocol", client: testClient(trusted.PEM(), honest), change: func(c *tls.Config) { c.NextProtos = []string{"spdy/3"} }},
		{name: "client that believes another authority", client: testClient(other.PEM(), honest)},
		{name: "client that wants another server", client: testClient(trusted.PEM(), honest), change: func(c *tls.Config) { c.ServerName = "other.test" }},
		{name: "someone else's certificate without its key", client: testClient(trusted.PEM(), &Leaf{DER: honest.DER, Key: mustIssue(t, trusted, clientSpec(clientID)).Key})},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.change != nil {
				c.change(c.client)
			}
			server, client := listener.dial(t, c.client)
			if !c.ok {
				if server.err == nil || client.err == nil {
					t.Fatalf("errors: server %v, client %v; both must fail", server.err, client.err)
				}
				return
			}
			if server.err != nil || client.err != nil {
				t.Fatalf("errors: server %v, client %v", server.err, client.err)
			}
			if server.state.Version != tls.VersionTLS13 || server.state.NegotiatedProtocol != "h2" {
				t.Errorf("version %x, protocol %q", server.state.Version, server.state.NegotiatedProtocol)
			}
		})
	}
}

func TestNoSessionIsResumed(t *testing.T) {
	ca := newTestCA(t, "root A")
	server := mustMaterial(t, leafPEM(t, mustIssue(t, ca, serverSpec()), ca.PEM()))
	listener := listenTLS(t, atTestNow(ServerTLS(server)))
	client := testClient(ca.PEM(), mustIssue(t, ca, clientSpec(clientID)))
	cache := &countingCache{ClientSessionCache: tls.NewLRUClientSessionCache(4)}
	client.ClientSessionCache = cache
	for range 3 {
		server, end := listener.dial(t, client)
		if server.err != nil || end.err != nil {
			t.Fatalf("errors: server %v, client %v", server.err, end.err)
		}
		if server.state.DidResume || end.state.DidResume {
			t.Error("a session was resumed")
		}
	}
	if cache.gets == 0 {
		t.Error("the client never looked for a session: nothing is shown")
	}
	if cache.puts != 0 {
		t.Errorf("%d tickets were sent", cache.puts)
	}
}

type countingCache struct {
	tls.ClientSessionCache
	gets, puts int
}

func (c *countingCache) Get(key string) (*tls.ClientSessionState, bool) {
	c.gets++
	return c.ClientSessionCache.Get(key)
}

func (c *countingCache) Put(key string, state *tls.ClientSessionState) {
	if state != nil {
		c.puts++
	}
	c.ClientSessionCache.Put(key, state)
}

func writePEM(t *testing.T, f Files, p PEM) {
	t.Helper()
	writeFile(t, f.Cert, string(p.Cert))
	writeFile(t, f.Key, string(p.Key))
	writeFile(t, f.CA, string(p.CA))
}

func pemFiles(t *testing.T) Files {
	dir := t.TempDir()
	return Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key"), CA: filepath.Join(dir, "ca.crt")}
}

func TestRotationOnAnOpenListener(t *testing.T) {
	first, second := newTestCA(t, "root A"), newTestCA(t, "root B")
	files := pemFiles(t)
	oldLeaf, newLeaf := mustIssue(t, first, serverSpec()), mustIssue(t, first, serverSpec())
	writePEM(t, files, leafPEM(t, oldLeaf, first.PEM()))
	r, err := NewMaterialReloader(files, testClock, nil)
	if err != nil {
		t.Fatal(err)
	}
	listener := listenTLS(t, atTestNow(ServerTLS(r)))
	oldClient := testClient(first.PEM(), mustIssue(t, first, clientSpec(clientID)))
	newClient := testClient(first.PEM(), mustIssue(t, second, clientSpec(clientID)))

	expect := func(client *tls.Config, ok bool, leaf *Leaf) {
		t.Helper()
		server, end := listener.dial(t, client)
		if (server.err == nil && end.err == nil) != ok {
			t.Fatalf("errors: server %v, client %v; want success: %v", server.err, end.err, ok)
		}
		if ok && !bytes.Equal(end.state.PeerCertificates[0].Raw, leaf.DER) {
			t.Error("the server showed another leaf")
		}
	}
	expect(oldClient, true, oldLeaf)
	expect(newClient, false, nil)

	// A new leaf, and both authorities, as a rotation begins.
	writePEM(t, files, leafPEM(t, newLeaf, slices.Concat(first.PEM(), second.PEM())))
	if changed, err := r.Reload(); !changed || err != nil {
		t.Fatalf("changed %v, error %v", changed, err)
	}
	expect(oldClient, true, newLeaf)
	expect(newClient, true, newLeaf)

	// Only the new authority, as it ends.
	writeFile(t, files.CA, string(second.PEM()))
	if changed, err := r.Reload(); !changed || err != nil {
		t.Fatalf("changed %v, error %v", changed, err)
	}
	expect(oldClient, false, nil)
	expect(newClient, true, newLeaf)
}

func TestBrokenTLSFilesKeepTheLastGood(t *testing.T) {
	ca := newTestCA(t, "root A")
	good := leafPEM(t, mustIssue(t, ca, serverSpec()), ca.PEM())
	another := leafPEM(t, mustIssue(t, ca, serverSpec()), ca.PEM())
	expired := serverSpec()
	expired.NotAfter = testNow.Add(-time.Second)
	leafAsCA := good
	leafAsCA.CA = good.Cert
	for _, c := range []struct {
		name   string
		change func(*PEM)
	}{
		{"key of another leaf", func(p *PEM) { p.Key = another.Key }},
		{"empty certificate", func(p *PEM) { p.Cert = nil }},
		{"half a certificate", func(p *PEM) { p.Cert = another.Cert[:len(another.Cert)/2] }},
		{"half a key", func(p *PEM) { p.Key = another.Key[:len(another.Key)/2] }},
		{"expired leaf", func(p *PEM) { *p = leafPEM(t, mustIssue(t, ca, expired), ca.PEM()) }},
		{"no authorities", func(p *PEM) { p.CA = nil }},
		{"half an authority after a whole one", func(p *PEM) { p.CA = slices.Concat(ca.PEM(), ca.PEM()[:100]) }},
		{"a leaf as an authority", func(p *PEM) { *p = leafAsCA }},
		{"a key among the authorities", func(p *PEM) { p.CA = slices.Concat(ca.PEM(), good.Key) }},
		{"an authority that is no certificate", func(p *PEM) {
			p.CA = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := pemFiles(t)
			writePEM(t, files, good)
			var told reports
			r, err := NewMaterialReloader(files, testClock, told.hook)
			if err != nil {
				t.Fatal(err)
			}
			before := r.Current()
			broken := good
			c.change(&broken)
			writePEM(t, files, broken)
			if changed, err := r.Reload(); changed || err == nil {
				t.Errorf("changed %v, error %v; want an error", changed, err)
			}
			if r.Current() != before {
				t.Error("the broken material is in force")
			}
			if !slices.Equal(told.kinds, []string{"tls failed"}) {
				t.Errorf("reports %v", told.kinds)
			}
		})
	}
}

func TestMaterialTellsItsEnd(t *testing.T) {
	ca := newTestCA(t, "root A")
	spec := serverSpec()
	material := mustMaterial(t, leafPEM(t, mustIssue(t, ca, spec), ca.PEM()))
	if !material.NotAfter().Equal(spec.NotAfter) {
		t.Errorf("not after %v, want %v", material.NotAfter(), spec.NotAfter)
	}
	short, err := NewCA("root B", testNow, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for title, authorities := range map[string][]byte{"first": slices.Concat(short.PEM(), ca.PEM()), "last": slices.Concat(ca.PEM(), short.PEM())} {
		material := mustMaterial(t, leafPEM(t, mustIssue(t, ca, spec), authorities))
		if want := testNow.Add(time.Minute).Truncate(time.Second); !material.AuthoritiesNotAfter().Equal(want) {
			t.Errorf("the one that ends first is %s: %v, want %v", title, material.AuthoritiesNotAfter(), want)
		}
	}
}

func TestAClientSendsItsReloadedPair(t *testing.T) {
	ca := newTestCA(t, "root A")
	server := mustMaterial(t, leafPEM(t, mustIssue(t, ca, serverSpec()), ca.PEM()))
	listener := listenTLS(t, atTestNow(ServerTLS(server)))
	policy := mustPolicy(t, identityPolicy)
	files := pemFiles(t)
	writePEM(t, files, leafPEM(t, mustIssue(t, ca, clientSpec("spiffe://ledger.test/agent/one")), ca.PEM()))
	r, err := NewMaterialReloader(files, testClock, nil)
	if err != nil {
		t.Fatal(err)
	}
	config := ClientTLS(r, "")
	config.Time = testClock
	expect := func(want Principal) {
		t.Helper()
		server, client := listener.dial(t, config) // the name is the address: 127.0.0.1
		if server.err != nil || client.err != nil {
			t.Fatalf("errors: server %v, client %v", server.err, client.err)
		}
		got, err := policy.PrincipalFromPeer(credentials.TLSInfo{State: server.state}, testNow)
		assertIdentity(t, got, err, want, "")
	}
	expect("spiffe://ledger.test/agent/one")
	writePEM(t, files, leafPEM(t, mustIssue(t, ca, clientSpec("spiffe://ledger.test/agent/two")), ca.PEM()))
	if _, err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	expect("spiffe://ledger.test/agent/two")
}

func TestTheHooklessServerConfigurationTrustsNobody(t *testing.T) {
	ca := newTestCA(t, "root A")
	config := ServerTLS(mustMaterial(t, leafPEM(t, mustIssue(t, ca, serverSpec()), ca.PEM())))
	config.GetConfigForClient = nil
	config.Time = testClock
	listener := listenTLS(t, config)
	server, client := listener.dial(t, testClient(ca.PEM(), mustIssue(t, ca, clientSpec(clientID))))
	if server.err == nil || client.err == nil {
		t.Errorf("errors: server %v, client %v; both must fail", server.err, client.err)
	}
}
