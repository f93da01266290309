// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
)

func (p program) contractsCommand() *cobra.Command {
	return group("contracts", "Look at what tools' owners declare", p.contractsCheckCommand(), &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of a contracts file, for editors",
		Example: "  ledgerd contracts schema > contract.schema.json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := p.stdout.Write(contract.Schema)
			return err
		},
	})
}

func (p program) contractsCheckCommand() *cobra.Command {
	c := Config{}
	s := newSettings(&c)
	var show string
	cmd := &cobra.Command{
		Use:   "check [FILE|DIR...]",
		Short: "Check contracts and show every fault",
		Long: "Check contracts and show every fault. Each argument is a set of its own, as a server would read it: a file, or the .yaml files of a\n" +
			"directory. Without one, what the setting contracts names is checked. Exit code 0: all is good; 1: there are faults; 2: wrong usage.",
		Example: "  ledgerd contracts check contracts.yaml\n  ledgerd contracts check contracts/ --print payments.charge",
		Args:    cobra.ArbitraryArgs,
	}
	s.bind(cmd.Flags(), "contracts")
	cmd.Flags().StringVar(&show, "print", "", "print the contract of a `TOOL` as it holds, with every default filled in")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			if err := s.resolve(p.env); err != nil {
				return usageError{err}
			}
			if c.Contracts == "" {
				return usageError{ruleError("contracts", "name the file or directory to check")}
			}
			args = []string{c.Contracts}
		}
		return p.checkContracts(args, ledger.Tool(show))
	}
	return cmd
}

// checkContracts tells of each file that it is good, or all that is wrong with it.
func (p program) checkContracts(paths []string, show ledger.Tool) error {
	var faults []error
	shown := false
	for _, path := range paths {
		files, err := contract.Read(path)
		if err != nil {
			faults = append(faults, unread("contracts", err))
			continue
		}
		set, err := contract.ParseFiles(files...)
		faults = append(faults, err)
		switch {
		case show == "":
			p.tellContracts(files, set, err)
		case err == nil:
			declared, ok := set.Declared(show)
			if !ok {
				continue
			}
			text, err := declared.YAML()
			if err != nil {
				return err
			}
			shown = true
			if _, err := p.stdout.Write(text); err != nil {
				return err
			}
		}
	}
	if err := errors.Join(faults...); err != nil {
		return err
	}
	if show != "" && !shown {
		return usageError{errors.New("--print: no contract of that tool is declared there; without --print, check lists those that are")}
	}
	return nil
}

func (p program) tellContracts(files []contract.File, set *contract.Set, err error) {
	bad := map[string]bool{}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			var fault *contract.Error
			if errors.As(err, &fault) {
				bad[fault.File] = true
			}
		}
	}
	for _, f := range files {
		if !bad[f.Name] {
			fmt.Fprintf(p.stdout, "%s: ok\n", f.Name)
		}
	}
	if set == nil {
		return
	}
	for _, warning := range set.Warnings() {
		fmt.Fprintf(p.stderr, "warning: %s\n", warning)
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TOOL\tEFFECT\tMETHOD\tVERSION")
	for _, tool := range set.Tools() {
		c, _ := set.Contract(tool)
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", tool, c.Effect, c.Method, c.Version)
	}
	table.Flush() // a lost table is a lost ok, too
}
