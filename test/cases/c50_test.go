// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/opsledger/opsledger/authz"
	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// certificate is a row of identity-san.txt.
type certificate struct {
	id, commonName, chain string
	uris, dns             []string
}

// certificates reads the file: id | CN | SAN entries | chain | what it must be, which the test knows itself.
func certificates(t *testing.T) []certificate {
	t.Helper()
	text, err := os.ReadFile("testdata/identity-san.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []certificate
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			t.Fatalf("a row has %d cells, want 5: %s", len(cells), line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		c := certificate{id: cells[0], commonName: strings.TrimPrefix(cells[1], "-"), chain: cells[3]}
		if cells[2] != "(none)" {
			for entry := range strings.SplitSeq(cells[2], ",") {
				if uri, ok := strings.CutPrefix(strings.TrimSpace(entry), "URI:"); ok {
					c.uris = append(c.uris, uri)
				} else if name, ok := strings.CutPrefix(strings.TrimSpace(entry), "DNS:"); ok {
					c.dns = append(c.dns, name)
				} else {
					t.Fatalf("%s: a SAN entry that this test does not know: %s", c.id, entry)
				}
			}
		}
		all = append(all, c)
	}
	return all
}

// leaf mints the certificate.
func (c certificate) leaf(t *testing.T) *authz.Leaf {
	t.Helper()
	spec := authz.LeafSpec{CommonName: c.commonName, URIs: c.uris, DNS: c.dns}
	switch c.chain {
	case "root A", "root A, new key pair, new serial, other CN": // each leaf that is minted has a key and a serial of its own
		return mint(t, rootA(t), spec)
	case "root A, expired 1 min ago":
		spec.NotBefore, spec.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		return mint(t, rootA(t), spec)
	case "root B, untrusted":
		rootB, err := authz.NewCA("root B", time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return mint(t, rootB, spec)
	default:
		t.Fatalf("%s: a chain that this test does not know: %s", c.id, c.chain)
		return nil
	}
}

// noHandshake: TLS itself refuses the certificate.
const noHandshake = "no handshake"

// principals says whose principal a row is, if it is anybody's.
var principals = map[string]string{
	"I01": billing, "I03": billing, "I07": billing, "I21": noHandshake, "I22": noHandshake, "I23": billing, "I28": support,
	// A DNS name counts only without a URI, and only if the policy maps it.
	"mapped DNS name": "batch",
}

// broken says which rule the other rows break. The contract answers each of them with UNAUTHENTICATED.
var broken = map[string]authz.Rule{
	"I02": authz.RuleNoName, "I04": authz.RuleManyURIs, "I16": authz.RuleForeignDomain,
	"unmapped DNS name": authz.RuleUnmappedDNS, "mapped DNS name beside a foreign URI": authz.RuleForeignDomain,
}

// The caller is the one SPIFFE ID of its verified certificate; CN and headers never matter.
func TestC50(t *testing.T) {
	rows := append(certificates(t),
		certificate{id: "mapped DNS name", chain: "root A", dns: []string{batchHost}},
		certificate{id: "unmapped DNS name", chain: "root A", dns: []string{"other.ledger.test"}},
		certificate{id: "mapped DNS name beside a foreign URI", chain: "root A", dns: []string{batchHost}, uris: []string{"spiffe://other.test/agent/billing"}},
	)
	if len(rows) != len(principals)+len(broken) {
		t.Fatalf("%d rows, %d are known", len(rows), len(principals)+len(broken))
	}
	each(t, func(t *testing.T, e *env) {
		task := unique(t)
		// One Claim, sent by every certificate under one claim_id and worker_id: whoever is the same principal holds the same grant.
		first := request("card.charge", task, "order-1", `{"amount":"5.00"}`)
		first.WorkerId = "worker/one"
		seen := map[string]string{}
		for _, c := range rows {
			t.Run(c.id, func(t *testing.T) {
				principal, rule, leaf := principals[c.id], broken[c.id], c.leaf(t)
				switch {
				case principal == "" && rule == "":
					t.Fatal("the row is new: say what it must be")
				case principal == noHandshake:
					refusedByTLS(t, e, leaf, first)
				case principal == "":
					refusedIdentity(t, e, leaf, first, rule)
				default:
					seen[principal] = acceptedIdentity(t, e, leaf, first, principal, seen[principal])
				}
			})
		}
		t.Run("a new certificate of the principal replays", func(t *testing.T) {
			id := operationID(billing, "card.charge", task, "order-1")
			e.node.dial(t, billing).applied(t, completion(id, first.GetClaimId(), "charge", "C-1"))
			wantResource(t, e.node.dial(t, billing), first, "C-1")
		})
	})
}

// acceptedIdentity claims and looks up as a principal, whose operation was seen before or not, and returns that operation's id.
func acceptedIdentity(t *testing.T, e *env, leaf *authz.Leaf, r *pb.ClaimRequest, principal, before string) string {
	t.Helper()
	w := connect(t, e.node.grpcAddr, leaf)
	// Whatever a proxy or a caller writes into headers says nothing.
	ctx := metadata.AppendToOutgoingContext(within(t), "x-forwarded-client-cert", "URI="+operator, "x-principal", operator)
	answer, err := w.Claim(ctx, copyOf(r))
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	g, id := answer.GetGranted(), answer.GetOperation().GetId()
	if g == nil || g.GetResent() != (before != "") || before != "" && id != before {
		t.Errorf("the Claim was answered %v; want the grant of %q", answer, before)
	}
	row := e.row(t, id)
	if row["principal"] != principal || row["scope"] != principal || answer.GetOperation().GetScope() != principal {
		t.Errorf("the operation is %s's in scope %s, want %s", row["principal"], row["scope"], principal)
	}
	found, err := w.Lookup(ctx, &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: r.GetKey()}})
	if err != nil || found.GetOperation().GetId() != id {
		t.Errorf("Lookup: %v, %v", found, err)
	}
	return id
}

