// SPDX-License-Identifier: Apache-2.0

package target

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"
)

const (
	keyHeader       = "Idempotency-Key"
	referenceHeader = "X-Reference"
	replayedHeader  = "Idempotent-Replayed"
	maxBody         = 1 << 20
)

// Codes in the body of an answer that is an error.
const (
	codeInvalid    = "invalid"
	codeNoCharge   = "no_such_charge"
	codeInProgress = "in_progress"
	codeKeyReused  = "key_reused"
	codeNotFound   = "not_found"
	codeChanged    = "changed"
	codeFault      = "fault"
	codeLog        = "log_failed"
)

// reply is an answer before the knobs have had their say.
type reply struct {
	status int
	header map[string]string
	body   any
}

type problem struct {
	Code string `json:"code"`
	Rule string `json:"rule,omitempty"`
}

func refuse(status int, code, rule string) reply {
	return reply{status: status, body: problem{Code: code, Rule: rule}}
}

// order is a request for an effect.
type order struct {
	service Service
	typ     string
	key     string
	request string // digest
	invalid string // the rule that the request breaks
	lasting bool   // late_commit can hold it back
	// decide is called with mu held. It returns the effect, if there is to be
	// one, and the answer.
	decide func(now time.Time) (*Entry, reply)
}

// send takes one request for an effect through knobs, log and book, then
// answers.
func (s *Server) send(w http.ResponseWriter, r *http.Request, o order) {
	defer s.enter(o.service)()
	s.mu.Lock()
	var knob Knob
	if o.invalid == "" {
		faults := []Fault{FaultAcceptHang, FaultAcceptReset, FaultDropBeforeAccept, FaultStatus}
		if o.lasting {
			faults = append(faults, FaultLateCommit)
		}
		knob, _ = s.knobs[o.service].take(faults...)
	}
	answer := s.sendLocked(o, knob)
	s.mu.Unlock()
	s.answer(w, r, knob, answer)
}

func (s *Server) sendLocked(o order, knob Knob) reply {
	err := s.record(Entry{
		Service: o.service, Kind: Send, Key: o.key, Type: o.typ, Request: o.request,
		Fault: knob.Fault, Active: s.active[o.service],
	})
	switch {
	case err != nil:
		return refuse(http.StatusInternalServerError, codeLog, "")
	case o.invalid != "":
		return refuse(http.StatusUnprocessableEntity, codeInvalid, o.invalid)
	case knob.Fault == FaultDropBeforeAccept:
		return reply{}
	case knob.Fault == FaultStatus:
		return knobReply(knob, knob.Code)
	}
	now := s.now()
	effect, answer := o.decide(now)
	if effect == nil {
		return answer
	}
	effect.Service, effect.Key, effect.Type, effect.Request = o.service, o.key, o.typ, o.request
	effect.Kind = Effect
	if knob.Fault == FaultLateCommit {
		effect.Kind, effect.Due = Accepted, now.Add(knob.Delay)
		if err = s.record(*effect); err == nil {
			s.schedule(s.book.pending[len(s.book.pending)-1])
		}
		answer = knobReply(knob, http.StatusGatewayTimeout)
	} else {
		err = s.record(*effect)
	}
	if err != nil {
		return refuse(http.StatusInternalServerError, codeLog, "")
	}
	return answer
}

// create is the decision of a POST: a new resource, or what payments remember
// of the key.
func (s *Server) create(typ string, remembers bool, key, request string, resource func(id string, now time.Time) any) func(time.Time) (*Entry, reply) {
	return func(now time.Time) (*Entry, reply) {
		if remembers && key != "" {
			before, pending := s.book.held(typ, key, now.Add(-s.keyWindow))
			switch {
			case pending:
				return nil, refuse(http.StatusConflict, codeInProgress, "")
			case before != nil && before.request != request:
				return nil, refuse(http.StatusUnprocessableEntity, codeKeyReused, "")
			case before != nil:
				return nil, reply{
					status: http.StatusOK, body: before.resource,
					header: map[string]string{replayedHeader: "true"},
				}
			}
		}
		id := s.book.nextID(typ)
		body := encode(resource(id, now))
		return &Entry{ID: id, Change: created, Resource: body},
			reply{status: http.StatusCreated, body: body, header: etag(body)}
	}
}

