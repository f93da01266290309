// SPDX-License-Identifier: Apache-2.0

package target

import (
	"encoding/json"
	"errors"
	"math/big"
	"strings"
	"time"
)

// Service is one of the three services.
type Service string

// The services.
const (
	Tickets  Service = "tickets"
	Payments Service = "payments"
	Messages Service = "messages"
)

func (s Service) known() bool { return s == Tickets || s == Payments || s == Messages }

// Ticket is a ticket as the service shows it. Revision begins at 1 and grows
// with each change; it is the entity tag, too.
type Ticket struct {
	ID             string    `json:"id"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
	Title          string    `json:"title"`
	Queue          string    `json:"queue,omitempty"`
	Body           string    `json:"body,omitempty"`
	State          string    `json:"state"`
	Revision       int       `json:"revision"`
	Created        time.Time `json:"created"`
}

// TicketRequest asks for a ticket. Title is required.
type TicketRequest struct {
	Title string `json:"title"`
	Queue string `json:"queue,omitempty"`
	Body  string `json:"body,omitempty"`
}

// TicketChange changes the fields that are not nil.
type TicketChange struct {
	Title *string `json:"title,omitempty"`
	Queue *string `json:"queue,omitempty"`
	Body  *string `json:"body,omitempty"`
	State *string `json:"state,omitempty"`
}

// Amount is a decimal number as text, without an exponent. It is read from a
// JSON string or number and written as a string.
type Amount string

var errAmount = errors.New("amount: must be a decimal number of at most 30 characters")

// UnmarshalJSON reads a JSON string or number.
func (a *Amount) UnmarshalJSON(b []byte) error {
	var text string
	if json.Unmarshal(b, &text) != nil {
		text = string(b)
	}
	if _, ok := new(big.Rat).SetString(text); !ok || len(text) > 30 || strings.ContainsAny(text, "eEpPxX/_") {
		return errAmount
	}
	*a = Amount(text)
	return nil
}

// times100 is what the scale bug makes of an amount.
func (a Amount) times100() Amount {
	r, _ := new(big.Rat).SetString(string(a))
	r.Mul(r, big.NewRat(100, 1))
	_, fraction, _ := strings.Cut(string(a), ".")
	return Amount(r.FloatString(max(0, len(fraction)-2)))
}

// Charge is a charge as the service shows it.
type Charge struct {
	ID             string    `json:"id"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
	Amount         Amount    `json:"amount"`
	Currency       string    `json:"currency"`
	To             string    `json:"to,omitempty"`
	State          string    `json:"state"`
	Revision       int       `json:"revision"`
	Created        time.Time `json:"created"`
}

// ChargeRequest asks for a charge. Amount and Currency are required.
type ChargeRequest struct {
	Amount   Amount `json:"amount"`
	Currency string `json:"currency"`
	To       string `json:"to,omitempty"`
}

// Refund is a refund as the service shows it.
type Refund struct {
	ID             string    `json:"id"`
	IdempotencyKey string    `json:"idempotency_key,omitempty"`
	Charge         string    `json:"charge"`
	Amount         Amount    `json:"amount"`
	State          string    `json:"state"`
	Revision       int       `json:"revision"`
	Created        time.Time `json:"created"`
}

// RefundRequest asks for a refund of a charge that exists. Charge and Amount
// are required; that the amounts fit together is not looked at.
type RefundRequest struct {
	Charge string `json:"charge"`
	Amount Amount `json:"amount"`
}

// Message is what the message service answers; it cannot be read again.
type Message struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
}

// MessageRequest asks for a message. To is required.
type MessageRequest struct {
	To      string `json:"to"`
	Subject string `json:"subject,omitempty"`
	Body    string `json:"body,omitempty"`
}
