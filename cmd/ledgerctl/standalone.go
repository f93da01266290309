// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const ledgerdPackage = "github.com/opsledger/opsledger/cmd/ledgerd"

// startLedger starts a development ledger in dir, on free ports, whose contracts ask the services at an address, and returns how to reach
// it once it is ready.
func startLedger(
	ctx context.Context, dir, services, program, self string, env []string, talk io.Writer,
) (d devLedger, stop func(), err error) {
	// Settings of another ledger are not meant for this one.
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool { return strings.HasPrefix(v, "LEDGERD_") })
	if program, err = findLedgerd(ctx, dir, program, self, env, talk); err != nil {
		return d, nil, err
	}
	state := filepath.Join(dir, "state")
	c, err := begin(ctx, []string{
		program, "dev", "--state-dir", state, "--grpc-addr", "127.0.0.1:0", "--admin-addr", "127.0.0.1:0",
		"--demo-target", services,
	}, env, nil)
	if err != nil {
		return d, nil, err
	}
	if d, err = ready(ctx, c, state); err != nil {
		c.kill()
		return d, nil, err
	}
	return d, c.kill, nil
}

// findLedgerd is the program that was named, else the one beside this, else one that is built.
func findLedgerd(ctx context.Context, dir, program, self string, env []string, talk io.Writer) (string, error) {
	if program != "" {
		return filepath.Abs(program)
	}
	name := "ledgerd"
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
		return beside, nil
	}
	built := filepath.Join(dir, name)
	_, _ = fmt.Fprintln(talk, "building ledgerd (the first time takes some minutes)")
	c, err := begin(ctx, []string{"go", "build", "-o", built, ledgerdPackage}, env, nil)
	if err != nil {
		return "", fmt.Errorf("build ledgerd: %w", err)
	}
	if err := c.wait(); err != nil {
		return "", fmt.Errorf("build ledgerd (run this in the module's directory, or name one with --ledgerd): %w", errors.Join(err, ctx.Err()))
	}
	return built, nil
}

// readyPatience bounds the start of a ledger: migrations and keys.
const readyPatience = 30 * time.Second

// ready returns when the ledger has written how to reach it and can be reached.
func ready(ctx context.Context, c *child, state string) (devLedger, error) {
	ctx, cancel := context.WithTimeout(ctx, readyPatience)
	defer cancel()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		d, err := findLedger(ctx, state)
		if err == nil {
			return d, nil
		}
		select {
		case <-c.done:
			return d, fmt.Errorf("ledgerd dev: %w", c.wait())
		case <-ctx.Done():
			return d, fmt.Errorf("ledgerd dev did not get ready: %w: %w", ctx.Err(), err)
		case <-look.C:
		}
	}
}
