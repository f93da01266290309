// SPDX-License-Identifier: Apache-2.0

package target

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Fault is one way to fail.
type Fault string

// The faults. All but list_lag and query_down concern requests for an effect.
const (
	// FaultAcceptHang makes the effect, then hangs before it answers.
	FaultAcceptHang Fault = "accept_hang"
	// FaultAcceptReset makes the effect, then resets the connection.
	FaultAcceptReset Fault = "accept_reset"
	// FaultDropBeforeAccept closes the connection without an effect.
	FaultDropBeforeAccept Fault = "drop_before_accept"
	// FaultLateCommit answers 504; the effect lands later.
	FaultLateCommit Fault = "late_commit"
	// FaultStatus answers with a status, without an effect.
	FaultStatus Fault = "status"
	// FaultIgnoresKey makes payments forget to deduplicate.
	FaultIgnoresKey Fault = "ignores_key"
	// FaultScaleBug makes payments store a hundred times the amount.
	FaultScaleBug Fault = "scale_bug"
	// FaultListLag hides effects from queries for a time after they landed.
	FaultListLag Fault = "list_lag"
	// FaultQueryDown answers queries with an error.
	FaultQueryDown Fault = "query_down"
)

// Knob is a fault with its settings; the constructors below make valid ones.
//
// The knobs of a service form a list. A request suffers from the first of the
// list that decides its answer (accept_hang to status, or for a query
// query_down), and from every ignores_key, scale_bug and list_lag, as far as
// each has requests left: AcceptReset().Times(1), Status(503).Times(2) resets
// the first request and refuses the next two.
type Knob struct {
	Fault Fault
	// Delay is how long accept_hang hangs, when late_commit lands, how long
	// list_lag hides.
	Delay time.Duration
	// Hang is how long late_commit and query_down hang before they answer.
	Hang time.Duration
	// Code is the HTTP status of status, late_commit (unset: 504) and
	// query_down (unset: 503).
	Code int
	// Reason is the "code" in the body of such an answer, e.g. card_declined.
	Reason string
	// RetryAfter is sent as Retry-After, rounded up to seconds; 0: not sent.
	RetryAfter time.Duration
	// Count is for how many requests the knob holds; 0: until it is cleared.
	Count int
}

// AcceptHang makes the effect, then hangs for d (or until the caller has gone)
// before it answers.
func AcceptHang(d time.Duration) Knob { return Knob{Fault: FaultAcceptHang, Delay: d} }

// AcceptReset makes the effect, then resets the connection (TCP RST).
func AcceptReset() Knob { return Knob{Fault: FaultAcceptReset} }

// DropBeforeAccept reads the request and closes the connection; no effect.
func DropBeforeAccept() Knob { return Knob{Fault: FaultDropBeforeAccept} }

// LateCommit answers 504 at once (after Hang, where set); the effect lands d
// after the request, also across a restart.
func LateCommit(d time.Duration) Knob { return Knob{Fault: FaultLateCommit, Delay: d} }

// ListLag hides effects from queries until they are d old.
func ListLag(d time.Duration) Knob { return Knob{Fault: FaultListLag, Delay: d} }

// QueryDown answers queries with 503, or with Code, after Hang.
func QueryDown() Knob { return Knob{Fault: FaultQueryDown} }

// Status answers with the HTTP status code and has no effect.
func Status(code int) Knob { return Knob{Fault: FaultStatus, Code: code} }

// IgnoresKey makes payments treat each request as new.
func IgnoresKey() Knob { return Knob{Fault: FaultIgnoresKey} }

// ScaleBug makes payments store a hundred times the amount.
func ScaleBug() Knob { return Knob{Fault: FaultScaleBug} }

// Times limits the knob to the next n requests.
func (k Knob) Times(n int) Knob {
	k.Count = n
	return k
}

// After sets RetryAfter.
func (k Knob) After(d time.Duration) Knob {
	k.RetryAfter = d
	return k
}

// Validate returns an error that names the field and the rule which a knob
// breaks, for the service that shall have it.
func (k Knob) Validate(service Service) error {
	if !service.known() {
		return errors.New("service: must be tickets, payments or messages")
	}
	switch k.Fault {
	case FaultAcceptHang, FaultAcceptReset, FaultDropBeforeAccept, FaultLateCommit:
	case FaultStatus:
		if k.Code == 0 {
			return errors.New("status: is required for the fault status")
		}
	case FaultIgnoresKey, FaultScaleBug:
		if service != Payments {
			return fmt.Errorf("fault: %s is for payments only", k.Fault)
		}
	case FaultListLag, FaultQueryDown:
		if service == Messages {
			return fmt.Errorf("fault: %s is not for messages, which cannot be queried", k.Fault)
		}
	default:
		return errors.New("fault: must be one of the known faults")
	}
	switch {
	case k.Code != 0 && (k.Code < 200 || k.Code > 599):
		return errors.New("status: must be from 200 to 599")
	case k.Delay < 0 || k.Hang < 0 || k.RetryAfter < 0:
		return errors.New("delay, hang, retry_after: must not be negative")
	case k.Count < 0:
		return errors.New("count: must not be negative")
	}
	return nil
}

// knobWire is a knob in JSON; durations are texts as in Go ("1.5s").
type knobWire struct {
	Fault      Fault  `json:"fault"`
	Delay      string `json:"delay,omitempty"`
	Hang       string `json:"hang,omitempty"`
	Code       int    `json:"status,omitempty"`
	Reason     string `json:"reason,omitempty"`
	RetryAfter string `json:"retry_after,omitempty"`
	Count      int    `json:"count,omitempty"`
}

// MarshalJSON writes durations as text.
func (k Knob) MarshalJSON() ([]byte, error) {
	text := func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.String()
	}
	return json.Marshal(knobWire{k.Fault, text(k.Delay), text(k.Hang), k.Code, k.Reason, text(k.RetryAfter), k.Count})
}

// UnmarshalJSON reads durations as text; a bare number is refused.
func (k *Knob) UnmarshalJSON(b []byte) error {
	var w knobWire
	if err := json.Unmarshal(b, &w); err != nil {
		return errors.New("knob: must be an object with fault, delay, hang, status, reason, retry_after, count")
	}
	*k = Knob{Fault: w.Fault, Code: w.Code, Reason: w.Reason, Count: w.Count}
	for _, f := range []struct {
		name string
		text string
		to   *time.Duration
	}{{"delay", w.Delay, &k.Delay}, {"hang", w.Hang, &k.Hang}, {"retry_after", w.RetryAfter, &k.RetryAfter}} {
		if f.text == "" {
			continue
		}
		d, err := time.ParseDuration(f.text)
		if err != nil {
			return fmt.Errorf("%s: must be a duration with a unit", f.name)
		}
		*f.to = d
	}
	return nil
}

// knobList is the knobs of one service that have requests left.
type knobList []Knob

// take uses up one request of the first knob with one of the faults.
func (l *knobList) take(faults ...Fault) (Knob, bool) {
	for i, k := range *l {
		for _, f := range faults {
			if k.Fault != f {
				continue
			}
			switch k.Count {
			case 0:
			case 1:
				*l = append(append(knobList{}, (*l)[:i]...), (*l)[i+1:]...)
			default:
				(*l)[i].Count--
			}
			return k, true
		}
	}
	return Knob{}, false
}
