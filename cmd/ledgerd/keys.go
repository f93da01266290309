// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// countBound is how long it may take to count all records.
const countBound = time.Hour

func (p program) keysCommand() *cobra.Command {
	var output string
	keys := p.configured(&cobra.Command{
		Use:   "keys",
		Short: "Show the secrets that key fingerprints, and how many records each has; or change the ring",
		Long: "Show the ring of secrets: each id, whether it is the primary, its check value (never a secret), whether the store knows the same one,\n" +
			"and how many records were made with it, for which the whole store is read. Exit code 1: a server would refuse this ring.\n\n" +
			"To rotate: keys add, wait until each ledgerd has read the file, keys use, wait again, and keys remove once no record has the old one.",
		Example: "  ledgerd keys --config /etc/ledgerd.yaml\n  ledgerd keys --secrets secrets.yaml --store-file /run/secrets/ledger-dsn --output json",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		if err := textOrJSON(output); err != nil {
			return err
		}
		return p.showKeys(cmd.Context(), c, output)
	}, "secrets", "store", "store-tls")
	keys.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	keys.AddCommand(p.keysAddCommand(), p.keysUseCommand(), p.keysRemoveCommand())
	return keys
}

func (p program) keysAddCommand() *cobra.Command {
	add := p.configured(&cobra.Command{
		Use:   "add [ID]",
		Short: "Draw a new secret into the ring's file, which is made where there is none; print its id",
		Long: "Draw a secret of 32 bytes into the ring's file, and print its id: a new one, or ID. New records go on to get the primary; the first\n" +
			"secret of a file that was not there is that, and with it comes the one for unique rules, which never changes. The file is written anew in one step, with mode 0600 if it was not there, and without comments.",
		Example: "  ledgerd keys add --secrets /etc/ledgerd/secrets.yaml",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		args := append(cmd.Flags().Args(), "k"+p.now().UTC().Format("20060102")+"-"+rand.Text()[:4])
		secret, err := fingerprint.NewRandomSecret(args[0])
		if err != nil {
			return usageError{err}
		}
		next := fmt.Sprintf("next, when each ledgerd has read it: ledgerd keys use %s", secret.ID())
		err = editRing(c.Secrets, func(ring *fingerprint.Ring) (*fingerprint.Ring, error) {
			if ring == nil {
				next = "it is the primary: the file is new"
				return newRing(secret)
			}
			return ring.With(secret)
		})
		if err != nil {
			return err
		}
		fmt.Fprintln(p.stderr, next)
		_, err = fmt.Fprintln(p.stdout, secret.ID())
		return err
	}, "secrets")
	add.Args = atMost(1)
	return add
}

func (p program) keysUseCommand() *cobra.Command {
	use := p.configured(&cobra.Command{
		Use:   "use ID",
		Short: "Make a secret of the ring the primary, which new records get",
		Long: "Make a secret of the ring the primary. First each ledgerd has to know it: ledger_fingerprint_secret_primary of its metrics has a series of\n" +
			"that id. One that does not answers RECORD_TOO_NEW for records that the others make.",
		Example: "  ledgerd keys use k20260401-7QXA --secrets /etc/ledgerd/secrets.yaml",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		id, err := theID(cmd)
		if err != nil {
			return err
		}
		return editRing(c.Secrets, func(ring *fingerprint.Ring) (*fingerprint.Ring, error) {
			if ring == nil {
				return nil, fs.ErrNotExist
			}
			return ring.WithPrimary(id)
		})
	}, "secrets")
	use.Args = atMost(1)
	return use
}

func (p program) keysRemoveCommand() *cobra.Command {
	var lost bool
	remove := p.configured(&cobra.Command{
		Use:   "remove ID",
		Short: "Take a secret that no record needs out of the ring and out of what the store knows",
		Long: "Take a secret out of the ring's file and out of what the store knows. It is refused for the primary, and as long as one record in the\n" +
			"store was made with it, for which the whole store is read. First each ledgerd has to have another primary.",
		Example: "  ledgerd keys remove k1 --config /etc/ledgerd.yaml",
	}, serveDefaults(), func(cmd *cobra.Command, c Config, _ *settings) error {
		id, err := theID(cmd)
		if err != nil {
			return err
		}
		return p.removeKey(cmd.Context(), c, id, lost)
	}, "secrets", "store", "store-tls")
	remove.Flags().BoolVar(&lost, "lost", false, "the file lacks it and nobody has it: go on without; retries of its records are told RECORD_TOO_NEW")
	remove.Args = atMost(1)
	return remove
}

// atMost refuses more arguments as wrong usage.
func atMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError{fmt.Errorf("%s takes one id; see %s --help", cmd.CommandPath(), cmd.CommandPath())}
		}
		return nil
	}
}

func theID(cmd *cobra.Command) (string, error) {
	if id := cmd.Flags().Arg(0); id != "" {
		return id, nil
	}
	return "", usageError{errors.New("name the id; ledgerd keys lists them")}
}

