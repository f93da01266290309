// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// healthBound is shorter than the time that container runtimes give a health check.
const healthBound = 3 * time.Second

func (p program) healthcheckCommand() *cobra.Command {
	var live bool
	cmd := p.configured(&cobra.Command{
		Use:     "healthcheck",
		Short:   "Ask the server on this host whether it is ready; exits 0 if it is, else 1",
		Example: "  ledgerd healthcheck --admin-addr :7490",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		host, port, err := net.SplitHostPort(c.AdminAddr)
		if err != nil {
			return usageError{ruleError("admin-addr", "must be host:port or :port")}
		}
		// The server listens on every address; from here it is on the loopback.
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = "127.0.0.1"
		}
		path := readyPath
		if live {
			path = livePath
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), healthBound)
		defer cancel()
		return ask(ctx, "http://"+net.JoinHostPort(host, port)+path, p.stdout)
	}, "admin-addr")
	cmd.Flags().BoolVar(&live, "live", false, "ask only whether the process lives")
	return cmd
}

func ask(ctx context.Context, address string, stdout io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	// A proxy of the environment is not asked about this host.
	client := &http.Client{Transport: &http.Transport{Proxy: nil, DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	if _, err := stdout.Write(body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("health check: status %d", response.StatusCode)
	}
	return nil
}
