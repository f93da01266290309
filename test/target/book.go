// SPDX-License-Identifier: Apache-2.0

package target

import (
	"encoding/json"
	"slices"
	"strconv"
	"time"
)

// What an effect does to its resource.
const (
	created = "created"
	changed = "changed"
	removed = "removed"
)

// Types of resources.
const (
	typeTicket  = "ticket"
	typeCharge  = "charge"
	typeRefund  = "refund"
	typeMessage = "message"
)

var idPrefix = map[string]string{typeTicket: "T-", typeCharge: "CH-", typeRefund: "RF-", typeMessage: "M-"}

// record is one resource.
type record struct {
	typ, id, key, request string
	landed                time.Time
	resource              json.RawMessage
}

// book is the state of the services; it is a function of the log's lines.
type book struct {
	records []*record // as they landed; removed ones are not in it
	pending []Entry   // accepted, not landed, as they were accepted
	issued  map[string]int
}

// apply brings one line into the book.
func (b *book) apply(e Entry) {
	switch {
	case e.Kind == Accepted:
		b.pending = append(b.pending, e)
		b.issued[e.Type]++
	case e.Kind != Effect:
	case e.Change == created:
		if e.AcceptedBy == 0 {
			b.issued[e.Type]++
		}
		b.pending = slices.DeleteFunc(b.pending, func(p Entry) bool { return p.Sequence == e.AcceptedBy })
		b.records = append(b.records, &record{
			typ: e.Type, id: e.ID, key: e.Key, request: e.Request, landed: e.Time, resource: e.Resource,
		})
	case e.Change == changed:
		if r := b.find(e.Type, e.ID); r != nil {
			r.resource = e.Resource
		}
	case e.Change == removed:
		b.records = slices.DeleteFunc(b.records, func(r *record) bool { return r.typ == e.Type && r.id == e.ID })
	}
}

// nextID is the id of the next resource of the type: T-1001, T-1002, ...
func (b *book) nextID(typ string) string {
	return idPrefix[typ] + strconv.Itoa(1001+b.issued[typ])
}

func (b *book) find(typ, id string) *record {
	for _, r := range b.records {
		if r.typ == typ && r.id == id {
			return r
		}
	}
	return nil
}

// held returns the record of the key that has landed since the time, and
// whether one is on its way.
func (b *book) held(typ, key string, since time.Time) (landed *record, pending bool) {
	for _, r := range b.records {
		if r.typ == typ && r.key == key && r.landed.After(since) {
			return r, false
		}
	}
	for _, p := range b.pending {
		if p.Type == typ && p.Key == key {
			return nil, true
		}
	}
	return nil, false
}
