// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build is where this binary comes from, as the Go tool wrote it down.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Built   string `json:"built,omitempty"`
	Go      string `json:"go"`
}

// unstamped stands for what the Go tool has not written down, as in go run.
const unstamped = "unknown"

func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return build{Version: "unknown"}
	}
	b := build{Version: info.Main.Version, Go: info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.time":
			b.Built = s.Value
		}
	}
	return b
}

func versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show where this binary comes from",
		Example: "  ledgerctl version --output json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			b := thisBuild()
			switch output {
			case "text":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "ledgerctl %s\ncommit  %s\nbuilt   %s\ngo      %s\n", b.Version, cmp.Or(b.Commit, unstamped), cmp.Or(b.Built, unstamped), b.Go)
				return err
			case "json":
				return json.NewEncoder(cmd.OutOrStdout()).Encode(b)
			default:
				return usageError{fmt.Errorf("--output: must be text or json")}
			}
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}
