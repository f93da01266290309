// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/authz"
)

func (p program) root() *cobra.Command {
	root := group("ledgerd", "Remembers what agents did to other systems, so that nothing is done twice")
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Example = "  ledgerd dev\n  ledgerd serve --config /etc/ledgerd.yaml"
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(
		p.devCommand(), p.serveCommand(), p.recoverCommand(), p.migrateCommand(), p.healthcheckCommand(),
		p.configCommand(), p.policyCommand(), p.contractsCommand(), p.probeCommand(), p.keysCommand(), p.restoredCommand(), p.timelinesCommand(), p.versionCommand(),
	)
	return root
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs, RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("unknown command; see %s --help", cmd.CommandPath())}
		}
		fmt.Fprintln(cmd.ErrOrStderr(), cmd.UsageString())
		return usageError{errors.New("say what to do: name one of the commands")}
	}}
	g.AddCommand(commands...)
	return g
}

// noArgs refuses arguments as wrong usage.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("%s takes no arguments; see %s --help", cmd.CommandPath(), cmd.CommandPath())}
	}
	return nil
}

// textOrJSON judges --output of a command that has both.
func textOrJSON(output string) error {
	if output != "text" && output != "json" {
		return usageError{errors.New("--output must be text or json")}
	}
	return nil
}

// showJSON writes what a command with --output=json has found.
func (p program) showJSON(found any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(found)
}

// configured is a command that uses settings. names are those that it has flags for; none: all.
func (p program) configured(cmd *cobra.Command, defaults Config, act func(cmd *cobra.Command, c Config, s *settings) error, names ...string) *cobra.Command {
	c := defaults
	s := newSettings(&c)
	s.bind(cmd.Flags(), names...)
	cmd.Args = noArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.resolve(p.env); err != nil {
			return usageError{err}
		}
		return act(cmd, c, s)
	}
	return cmd
}

func (p program) configCommand() *cobra.Command {
	var origin bool
	printing := p.configured(&cobra.Command{
		Use:     "print",
		Short:   "Print the settings of serve in force, secrets hidden",
		Example: "  ledgerd config print --config /etc/ledgerd.yaml --origin",
	}, serveDefaults(), func(_ *cobra.Command, _ Config, s *settings) error {
		return s.print(p.stdout, origin)
	})
	printing.Flags().BoolVar(&origin, "origin", false, "print a table that says where each value comes from")
	return group("config", "Look at the settings", printing)
}

// checkCommand is a check of a file: its argument, else the setting's.
func (p program) checkCommand(short, example, name string, check func(path string) error) *cobra.Command {
	c := Config{}
	s := newSettings(&c)
	cmd := &cobra.Command{Use: "check [FILE]", Short: short, Example: example, Args: cobra.ArbitraryArgs}
	s.bind(cmd.Flags(), name)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
		case 1:
			return check(args[0])
		default:
			return usageError{errors.New("name one file")}
		}
		if err := s.resolve(p.env); err != nil {
			return usageError{err}
		}
		path := s.byName[name].show()
		if path == "" {
			return usageError{ruleError(name, "name the file to check")}
		}
		return check(path)
	}
	return cmd
}

func (p program) policyCommand() *cobra.Command {
	return group("policy", "Look at a policy file", p.checkCommand(
		"Check a policy file and show every fault", "  ledgerd policy check policy.yaml", "policy",
		func(path string) error {
			policy, err := authz.ParseFile(path)
			if err != nil {
				return unread("policy", err)
			}
			_, err = fmt.Fprintf(p.stdout, "%s: good, for principals of spiffe://%s\n", path, policy.TrustDomain())
			return err
		}))
}

// unread says why a file can't be looked at; other errors of a check name what is wrong in it, each with its line.
func unread(setting string, err error) error {
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		return fileError(setting, at.Path, whyUnread(err))
	}
	return err
}
