// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials"
)

func devOptions(clients ...string) DevOptions {
	return DevOptions{TrustDomain: "dev.local", Clients: clients}
}

func TestDevelopmentAuthority(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	files, err := EnsureDev(dir, devOptions("agent-a", "operator"), testNow)
	if err != nil {
		t.Fatal(err)
	}
	assertPrivate(t, dir)
	server, err := NewMaterialReloader(files.Server, testClock, nil)
	if err != nil {
		t.Fatal(err)
	}
	policy, err := DevPolicy("dev.local", AgentPrincipal("dev.local", "operator"))
	if err != nil {
		t.Fatal(err)
	}
	listener := listenTLS(t, atTestNow(ServerTLS(server)))
	for name, paths := range files.Clients {
		client, err := NewMaterialReloader(paths, testClock, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"localhost", "127.0.0.1", "::1"} {
			config := ClientTLS(client, host)
			config.Time = testClock
			seen, end := listener.dial(t, config)
			if seen.err != nil || end.err != nil {
				t.Fatalf("%s to %s: server %v, client %v", name, host, seen.err, end.err)
			}
			got, err := policy.PrincipalFromPeer(credentials.TLSInfo{State: seen.state}, testNow)
			assertIdentity(t, got, err, AgentPrincipal("dev.local", name), "")
		}
	}
}

func assertPrivate(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", entry.Name(), info.Mode())
		}
		if strings.HasPrefix(entry.Name(), ".") {
			t.Errorf("%s was left behind", entry.Name())
		}
	}
}

// TestDevelopmentFilesAreKept compares which files an EnsureDev leaves alone.
func TestDevelopmentFilesAreKept(t *testing.T) {
	const day = 24 * time.Hour
	all := []string{"agent-a-key.pem", "agent-a.pem", "ca-key.pem", "ca.pem", "server-key.pem", "server.pem"}
	for _, c := range []struct {
		name   string
		change func(t *testing.T, dir string, options *DevOptions)
		after  time.Duration
		made   []string
	}{
		{name: "still valid", after: 20 * day},
		{name: "a tenth of the life is left", after: 28 * day, made: all},
		{name: "expired", after: 31 * day, made: all},
		{name: "another client", change: func(_ *testing.T, _ string, o *DevOptions) { o.Clients = append(o.Clients, "agent-b") }, made: []string{"agent-b-key.pem", "agent-b.pem"}},
		{name: "another trust domain", change: func(_ *testing.T, _ string, o *DevOptions) { o.TrustDomain = "other.local" }, made: []string{"agent-a-key.pem", "agent-a.pem"}},
		{name: "broken key", change: func(t *testing.T, dir string, _ *DevOptions) {
			writeFile(t, filepath.Join(dir, "server-key.pem"), "x")
		}, made: []string{"server-key.pem", "server.pem"}},
		{name: "missing key", change: func(t *testing.T, dir string, _ *DevOptions) {
			if err := os.Remove(filepath.Join(dir, "agent-a-key.pem")); err != nil {
				t.Fatal(err)
			}
		}, made: []string{"agent-a-key.pem", "agent-a.pem"}},
		{name: "authority without its key", change: func(t *testing.T, dir string, _ *DevOptions) {
			writeFile(t, filepath.Join(dir, "ca-key.pem"), "x")
		}, made: all},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, options := t.TempDir(), devOptions("agent-a")
			if _, err := EnsureDev(dir, options, testNow); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(t, dir, &options)
			}
			before := readDir(t, dir)
			files, err := EnsureDev(dir, options, testNow.Add(c.after))
			if err != nil {
				t.Fatal(err)
			}
			var made []string
			for name, content := range readDir(t, dir) {
				if before[name] != content {
					made = append(made, name)
				}
			}
			slices.Sort(made)
			if !slices.Equal(made, c.made) {
				t.Errorf("made %v, want %v", made, c.made)
			}
			assertPrivate(t, dir)
			for _, paths := range files.Clients {
				if _, err := NewMaterialReloader(paths, func() time.Time { return testNow.Add(c.after) }, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func readDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	contents := make(map[string]string)
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			t.Fatal(err)
		}
		contents[entry.Name()] = string(data)
	}
	return contents
}

func TestDevelopmentOptionsAreChecked(t *testing.T) {
	for name, options := range map[string]DevOptions{
		"trust domain":        {TrustDomain: "Dev.Local"},
		"path in a name":      devOptions("../agent"),
		"empty name":          devOptions(""),
		"name of the CA":      devOptions("ca"),
		"name of the server":  devOptions("server"),
		"upper case":          devOptions("Agent"),
		"dash at the end":     devOptions("agent-"),
		"would be a CA's key": devOptions("ca-key"),
	} {
		if _, err := EnsureDev(t.TempDir(), options, testNow); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestALeafNeverOutlivesItsAuthority would else show a valid certificate that is refused.
func TestALeafNeverOutlivesItsAuthority(t *testing.T) {
	dir := t.TempDir()
	if _, err := EnsureDev(dir, devOptions(), testNow); err != nil {
		t.Fatal(err)
	}
	later, err := EnsureDev(dir, devOptions("agent-a"), testNow.Add(10*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	var ends []time.Time
	for _, path := range []string{later.Server.CA, later.Clients["agent-a"].Cert} {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, certificate.NotAfter)
	}
	if ends[1].After(ends[0]) {
		t.Errorf("leaf ends %v, authority %v", ends[1], ends[0])
	}
}
