// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/opsledger/opsledger/authz"
	"github.com/opsledger/opsledger/ledger"
	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// ringFile is the ring of secrets in force, and the file that it comes from. A changed file counts when the store's other servers can go
// on with it: else the ring stays as it is.
type ringFile struct {
	*authz.Reloader[*fingerprint.Ring]
	path string
	// ring is that of everybody; a reload replaces what is in it.
	ring *fingerprint.Ring
	// store says what the others know; nil until join.
	store ledger.SecretStore
}

// openRing reads the file for the first time. Nobody may use the ring before join.
func openRing(path string, report authz.Report) (*ringFile, error) {
	r := &ringFile{path: path}
	var err error
	r.Reloader, err = authz.NewReloader("secrets", []string{path}, r.build, report)
	return r, err
}

func (r *ringFile) build(contents [][]byte) (*fingerprint.Ring, error) {
	next, err := fingerprint.ParseRing(r.path, contents[0])
	switch {
	case err != nil:
		return nil, err
	case r.ring == nil:
		r.ring = next
		return next, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), readyBound)
	defer cancel()
	if err := agree(ctx, r.store, r.path, next); err != nil {
		return nil, err
	}
	return r.ring, r.ring.Replace(next)
}

// join compares the ring with the store's, before anything is served.
func (r *ringFile) join(ctx context.Context, store ledger.SecretStore) error {
	r.store = store
	ctx, cancel := context.WithTimeout(ctx, readyBound)
	defer cancel()
	err := agree(ctx, store, r.path, r.ring)
	if err == nil || errors.Is(err, ledger.ErrStoreUnavailable) {
		return err
	}
	return usageError{err}
}

// agree finds out whether a ring has what the store's records may need, and then has the store keep its check values. Of two that come at
// once with different secrets under one id the second one is refused.
func agree(ctx context.Context, store ledger.SecretStore, path string, ring *fingerprint.Ring) error {
	// What is refused leaves nothing in the store: the file that is mended would be blamed for it.
	kept, err := store.KeptSecrets(ctx)
	if err == nil {
		err = disagreement(path, ring, kept)
	}
	if err == nil {
		err = store.KeepSecrets(ctx, ring.Checks(), ring.PrimaryID())
	}
	if err == nil {
		kept, err = store.KeptSecrets(ctx)
	}
	if err == nil {
		err = disagreement(path, ring, kept)
	}
	return err
}

// disagreement says of each id why a ring can't be used with a store, or nil.
func disagreement(path string, ring *fingerprint.Ring, kept map[string]ledger.KeptSecret) error {
	var faults []error
	for _, id := range ring.Conflicts(checksOf(kept)) {
		if id == fingerprint.UniqueID {
			faults = append(faults, fmt.Errorf("%sunique_secret is not the one that the store knows, and would let look-alikes of earlier operations through: "+
				"put that one back", ring.Place(id)))
			continue
		}
		faults = append(faults, fmt.Errorf("%sthe secret of the id %s is not the one that the store knows under this id, and would call requests different that are not: "+
			"put that one back, or give this one an id of its own", ring.Place(id), id))
	}
	for _, id := range missing(ring, kept) {
		faults = append(faults, fmt.Errorf("%s: lacks the secret of the id %s, which records in the store may need: "+
			"put it back, or take it out with ledgerd keys remove %s, which says whether they do", path, id, id))
	}
	return errors.Join(faults...)
}

func checksOf(kept map[string]ledger.KeptSecret) map[string]ledger.SecretCheck {
	checks := make(map[string]ledger.SecretCheck, len(kept))
	for id, k := range kept {
		checks[id] = k.Check
	}
	return checks
}

// missing are the sorted ids that a ring lacks although records may name them. One that never was a primary has none: a server may have
// it already while another has not read its file yet.
func missing(ring *fingerprint.Ring, kept map[string]ledger.KeptSecret) []string {
	has := ring.Checks()
	var out []string
	for _, id := range slices.Sorted(maps.Keys(kept)) {
		if _, ok := has[id]; !ok && kept[id].Used {
			out = append(out, id)
		}
	}
	return out
}

// watchSecrets tells by id which secrets this process has, which of them is the primary, and how often each was needed. Ids come from the
// file alone, which has a bounded number, and are no secrets.
func (t *telemetry) watchSecrets(ring *fingerprint.Ring) error {
	id := func(name string) metric.MeasurementOption {
		return metric.WithAttributes(attribute.String("ledger.fingerprint.secret.id", name))
	}
	_, primary := t.meter().Int64ObservableGauge("ledger.fingerprint.secret.primary", metric.WithUnit("{secret}"),
		metric.WithDescription("1 for the secret that new records are made with, 0 for each other one that this process has"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for _, name := range ring.IDs() {
				is := int64(0)
				if name == ring.PrimaryID() {
					is = 1
				}
				o.Observe(is, id(name))
			}
			return nil
		}))
	_, uses := t.meter().Int64ObservableCounter("ledger.fingerprint.secret.uses", metric.WithUnit("{use}"),
		metric.WithDescription("How often each secret was asked for, for a new record or because a record names it"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			for name, n := range ring.Uses() {
				o.Observe(int64(n), id(name))
			}
			return nil
		}))
	return errors.Join(primary, uses)
}
