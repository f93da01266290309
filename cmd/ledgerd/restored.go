// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/ledger"
)

func (p program) restoredCommand() *cobra.Command {
	var lostSince string
	restored := p.configured(&cobra.Command{
		Use:   "restored",
		Short: "Say that the store was restored, so that what it may have lost is investigated, not executed",
		Long: "Say that the store was restored from a backup, or has lost commits in another way, before any ledgerd uses it again. A new timeline begins. From\n" +
			"then on a key that was decided on before, and is not there, may be one that was lost: it is UNKNOWN, not granted, and so is what was under way. A\n" +
			"ledgerd on PostgreSQL finds out by itself that the server's identity or timeline has changed; a copy of files, a dump that was read in again, or a file\n" +
			"of SQLite can't be told from the original.",
		Example: "  ledgerd restored --lost-since 2026-11-30T02:00:00Z --store-file /run/secrets/ledger-dsn",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		since, err := time.Parse(time.RFC3339, lostSince)
		if err != nil {
			return usageError{errors.New("--lost-since must be the time of the last commit that was kept, such as 2026-11-30T02:00:00Z; if it is not known, an earlier one")}
		}
		if err := oneServer(c); err != nil {
			return err
		}
		return p.onStore(cmd.Context(), c, func(ctx context.Context, store database) error {
			_, now, err := store.List(ctx, ledger.Listing{Limit: 1})
			if err != nil {
				return ruleError("store", err.Error())
			}
			if off := now.Sub(p.now()); off.Abs() > clocksApart {
				return ruleError("store", fmt.Sprintf("its clock shows %s, which is %s off this host's: a wrong clock makes a wrong quarantine; set it right first", now.Format(time.RFC3339), off.Round(time.Second)))
			}
			t, err := store.Restored(ctx, since)
			if errors.Is(err, ledger.ErrValidation) {
				return usageError{fmt.Errorf("--lost-since must not lie ahead of the store's clock, which shows %s", now.Format(time.RFC3339))}
			}
			if err != nil {
				return ruleError("store", err.Error())
			}
			_, err = fmt.Fprintf(p.stdout, "timeline %d has begun: keys that were decided on before %s, and are not there, are investigated, not executed\n", t.Number, t.BeginTime.Format(time.RFC3339))
			return err
		})
	}, "store", "store-tls")
	restored.Flags().StringVar(&lostSince, "lost-since", "", "from when on commits may be lost: the time of the last commit that was kept, or of the backup, in RFC 3339; if it is not known, an earlier one (required)")
	return restored
}

// clocksApart is by how much the store's clock and this host's may differ where a person sets a time by one of them.
const clocksApart = time.Minute

// oneServer refuses a store of which several servers are named: what is said must be said to the one that was restored.
func oneServer(c Config) error {
	at, err := locate(c.Store)
	if err != nil || at.isFile() {
		return err
	}
	config, err := parseDSN(at.dsn)
	if err != nil {
		return err
	}
	for _, other := range config.Fallbacks { // also the same server, with and without TLS
		if other.Host != config.Host || other.Port != config.Port {
			return usageError{ruleError("store", "names several servers: name only the one that was restored")}
		}
	}
	return nil
}

func (p program) timelinesCommand() *cobra.Command {
	var output string
	timelines := p.configured(&cobra.Command{
		Use:     "timelines",
		Short:   "Show when the store may have lost commits, and how that was known",
		Example: "  ledgerd timelines --store-file /run/secrets/ledger-dsn -o json",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		if err := textOrJSON(output); err != nil {
			return err
		}
		return p.onStore(cmd.Context(), c, func(ctx context.Context, store database) error {
			found, err := store.Timelines(ctx)
			if err != nil {
				return ruleError("store", err.Error())
			}
			return p.tellTimelines(found, output == "json")
		})
	}, "store", "store-tls")
	timelines.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return timelines
}

// timeline is what is shown of one.
type timeline struct {
	Number    uint32    `json:"number"`
	BeginTime time.Time `json:"begin_time"`
	// LostSince is not there where nothing was lost.
	LostSince *time.Time `json:"lost_since,omitempty"`
	Cause     string     `json:"cause"`
}

func (p program) tellTimelines(found []ledger.Timeline, asJSON bool) error {
	shown := make([]timeline, len(found))
	for i, t := range found {
		shown[i] = timeline{Number: t.Number, BeginTime: t.BeginTime, Cause: string(t.Cause)}
		if !t.LostSince.IsZero() {
			shown[i].LostSince = &found[i].LostSince
		}
	}
	if asJSON {
		return p.showJSON(shown)
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TIMELINE\tBEGAN\tLOST SINCE\tCAUSE")
	for _, t := range shown {
		since := "-"
		if t.LostSince != nil {
			since = t.LostSince.Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\n", t.Number, t.BeginTime.Format(time.RFC3339), since, t.Cause)
	}
	return table.Flush()
}

// onStore does something with a store that is there, and ready.
func (p program) onStore(ctx context.Context, c Config, do func(ctx context.Context, store database) error) error {
	store, err := readyStore(ctx, c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	return errors.Join(do(ctx, store), store.Close())
}

// readyStore opens one that is there, for a command.
func readyStore(ctx context.Context, c Config) (database, error) {
	at, err := locate(c.Store)
	if err != nil {
		return nil, err
	}
	if at.isFile() {
		if _, err := os.Stat(at.path); err != nil { // it would be made
			return nil, fileFault("store", at.path, err)
		}
	}
	store, err := reachStore(ctx, at, c)
	if err != nil {
		return nil, err
	}
	if err := store.Ready(ctx); err != nil {
		return nil, errors.Join(notReady(ctx, at, err), store.Close())
	}
	return store, nil
}