// ringAndStore are what both commands look at.
func ringAndStore(ctx context.Context, c Config) (*fingerprint.Ring, database, error) {
	if c.Secrets == "" {
		return nil, nil, errNoRing
	}
	ring, err := readRing(c.Secrets)
	if err != nil {
		return nil, nil, usageError{c.named(err)}
	}
	store, err := readyStore(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	return ring, store, nil
}

var errNoRing = usageError{ruleError("secrets", "name the file of the ring")}

// key is what is shown of one id.
type key struct {
	ID string `json:"id"`
	// Role is primary, kept, missing (from the file, while records may need it), elsewhere (in the file of another server), or unique: the
	// secret of slots, which no record names.
	Role string `json:"role"`
	// Check is the check value of the file's secret, or else of the store's.
	Check string `json:"check,omitempty"`
	// Store says what the store knows under this id: same, another, or none.
	Store   string `json:"store"`
	Records int64  `json:"records"`
}

func (p program) showKeys(ctx context.Context, c Config, output string) error {
	ctx, cancel := context.WithTimeout(ctx, countBound)
	defer cancel()
	ring, store, err := ringAndStore(ctx, c)
	if err != nil {
		return err
	}
	kept, err := store.KeptSecrets(ctx)
	var records map[string]int64
	if err == nil {
		records, err = store.SecretRecords(ctx)
	}
	if err = errors.Join(err, store.Close()); err != nil {
		return ruleError("store", err.Error())
	}
	for id := range records {
		if _, err := ring.Secret(id); err != nil { // it was a primary, whether or not the store was told
			kept[id] = ledger.KeptSecret{Check: kept[id].Check, Used: true}
		}
	}
	keys := keysOf(ring, kept, records)
	if output == "json" {
		err = p.showJSON(keys)
	} else {
		err = p.tellKeys(keys)
	}
	return errors.Join(err, disagreement(c.Secrets, ring, kept))
}

func keysOf(ring *fingerprint.Ring, kept map[string]ledger.KeptSecret, records map[string]int64) []key {
	checks := ring.Checks()
	ids := slices.Collect(maps.Keys(checks))
	for id := range kept {
		if _, ok := checks[id]; !ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	out := make([]key, len(ids))
	for i, id := range ids {
		k := key{ID: id, Role: "kept", Store: "none", Records: records[id]}
		check, has := checks[id]
		known, is := kept[id]
		is = is && known.Check != ledger.SecretCheck{}
		switch {
		case id == ring.PrimaryID():
			k.Role = "primary"
		case id == fingerprint.UniqueID && has:
			k.Role = "unique"
		case !has && known.Used:
			k.Role = "missing"
		case !has:
			k.Role = "elsewhere"
		}
		switch {
		case is && has && known.Check != check:
			k.Store = "another"
		case is:
			k.Store, check = "same", known.Check
		}
		if has || is {
			k.Check = hex.EncodeToString(check[:])
		}
		out[i] = k
	}
	return out
}

func (p program) tellKeys(keys []key) error {
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tROLE\tCHECK\tSTORE\tRECORDS")
	for _, k := range keys {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\n", k.ID, k.Role, k.Check, k.Store, k.Records)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, k := range keys {
		if k.Role == "kept" && k.Records == 0 {
			fmt.Fprintf(p.stderr, "no record has %s. If it is an old one: ledgerd keys remove %s; if it is new: ledgerd keys use %s\n", k.ID, k.ID, k.ID)
		}
	}
	return nil
}

func (p program) removeKey(ctx context.Context, c Config, id string, lost bool) error {
	ctx, cancel := context.WithTimeout(ctx, countBound)
	defer cancel()
	ring, store, err := ringAndStore(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }() // what was to be written is
	_, has := ring.Checks()[id]
	if has && id == fingerprint.UniqueID {
		return fmt.Errorf("%sunique_secret does not rotate, and is not taken out of a file that has it", ring.Place(id))
	}
	if has {
		if _, err := ring.Without(id); err != nil {
			return fmt.Errorf("%w: make another one that first, with ledgerd keys use", err)
		}
	}
	kept, err := store.KeptSecrets(ctx)
	if err != nil {
		return ruleError("store", err.Error())
	}
	records, err := store.SecretRecords(ctx)
	if err != nil {
		return ruleError("store", err.Error())
	}
	_, known := kept[id]
	switch n := records[id]; {
	case !has && !known && n == 0:
		return usageError{errors.New("neither the file nor the store has that id; ledgerd keys lists them")}
	case n > 0 && has:
		return fmt.Errorf("%d records in the store were made with this secret: it must outlive them", n)
	case n > 0 && !lost:
		return fmt.Errorf("%d records in the store were made with this secret: put it back into the file, or, if nobody has it any more, go on without it by --lost", n)
	}
	// The store first: servers that read the file before would miss what it still knows.
	if err := store.ForgetSecret(ctx, id); err != nil {
		return ruleError("store", err.Error())
	}
	if !has {
		return nil
	}
	return editRing(c.Secrets, func(ring *fingerprint.Ring) (*fingerprint.Ring, error) {
		if ring == nil {
			return nil, fs.ErrNotExist
		}
		return ring.Without(id)
	})
}

// editRing writes the file of a ring anew, in one step. edit gets nil where there is no file. Whoever else has changed the file
// meanwhile is not undone.
func editRing(path string, edit func(*fingerprint.Ring) (*fingerprint.Ring, error)) error {
	if path == "" {
		return errNoRing
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real // the link stays
	}
	was, err := os.ReadFile(path)
	var ring *fingerprint.Ring
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return usageError{fileFault("secrets", path, err)}
	default:
		if ring, err = fingerprint.ParseRing(path, was); err != nil {
			return usageError{err}
		}
	}
	next, err := edit(ring)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return usageError{fileError("secrets", path, "is not there: ledgerd keys add makes it")}
	case err != nil:
		return usageError{fmt.Errorf("%w; ledgerd keys lists what there is", err)}
	}
	if now, err := os.ReadFile(path); !bytes.Equal(now, was) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fileError("secrets", path, "was changed by somebody else just now: look at it, and run this again")
	}
	return replaceFile(path, next.RevealYAML())
}
