// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	opsledgerv1 "github.com/opsledger/opsledger/gen/opsledger/v1"
	"github.com/opsledger/opsledger/ledger"
)

// open is a ledger in memory; a worker has its ledger from client.Dial.
func open() *clienttest.Ledger {
	l, err := clienttest.Open(clienttest.Options{Contracts: []ledger.Contract{clienttest.Contract("payments.charge", ledger.Keyed)}})
	if err != nil {
		panic(err)
	}
	return l
}

func say[Res any](out client.Outcome[Res], err error) string {
	if err != nil {
		return err.Error()
	}
	return client.Match(out,
		func(d client.Done[Res]) string { return fmt.Sprintf("done: %v, replayed: %v", d.Value, d.Replayed) },
		func(r client.Rejection) string { return r.Err().Error() },
		func(u client.Unknown) string { return fmt.Sprintf("%v, ask again later", u.Reason) })
}

// A charge over HTTP. The target declines what is too much, loses its answer to what is 13, and does the rest.
func Example() {
	l := open()
	defer l.Close()
	payments := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.FormValue("amount") {
		case "1000000":
			w.WriteHeader(http.StatusPaymentRequired)
		case "13":
			panic(http.ErrAbortHandler)
		default:
			fmt.Fprint(w, "ch_1")
		}
	}))
	defer payments.Close()

	type order struct {
		Amount string `json:"amount"`
	}
	once := &http.Client{Transport: client.OneSend(nil)}
	charge := client.Effect[order, string]{
		Tool: "payments.charge",
		Execute: func(ctx context.Context, call client.Call, o order) (string, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, payments.URL, strings.NewReader("amount="+o.Amount))
			if err != nil {
				return "", client.NotSent(err)
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Header.Set("Idempotency-Key", call.Key)
			res, err := once.Do(req)
			if err != nil {
				return "", err // unknown, unless there was no connection
			}
			defer res.Body.Close()
			switch res.StatusCode {
			case http.StatusOK:
				var id string
				_, err := fmt.Fscan(res.Body, &id)
				return id, err
			case http.StatusPaymentRequired:
				return "", client.Rejected(opsledgerv1.FailureKind_FAILURE_KIND_DECLINED, "card_declined", "")
			default:
				return "", errors.New(res.Status) // unknown
			}
		},
		Resource: func(id string) *opsledgerv1.ResourceRef { return &opsledgerv1.ResourceRef{Type: "charge", Id: id} },
	}
	for _, amount := range []string{"20", "1000000", "13"} {
		intent := client.Intent{Task: "order-" + amount, Step: "charge", Time: time.Now()}
		fmt.Println(say(client.Do(context.Background(), l.Client(), charge, intent, order{amount})))
	}
	// Output:
	// done: ch_1, replayed: false
	// rejected: FAILURE_KIND_DECLINED: card_declined
	// unknown, ask again later
}

// A report that takes long to write is written before the time in which it may be sent begins.
func ExampleEffect_prepare() {
	l := open()
	defer l.Close()
	type report struct{ Topic, Text string }
	send := client.Effect[report, string]{
		Tool: "reports.send",
		Prepare: func(_ context.Context, call client.Call, r report) (report, error) {
			fmt.Println("writing, may send:", call.MaySend())
			r.Text = "all about " + r.Topic
			return r, nil
		},
		Execute: func(_ context.Context, call client.Call, r report) (string, error) {
			if err := call.Sending(); err != nil { // what is not sent by HTTP is declared
				return "", client.NotSent(err)
			}
			return "sent " + r.Text, nil
		},
	}
	intent := client.Intent{Task: "task-1", Step: "report", Time: time.Now()}
	fmt.Println(say(client.Do(context.Background(), l.Client(), send, intent, report{Topic: "sales"})))
	// Output:
	// writing, may send: false
	// done: sent all about sales, replayed: false
}

// Whoever has a key and a digest of the request already needs no more.
func ExampleCreateOrReturn() {
	l := open()
	defer l.Close()
	key := client.Key{Tool: "payments.charge", Task: "order-1", Key: "charge-1", Time: time.Now()}
	digest := sha256.Sum256([]byte(`{"amount":"20"}`))
	create := func(_ context.Context, call client.Call) (*opsledgerv1.Result, error) {
		if err := call.Sending(); err != nil {
			return nil, client.NotSent(err)
		}
		return &opsledgerv1.Result{Resource: &opsledgerv1.ResourceRef{Type: "charge", Id: "ch_1"}}, nil
	}
	for range 2 {
		out, err := client.CreateOrReturn(context.Background(), l.Client(), key, digest[:], create)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(client.Match(out,
			func(d client.Done[*opsledgerv1.Result]) string {
				return fmt.Sprintf("%s, replayed: %v", d.Value.GetResource().GetId(), d.Replayed)
			},
			func(r client.Rejection) string { return r.Err().Error() },
			func(u client.Unknown) string { return u.Reason.String() }))
	}
	// Output:
	// ch_1, replayed: false
	// ch_1, replayed: true
}
