// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/opsledger/opsledger/ledger"
)

// testFields sets each field of a row, so that a column that a store forgets is seen. No single row can have all of them.
func testFields(t *testing.T, d Data) {
	s := d.Open(t, Options{})
	rows := map[string]func(o *ledger.Operation){
		"retired": func(o *ledger.Operation) { // no other state has a result and a failure
			o.State, o.Custody, o.Custodian, o.QueueReason = ledger.Retired, ledger.Automation, "", 0
		},
		"queued": func(o *ledger.Operation) {
			o.State, o.Custody, o.Custodian, o.QueueReason = ledger.Unknown, ledger.Queued, "", ledger.RepeatNotAllowed
			o.Result, o.Failure, o.FinalTime = nil, nil, time.Time{}
		},
		"held": func(o *ledger.Operation) {
			o.State, o.Custody, o.QueueReason = ledger.Processing, ledger.Operator, 0
			o.Result, o.Failure, o.FinalTime = nil, nil, time.Time{}
		},
		"fresh": nil,
	}
	set := map[string]bool{}
	for name, adjust := range rows {
		k := testKey(name)
		want := insert(t, s, k, func(now time.Time) ledger.Operation {
			o := received(k, now)
			if adjust != nil {
				f := filler{base: now.Add(-time.Hour)}
				f.fill(t, reflect.ValueOf(&o).Elem())
				hash := k.Hash()
				o.ID, o.KeyHash = hash.OperationID(), hash
				o.Sequence, o.Version, o.Attempts = 0, 1, o.Starts+1
				adjust(&o)
			}
			return o
		})
		wantSame(t, s, want)
		leaves(reflect.ValueOf(want), "Operation", set)
		// Once more, by the statement that changes a row.
		mustUpdate(t, s, ledger.ReadSet{ID: want.ID}, func(v ledger.View) (ledger.Change, error) {
			next := v.Current.Clone()
			next.TargetSummary = "" // what ends with its retention
			c := step(next, note("again"), v.Now)
			want = c.Next.Clone()
			return c, nil
		})
		wantSame(t, s, want)
	}
	for path, ok := range set {
		if !ok {
			t.Errorf("no row of this test sets %s", path)
		}
	}
	if len(set) < 100 {
		t.Errorf("only %d fields were found", len(set))
	}
}

// filler gives each field a value of its own.
type filler struct {
	n    int
	base time.Time
}

func (f *filler) fill(t *testing.T, v reflect.Value) {
	t.Helper()
	f.n++
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(f.base.Add(time.Duration(f.n) * time.Microsecond)))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(fmt.Sprint("text ", f.n))
	case reflect.Uint8:
		v.SetUint(uint64(1 + f.n%4))
	case reflect.Uint16: // values that a signed type of the same size does not hold
		v.SetUint(uint64(1<<15 + f.n))
	case reflect.Uint32:
		v.SetUint(uint64(1<<31 + f.n))
	case reflect.Uint64:
		v.SetUint(uint64(1<<48 + f.n))
	case reflect.Int64:
		v.SetInt(int64(1<<40 + f.n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			f.fill(t, v.Index(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			f.fill(t, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 2 {
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			f.fill(t, key)
			f.fill(t, elem)
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(t, v.Field(i))
		}
	default:
		t.Fatalf("a field of kind %s: teach the suite to fill it", v.Kind())
	}
}

// leaves notes which fields have been set in any row.
func leaves(v reflect.Value, path string, set map[string]bool) {
	switch {
	case v.Kind() == reflect.Struct && v.Type() != reflect.TypeFor[time.Time]():
		for i := range v.NumField() {
			leaves(v.Field(i), path+"."+v.Type().Field(i).Name, set)
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		leaves(v.Elem(), path, set)
	case v.Kind() == reflect.Pointer: // its fields are noted where it is set
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		if v.Len() > 0 {
			leaves(v.Index(0), path, set)
		}
	default:
		set[path] = set[path] || !v.IsZero()
	}
}