// query answers what exists: of a key, of an id, or everything.
func (s *Server) query(w http.ResponseWriter, r *http.Request, service Service, typ string) {
	defer s.enter(service)()
	id := r.PathValue("id")
	keys, byKey := r.URL.Query()["idempotency_key"]
	key := ""
	if byKey {
		key = keys[0]
	}
	s.mu.Lock()
	knobs := s.knobs[service]
	knob, down := knobs.take(FaultQueryDown)
	if !down {
		knob, _ = knobs.take(FaultListLag)
	}
	now := s.now()
	err := s.record(Entry{Service: service, Kind: Query, Key: key, Type: typ, ID: id, Fault: knob.Fault, Active: s.active[service]})
	found := []json.RawMessage{}
	for _, rec := range s.book.records {
		switch {
		case rec.typ != typ || id != "" && rec.id != id || byKey && rec.key != key:
		case now.Sub(rec.landed) < knob.Delay && knob.Fault == FaultListLag:
		case byKey && service == Payments && now.Sub(rec.landed) >= s.keyWindow:
		default:
			found = append(found, rec.resource)
		}
	}
	s.mu.Unlock()
	answer := reply{status: http.StatusOK, body: map[string]any{"data": found}}
	switch {
	case err != nil:
		answer = refuse(http.StatusInternalServerError, codeLog, "")
	case down:
		answer = knobReply(knob, http.StatusServiceUnavailable)
	case id != "" && len(found) == 0:
		answer = refuse(http.StatusNotFound, codeNotFound, "")
	case id != "":
		answer = reply{status: http.StatusOK, body: found[0], header: etag(found[0])}
	}
	s.answer(w, r, knob, answer)
}

// answer does to the connection what the knob says.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, knob Knob, answer reply) {
	switch knob.Fault {
	case FaultDropBeforeAccept:
		hangUp(w, false)
		return
	case FaultAcceptReset:
		hangUp(w, true)
		return
	case FaultAcceptHang:
		s.hang(r, knob.Delay)
	case FaultLateCommit, FaultQueryDown:
		s.hang(r, knob.Hang)
	}
	for name, value := range answer.header {
		w.Header().Set(name, value)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(answer.status)
	if answer.status != http.StatusNoContent {
		_ = json.NewEncoder(w).Encode(answer.body) // the caller has gone: nobody to tell
	}
}

// hang waits for d. If the caller goes or the service ends meanwhile, the
// request is cut off: an empty 200 would be a lie.
func (s *Server) hang(r *http.Request, d time.Duration) {
	if d == 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	case <-s.closing:
		panic(http.ErrAbortHandler)
	}
}

// hangUp closes the connection without an answer, by RST or by FIN.
func hangUp(w http.ResponseWriter, reset bool) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0) // makes Close send RST
	}
	_ = conn.Close()
}

// enter counts a request as active until the returned function is called.
func (s *Server) enter(service Service) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[service]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.active[service]--
	}
}

func knobReply(k Knob, code int) reply {
	if k.Code != 0 {
		code = k.Code
	}
	reason := k.Reason
	if reason == "" {
		reason = codeFault
	}
	answer := refuse(code, reason, "")
	if k.RetryAfter > 0 {
		seconds := (k.RetryAfter + time.Second - 1) / time.Second
		answer.header = map[string]string{"Retry-After": strconv.FormatInt(int64(seconds), 10)}
	}
	return answer
}

// readBody decodes the request into v and returns the rule that it breaks, or
// "", and its digest.
func readBody(w http.ResponseWriter, r *http.Request, v any) (rule, digest string) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return "body: must be at most 1 MiB and complete", ""
	}
	if err := json.Unmarshal(text, v); err != nil {
		if errors.Is(err, errAmount) {
			return errAmount.Error(), ""
		}
		return "body: must be a JSON object of the documented fields", ""
	}
	sum := sha256.Sum256(slices.Concat([]byte(r.URL.Path), encode(v)))
	return "", hex.EncodeToString(sum[:])
}

// encode writes a value of this package's own types, which cannot fail.
func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("target: a resource cannot be encoded")
	}
	return b
}

// etag is the header with the entity tag: the revision in quotes.
func etag(resource json.RawMessage) map[string]string {
	var v struct {
		Revision int `json:"revision"`
	}
	if json.Unmarshal(resource, &v) != nil || v.Revision == 0 {
		return nil
	}
	return map[string]string{"ETag": strconv.Quote(strconv.Itoa(v.Revision))}
}