// refusedIdentity claims and looks up with a certificate that passes the handshake and is nobody's.
func refusedIdentity(t *testing.T, e *env, leaf *authz.Leaf, r *pb.ClaimRequest, rule authz.Rule) {
	t.Helper()
	w := connect(t, e.node.grpcAddr, leaf)
	ctx := metadata.AppendToOutgoingContext(within(t), "x-forwarded-client-cert", "URI="+billing, "x-principal", billing)
	e.storesNothing(t, func() {
		_, claim := w.Claim(ctx, copyOf(r))
		_, lookup := w.Lookup(ctx, &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: r.GetKey()}})
		for _, err := range []error{claim, lookup} {
			wantRefusal(t, err, codes.Unauthenticated, pb.ErrorReason_ERROR_REASON_IDENTITY_INVALID)
			if got := detail[*errdetails.ErrorInfo](err).GetMetadata()["rule"]; got != string(rule) {
				t.Errorf("it breaks the rule %q, want %q", got, rule)
			}
		}
	})
}

// refusedByTLS dials with a certificate that the handshake must refuse: the server says so by an alert, and no call gets through.
func refusedByTLS(t *testing.T, e *env, leaf *authz.Leaf, r *pb.ClaimRequest) {
	t.Helper()
	logged := len(e.node.log())
	config := clientTLS(t, leaf)
	config.ServerName = "127.0.0.1"
	conn, err := tls.Dial("tcp", e.node.grpcAddr, config)
	if err == nil { // TLS 1.3: the client is done before the server has looked at its certificate
		defer conn.Close()
		if err = conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		_, err = conn.Read(make([]byte, 1))
	}
	var alert *net.OpError
	if !errors.As(err, &alert) || alert.Op != "remote error" {
		t.Errorf("the handshake ended with %v, want an alert of the server", err)
	}
	w := connect(t, e.node.grpcAddr, leaf)
	e.storesNothing(t, func() {
		_, err := w.Claim(within(t), copyOf(r))
		if status.Code(err) != codes.Unavailable {
			t.Errorf("Claim: %v, want no connection", err)
		}
		_, err = w.Lookup(within(t), &pb.LookupRequest{Selector: &pb.LookupRequest_Key{Key: r.GetKey()}})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("Lookup: %v, want no connection", err)
		}
	})
	if strings.Contains(e.node.log()[logged:], billing) {
		t.Error("the log names the principal that the certificate claims to be")
	}
}
