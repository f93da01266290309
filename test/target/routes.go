// SPDX-License-Identifier: Apache-2.0

package target

import (
	"encoding/json"
	"io"
	"net/http"
	"time"
)

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /tickets", s.postTicket)
	mux.HandleFunc("PATCH /tickets/{id}", s.patchTicket)
	mux.HandleFunc("DELETE /tickets/{id}", s.deleteTicket)
	mux.HandleFunc("POST /charges", s.postCharge)
	mux.HandleFunc("POST /refunds", s.postRefund)
	mux.HandleFunc("POST /messages", s.postMessage)
	for path, of := range map[string]struct {
		service Service
		typ     string
	}{
		"/tickets": {Tickets, typeTicket},
		"/charges": {Payments, typeCharge},
		"/refunds": {Payments, typeRefund},
	} {
		handler := func(w http.ResponseWriter, r *http.Request) { s.query(w, r, of.service, of.typ) }
		mux.HandleFunc("GET "+path, handler)
		mux.HandleFunc("GET "+path+"/{id}", handler)
	}
	mux.HandleFunc("GET /knobs", s.getKnobs)
	mux.HandleFunc("POST /knobs", s.postKnobs)
	mux.HandleFunc("POST /land", s.postLand)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			panic(http.ErrAbortHandler)
		}
		s.requests.Add(1)
		s.mu.Unlock()
		defer s.requests.Done()
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) postTicket(w http.ResponseWriter, r *http.Request) {
	var req TicketRequest
	rule, digest := readBody(w, r, &req)
	if rule == "" && req.Title == "" {
		rule = "title: is required"
	}
	key := r.Header.Get(keyHeader)
	s.send(w, r, order{
		service: Tickets, typ: typeTicket, key: key, request: digest, invalid: rule, lasting: true,
		decide: s.create(typeTicket, false, key, digest, func(id string, now time.Time) any {
			return Ticket{
				ID: id, IdempotencyKey: key, Title: req.Title, Queue: req.Queue, Body: req.Body,
				State: "open", Revision: 1, Created: now,
			}
		}),
	})
}

func (s *Server) patchTicket(w http.ResponseWriter, r *http.Request) {
	var req TicketChange
	rule, digest := readBody(w, r, &req)
	s.changeTicket(w, r, rule, digest, func(t Ticket) (*Entry, reply) {
		for _, f := range []struct{ from, to *string }{
			{req.Title, &t.Title}, {req.Queue, &t.Queue}, {req.Body, &t.Body}, {req.State, &t.State},
		} {
			if f.from != nil {
				*f.to = *f.from
			}
		}
		t.Revision++
		body := encode(t)
		return &Entry{ID: t.ID, Change: changed, Resource: body},
			reply{status: http.StatusOK, body: body, header: etag(body)}
	})
}

func (s *Server) deleteTicket(w http.ResponseWriter, r *http.Request) {
	s.changeTicket(w, r, "", "", func(t Ticket) (*Entry, reply) {
		return &Entry{ID: t.ID, Change: removed}, reply{status: http.StatusNoContent}
	})
}

// changeTicket applies a change to the ticket of the path, if it is there and
// still has the entity tag of If-Match, where that was sent.
func (s *Server) changeTicket(w http.ResponseWriter, r *http.Request, rule, digest string, change func(Ticket) (*Entry, reply)) {
	s.send(w, r, order{
		service: Tickets, typ: typeTicket, key: r.Header.Get(keyHeader), request: digest, invalid: rule,
		decide: func(time.Time) (*Entry, reply) {
			rec := s.book.find(typeTicket, r.PathValue("id"))
			if rec == nil {
				return nil, refuse(http.StatusNotFound, codeNotFound, "")
			}
			if want := r.Header.Get("If-Match"); want != "" && want != etag(rec.resource)["ETag"] {
				return nil, refuse(http.StatusPreconditionFailed, codeChanged, "")
			}
			var t Ticket
			if err := json.Unmarshal(rec.resource, &t); err != nil {
				return nil, refuse(http.StatusInternalServerError, codeLog, "")
			}
			return change(t)
		},
	})
}

