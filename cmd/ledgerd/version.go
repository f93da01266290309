// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/migrations"
)

// protoPackage is the version of the contract that is served.
const protoPackage = "opsledger.v1"

// release says what this binary is.
type release struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Built   string `json:"built"`
	Go      string `json:"go"`
	// SchemaFrom and SchemaTo are the schemas that it works on; SchemaOwn is the one that it migrates to.
	SchemaFrom int    `json:"schema_from"`
	SchemaOwn  int    `json:"schema_own"`
	SchemaTo   int    `json:"schema_to"`
	Proto      string `json:"proto"`
}

// thisRelease reads what the Go tool wrote into the binary; a build out of a plain directory knows less.
func thisRelease() release {
	r := release{
		Version: "(devel)", Commit: "unknown", Built: "unknown", Go: runtime.Version(), Proto: protoPackage,
		SchemaFrom: max(migrations.Latest-1, 1), SchemaOwn: migrations.Latest, SchemaTo: migrations.Latest + 1,
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return r
	}
	if info.Main.Version != "" {
		r.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			r.Commit = s.Value
		case "vcs.time":
			r.Built = s.Value
		}
	}
	return r
}

func (p program) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "version", Short: "Print what this binary is", Example: "  ledgerd version --output json", Args: noArgs}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.RunE = func(*cobra.Command, []string) error {
		if err := textOrJSON(output); err != nil {
			return err
		}
		r := thisRelease()
		if output == "json" {
			return p.showJSON(r)
		}
		_, err := fmt.Fprintf(p.stdout, "ledgerd %s\ncommit  %s\nbuilt   %s\ngo      %s\nschema  %d to %d, own %d\nproto   %s\n",
			r.Version, r.Commit, r.Built, r.Go, r.SchemaFrom, r.SchemaTo, r.SchemaOwn, r.Proto)
		return err
	}
	return cmd
}
