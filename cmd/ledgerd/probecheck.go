// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/contract"
	"github.com/opsledger/opsledger/ledger/rpc"
	"github.com/opsledger/opsledger/recovery"
)

func (p program) probeCommand() *cobra.Command {
	return group("probe", "Try out how targets are asked", p.probeCheckCommand())
}

func (p program) probeCheckCommand() *cobra.Command {
	c := Config{}
	s := newSettings(&c)
	var trial contract.Trial
	cmd := &cobra.Command{
		Use:   "check TOOL --downstream-key KEY",
		Short: "Ask a tool's target once, as its contract says, and show what the answer means",
		Long: "Ask a tool's target once, as recovery would, and show its status, what each expression of the contract says of the answer, and the verdict. The\n" +
			"answer itself is not shown. Only the first page is asked for: where a list goes on, the verdict is that of a list whose rest can't be had. Nothing is\n" +
			"recorded, and limits do not hold. Exit code 0: there is a verdict; 1: the target could not be asked; 2: wrong usage.",
		Example: "  ledgerd probe check payments.charge --downstream-key 0f9c... --contracts contracts.yaml --probe-allow payments.internal\n" +
			"  ledgerd probe check tickets.create --downstream-key 0f9c... --attribute queue=ops",
		Args: cobra.ArbitraryArgs,
	}
	s.bind(cmd.Flags(), "contracts", "probe-allow", "tls-cert", "tls-key", "tls-ca")
	cmd.Flags().StringVar(&trial.DownstreamKey, "downstream-key", "", "the `KEY` to ask about")
	cmd.Flags().StringToStringVar(&trial.Attributes, "attribute", nil, "target attributes that the address needs, `NAME=VALUE`")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || trial.DownstreamKey == "" {
			return usageError{errors.New("name one tool and a --downstream-key")}
		}
		if err := s.resolve(p.env); err != nil {
			return usageError{err}
		}
		return p.checkProbe(cmd.Context(), c, ledger.Tool(args[0]), trial)
	}
	return cmd
}

func (p program) checkProbe(ctx context.Context, c Config, tool ledger.Tool, trial contract.Trial) error {
	allowed, err := recovery.ParseAllowed(c.ProbeAllow)
	if err != nil {
		return usageError{ruleError("probe-allow", err.Error())}
	}
	declared, _, err := openContracts(c.Contracts, func(string, error) {})
	if err != nil {
		return usageError{c.named(err)}
	}
	of, ok := declared.Declared(tool)
	if !ok || of.Probe == nil || of.Probe.External {
		return usageError{errors.New("the tool has no contract with recovery.probe.http or recovery.probe.grpc")}
	}
	ctx, cancel := context.WithTimeout(ctx, of.CheckTimeout)
	defer cancel()
	if of.Probe.GRPC != "" {
		return p.checkOwner(ctx, c, of, allowed, trial)
	}
	query := of.Probe.HTTP
	url, err := query.TrialURL(trial)
	if err != nil { // its text is constant
		return usageError{fmt.Errorf("the target can't be asked: %w", err)}
	}
	answer, unasked := get(ctx, recovery.NewAsker(recovery.AskerOptions{Allowed: allowed, MaxBody: contract.MaxBody}), url, query.Headers())
	if unasked != nil {
		return fmt.Errorf("the target could not be asked: %w", unasked)
	}
	said, verdict := query.Explain(url, answer, trial)
	out := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "status\t%d\n", answer.Status)
	for _, s := range said {
		fmt.Fprintf(out, "%s\t%s\n", s.Expression, s.Value)
	}
	fmt.Fprintf(out, "verdict\t%s\n", wordOf(verdict.Evidence))
	return out.Flush()
}

// checkOwner asks the service of the tool's owner.
func (p program) checkOwner(ctx context.Context, c Config, of contract.Contract, allowed recovery.Allowed, trial contract.Trial) error {
	services := &owners{allowed: allowed}
	defer services.close()
	if c.TLSCert != "" {
		material, err := authz.NewMaterialReloader(authz.Files{Cert: c.TLSCert, Key: c.TLSKey, CA: c.TLSCA}, p.now, nil)
		if err != nil {
			return usageError{c.named(err)}
		}
		services.material = material
	}
	verdict := ownerProbe{of.Probe.GRPC, services, of.Contract}.ask(ctx, rpc.Question{
		Tool: of.Tool, DownstreamKey: trial.DownstreamKey, Attributes: trial.Attributes,
	})
	if verdict.Why != "" {
		return fmt.Errorf("the target could not be asked: %s", verdict.Why)
	}
	_, err := fmt.Fprintf(p.stdout, "verdict  %s\n", wordOf(verdict.Evidence))
	return err
}

// wordOf evidence, in the words of its contract.
func wordOf(e ledger.Evidence) string {
	word := e.Finding.String()
	if e.Finding == ledger.Indeterminate {
		word += " (" + e.Cause.String() + ")"
	}
	if e.Final {
		word += " (final)"
	}
	return word
}