func (s *Server) postCharge(w http.ResponseWriter, r *http.Request) {
	var req ChargeRequest
	rule, digest := readBody(w, r, &req)
	if rule == "" && (req.Amount == "" || req.Currency == "") {
		rule = "amount, currency: are required"
	}
	key := r.Header.Get(keyHeader)
	s.pay(w, r, typeCharge, key, digest, rule, nil, func(id string, now time.Time, scaled bool) any {
		return Charge{
			ID: id, IdempotencyKey: key, Amount: scale(req.Amount, scaled), Currency: req.Currency, To: req.To,
			State: "succeeded", Revision: 1, Created: now,
		}
	})
}

func (s *Server) postRefund(w http.ResponseWriter, r *http.Request) {
	var req RefundRequest
	rule, digest := readBody(w, r, &req)
	if rule == "" && (req.Amount == "" || req.Charge == "") {
		rule = "amount, charge: are required"
	}
	key := r.Header.Get(keyHeader)
	known := func() bool { return s.book.find(typeCharge, req.Charge) != nil }
	s.pay(w, r, typeRefund, key, digest, rule, known, func(id string, now time.Time, scaled bool) any {
		return Refund{
			ID: id, IdempotencyKey: key, Charge: req.Charge, Amount: scale(req.Amount, scaled),
			State: "succeeded", Revision: 1, Created: now,
		}
	})
}

// pay is what charges and refunds share: the memory of keys, and the two knobs
// that only payments have.
func (s *Server) pay(w http.ResponseWriter, r *http.Request, typ, key, digest, rule string, known func() bool, resource func(string, time.Time, bool) any) {
	s.send(w, r, order{
		service: Payments, typ: typ, key: key, request: digest, invalid: rule, lasting: true,
		decide: func(now time.Time) (*Entry, reply) {
			if known != nil && !known() {
				return nil, refuse(http.StatusUnprocessableEntity, codeNoCharge, "")
			}
			_, ignores := s.knobs[Payments].take(FaultIgnoresKey)
			scaling := func(id string, now time.Time) any {
				_, scaled := s.knobs[Payments].take(FaultScaleBug)
				return resource(id, now, scaled)
			}
			return s.create(typ, !ignores, key, digest, scaling)(now)
		},
	})
}

func scale(a Amount, scaled bool) Amount {
	if scaled {
		return a.times100()
	}
	return a
}

func (s *Server) postMessage(w http.ResponseWriter, r *http.Request) {
	var req MessageRequest
	rule, digest := readBody(w, r, &req)
	if rule == "" && req.To == "" {
		rule = "to: is required"
	}
	s.send(w, r, order{
		// The reference is for the judge who reads the log; the service itself
		// knows no key.
		service: Messages, typ: typeMessage, key: r.Header.Get(referenceHeader), request: digest, invalid: rule, lasting: true,
		decide: s.create(typeMessage, false, "", digest, func(id string, now time.Time) any {
			return Message{ID: id, Created: now}
		}),
	})
}

// knobsBody is the body of POST /knobs and of the answer to GET /knobs.
type knobsBody struct {
	Service Service `json:"service"`
	Knobs   []Knob  `json:"knobs"`
}

func (s *Server) getKnobs(w http.ResponseWriter, r *http.Request) {
	service := Service(r.URL.Query().Get("service"))
	s.answer(w, r, Knob{}, reply{status: http.StatusOK, body: knobsBody{Service: service, Knobs: s.Knobs(service)}})
}

func (s *Server) postKnobs(w http.ResponseWriter, r *http.Request) {
	var body knobsBody
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(text, &body)
	}
	if err == nil {
		err = s.SetKnobs(body.Service, body.Knobs...)
	}
	if err != nil {
		s.answer(w, r, Knob{}, refuse(http.StatusBadRequest, codeInvalid, err.Error()))
		return
	}
	s.answer(w, r, Knob{}, reply{status: http.StatusNoContent})
}

func (s *Server) postLand(w http.ResponseWriter, r *http.Request) {
	n, err := s.Land()
	if err != nil {
		s.answer(w, r, Knob{}, refuse(http.StatusInternalServerError, codeLog, ""))
		return
	}
	s.answer(w, r, Knob{}, reply{status: http.StatusOK, body: map[string]int{"landed": n}})
}
