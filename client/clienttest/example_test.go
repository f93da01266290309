// SPDX-License-Identifier: Apache-2.0

package clienttest_test

import (
	"context"
	"fmt"
	"time"

	"github.com/opsledger/opsledger/client"
	"github.com/opsledger/opsledger/client/clienttest"
	"github.com/opsledger/opsledger/ledger"
)

// A worker creates a ticket, and the ledger dies before it hears of that. The ticket is not created twice.
func Example() {
	l, err := clienttest.Open(clienttest.Options{ // in a test: clienttest.New(t, ...)
		Contracts: []ledger.Contract{clienttest.Contract("tickets.create", ledger.Keyed)},
		Client:    client.Options{CallTimeout: time.Second, ReportTimeout: 100 * time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()
	tickets := 0
	createTicket := client.Effect[map[string]string, string]{
		Tool: "tickets.create",
		Execute: func(context.Context, client.Call, map[string]string) (string, error) {
			tickets++
			return "T-1", nil
		},
	}
	intent := client.Intent{Task: "task-1", Step: "open-incident", Time: time.Now()}
	do := func() string {
		out, err := client.Do(context.Background(), l.Client(), createTicket, intent, map[string]string{"title": "disk full"})
		if err != nil {
			return err.Error()
		}
		return client.Match(out,
			func(d client.Done[string]) string { return "done " + d.Value },
			func(client.Rejection) string { return "rejected" },
			func(u client.Unknown) string { return fmt.Sprintf("%v, recorded: %v", u.Reason, u.Recorded) })
	}

	l.Inject(clienttest.Complete, clienttest.CrashBeforeCommit)
	fmt.Println(do())

	l.Restart()
	l.Advance(time.Hour) // the lease is over
	fmt.Println(do())
	fmt.Println("tickets:", tickets)
	// Output:
	// unknown, recorded: false
	// unknown, recorded: true
	// tickets: 1
}
