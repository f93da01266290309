// SPDX-License-Identifier: Apache-2.0

package authz

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// AgentPrincipal is the principal that the development authority gives to a
// name.
func AgentPrincipal(trustDomain, name string) Principal {
	return Principal("spiffe://" + trustDomain + "/agent/" + name)
}

// DevOptions is what a development authority makes.
type DevOptions struct {
	// TrustDomain of the client identities.
	TrustDomain string
	// Clients are the names of the client identities: lower-case letters, digits
	// and dashes, without the names of the other files.
	Clients []string
	// Validity of whatever is made; 30 days if it is 0.
	Validity time.Duration
}

// DevFiles are the paths that EnsureDev wrote or found.
type DevFiles struct {
	Server  Files
	Clients map[string]Files
}

const (
	defaultDevValidity = 30 * 24 * time.Hour
	authorityName      = "ca"
	serverName         = "server"
)

var clientForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// EnsureDev makes a directory hold a development authority, a server certificate
// for localhost, 127.0.0.1 and ::1, and the client identities. What is there and
// has a tenth of its life left is kept; anything else is made again. Every file
// has mode 0600, the directory 0700 if it is made here.
func EnsureDev(dir string, options DevOptions, now time.Time) (DevFiles, error) {
	if _, err := spiffeid.TrustDomainFromString(options.TrustDomain); err != nil {
		return DevFiles{}, errors.New("trust domain: must be a lower-case SPIFFE trust domain name, such as dev.local")
	}
	for _, name := range options.Clients {
		// "x-key" would write its certificate where the key of "x" is.
		if !clientForm.MatchString(name) || name == authorityName || name == serverName || strings.HasSuffix(name, "-key") {
			return DevFiles{}, fmt.Errorf("client name: must be lower-case letters, digits and dashes, not %s or %s, and not end in -key", authorityName, serverName)
		}
	}
	if options.Validity <= 0 {
		options.Validity = defaultDevValidity
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return DevFiles{}, fmt.Errorf("development certificates: %w", err)
	}
	d := &devDirectory{dir: dir, now: now, validity: options.Validity}
	if err := d.ensureAuthority(); err != nil {
		return DevFiles{}, err
	}
	files := DevFiles{Server: d.files(serverName), Clients: make(map[string]Files, len(options.Clients))}
	err := d.ensureLeaf(serverName, LeafSpec{
		CommonName: "opsledger development server",
		DNS:        []string{"localhost"},
		IPs:        []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback},
		Usage:      []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return DevFiles{}, err
	}
	for _, name := range options.Clients {
		err := d.ensureLeaf(name, LeafSpec{
			URIs:  []string{string(AgentPrincipal(options.TrustDomain, name))},
			Usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err != nil {
			return DevFiles{}, err
		}
		files.Clients[name] = d.files(name)
	}
	return files, nil
}

type devDirectory struct {
	dir      string
	now      time.Time
	validity time.Duration
	ca       *CA
}

func (d *devDirectory) files(name string) Files {
	return Files{
		Cert: filepath.Join(d.dir, name+".pem"),
		Key:  filepath.Join(d.dir, name+"-key.pem"),
		CA:   filepath.Join(d.dir, authorityName+".pem"),
	}
}

func (d *devDirectory) ensureAuthority() error {
	files := d.files(authorityName)
	certificate, key, err := readPair(files)
	if err != nil {
		return err
	}
	if certificate != nil {
		found, private, err := parsePair(certificate, key)
		if err == nil && found.IsCA && d.fresh(found) {
			d.ca = &CA{certificate: found, key: private}
			return nil
		}
	}
	if d.ca, err = NewCA("opsledger development authority", d.now, d.validity); err != nil {
		return err
	}
	encoded, err := keyPEM(d.ca.key)
	if err != nil {
		return err
	}
	return writePair(files, d.ca.PEM(), encoded)
}

func (d *devDirectory) ensureLeaf(name string, spec LeafSpec) error {
	files := d.files(name)
	certificate, key, err := readPair(files)
	if err != nil {
		return err
	}
	if certificate != nil {
		found, _, err := parsePair(certificate, key)
		if err == nil && d.fresh(found) && d.isOurs(found, spec) {
			return nil
		}
	}
	spec.NotBefore, spec.NotAfter = d.now.Add(-skew), d.now.Add(d.validity)
	// A leaf that outlives its authority would look valid and be refused.
	if end := d.ca.certificate.NotAfter; spec.NotAfter.After(end) {
		spec.NotAfter = end
	}
	leaf, err := d.ca.Issue(spec)
	if err != nil {
		return err
	}
	certificate, key, err = leaf.PEM()
	if err != nil {
		return err
	}
	return writePair(files, certificate, key)
}

func (d *devDirectory) fresh(certificate *x509.Certificate) bool {
	return !d.now.Before(certificate.NotBefore) && certificate.NotAfter.Sub(d.now) > d.validity/10
}

// isOurs says whether a leaf is what the authority would issue for spec.
func (d *devDirectory) isOurs(leaf *x509.Certificate, spec LeafSpec) bool {
	if leaf.CheckSignatureFrom(d.ca.certificate) != nil || !slices.Equal(leaf.DNSNames, spec.DNS) {
		return false
	}
	uris, err := rawURIs(leaf)
	return err == nil && slices.Equal(uris, spec.URIs)
}

// readPair returns nothing if either file is missing: the pair is then made.
func readPair(files Files) (certificate, key []byte, err error) {
	if certificate, err = os.ReadFile(files.Cert); err == nil {
		key, err = os.ReadFile(files.Key)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("development certificates: %w", err)
	}
	return certificate, key, nil
}

// writePair writes the key first: a crash in between leaves a pair that does not
// fit and is made again.
func writePair(files Files, certificate, key []byte) error {
	if err := writePrivate(files.Key, key); err != nil {
		return err
	}
	return writePrivate(files.Cert, certificate)
}

// writePrivate replaces a file in one step, so that a reader sees the old or the
// new one. os.CreateTemp makes it 0600.
func writePrivate(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("development certificates: %w", err)
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("development certificates: %w", errors.Join(err, os.Remove(file.Name())))
	}
	return nil
}
