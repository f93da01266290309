// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// ledgerd runs a command to its end.
func ledgerd(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out bytes.Buffer
	err = run(call(t), args, nil, &out, &bytes.Buffer{})
	return out.String(), err
}

// TestRestored: what a person says about the store holds at once, also in a server that runs.
func TestRestored(t *testing.T) {
	for name, store := range stores {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, store(t))
			r := start(t, nil, append(h.args, "--migrations", "apply")...)
			client := pb.NewLedgerServiceClient(dial(t, r.at.GRPC, h.as(t, agentA)))
			newKey(t, client, "before")
			file := []string{"--store-file", h.path("store")}
			since := time.Now().Add(-time.Hour).UTC().Truncate(time.Second)
			if name == "postgres" {
				_, err := ledgerd(t, "restored", "--lost-since", since.Format(time.RFC3339), "--store", "host=127.0.0.1,127.0.0.2 user=u dbname=d", "--store-tls", "as-in-url")
				if exitCode(err) != 2 || !strings.Contains(err.Error(), "name only the one that was restored") {
					t.Errorf("exit code %d, %v", exitCode(err), err)
				}
			}
			for rule, args := range map[string][]string{
				"the time of the last commit": {"restored"},
				"such as 2026-":               {"restored", "--lost-since", "yesterday"},
				"must not lie ahead":          {"restored", "--lost-since", time.Now().Add(time.Hour).Format(time.RFC3339)},
				"takes no arguments":          {"restored", since.Format(time.RFC3339)},
				"must be text or json":        {"timelines", "-o", "xml"},
			} {
				if _, err := ledgerd(t, append(args, file...)...); exitCode(err) != 2 || !strings.Contains(err.Error(), rule) {
					t.Errorf("%v: exit code %d, %v", args, exitCode(err), err)
				}
			}
			newKey(t, client, "after") // what was refused has changed nothing

			out, err := ledgerd(t, append([]string{"restored", "--lost-since", since.Format(time.RFC3339)}, file...)...)
			if err != nil || !strings.Contains(out, "are investigated, not executed") {
				t.Fatalf("%q, %v", out, err)
			}
			out, err = ledgerd(t, append([]string{"timelines", "-o", "json"}, file...)...)
			var all []timeline
			if jsonErr := json.Unmarshal([]byte(out), &all); err != nil || jsonErr != nil || len(all) != 2 {
				t.Fatalf("%v, %v\n%s", err, jsonErr, out)
			}
			if last := all[1]; all[0].LostSince != nil || last.LostSince == nil || !last.LostSince.Equal(since) || last.Cause != "restored" || last.Number <= all[0].Number {
				t.Errorf("%s", out)
			}
			if out, err = ledgerd(t, append([]string{"timelines"}, file...)...); err != nil || strings.Count(out, "\n") != 3 || !strings.Contains(out, since.Format(time.RFC3339)) {
				t.Errorf("%v\n%s", err, out)
			}

			absent := claim("absent")
			absent.Key.Task, absent.IntentTime = "task-2", timestamppb.New(since)
			if got, err := client.Claim(call(t), absent); err != nil || got.GetUnknown() == nil {
				t.Errorf("a key that may be lost: %v, %v", got, err)
			}
			r = start(t, nil, append(h.args, "--migrations", "apply")...) // beside the other one
			if log, _ := r.log.read(); !strings.Contains(log, `"msg":"the store may have lost commits`) || !strings.Contains(log, `"cause":"restored"`) {
				t.Errorf("a server that starts does not say so:\n%s", log)
			}
			off := program{stdout: &bytes.Buffer{}, stderr: &bytes.Buffer{}, now: func() time.Time { return time.Now().Add(-time.Hour) }}
			root := off.root()
			root.SetArgs(append([]string{"restored", "--lost-since", since.Format(time.RFC3339)}, file...))
			if err := root.ExecuteContext(call(t)); err == nil || !strings.Contains(err.Error(), "set it right first") {
				t.Errorf("with clocks an hour apart: %v", err)
			}
		})
	}
}
