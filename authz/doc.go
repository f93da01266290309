// SPDX-License-Identifier: Apache-2.0

// Package authz says who calls and what the caller may do: it takes the
// principal out of the verified client certificate, maps it to a scope, tools
// and roles by the policy file, and makes the TLS configurations of both ends.
//
// It guarantees:
//
//   - A principal comes from the leaf of a verified chain and from nowhere else:
//     exactly one URI SAN that is a SPIFFE ID of the policy's trust domain, or,
//     where the leaf has no URI SAN at all, exactly one DNS SAN that the policy
//     maps. Never the common name, never a header. Everything else is an
//     [*IdentityError]; there is no fallback identity.
//   - The life of the certificate and the policy's list of denied serial numbers
//     are looked at on every call, not only at the handshake.
//   - Empty means nobody. An empty or missing list in the policy is an error,
//     and a principal that two scope rules fit is an error when the file is
//     read.
//   - A method that the static list does not name is refused, and [CheckComplete]
//     lets a server with such a method fail at start-up.
//   - A broken policy or TLS file leaves the last good one in force ([Reloader]).
//
// It depends on crypto/tls, go-spiffe's parser of SPIFFE IDs, the YAML parser,
// and the generated code; on no other package of this module.
//
// # The policy file
//
//	trust_domain: ledger.test
//	scopes:
//	  - name: billing                                   # one namespace of keys that several principals share
//	    principals: [spiffe://ledger.test/agent/billing]
//	    tools: [payments.*, mail.send]
//	    subject: required                               # required | allowed | forbidden (default)
//	    limits:                                         # of the scope, in each instance of the ledger
//	      requests_per_second: 200
//	      burst: 400                                    # twice the rate if it is left out
//	      live_operations: 1000                         # open grants and reservations
//	      subject: {requests_per_second: 20, live_operations: 50} # of each subject
//	  - name: "{principal}"                             # each its own
//	    principals: [spiffe://ledger.test/team/*/agent, build-host]
//	    tools: ["*"]
//	roles:
//	  - role: operator                                  # operator | reconciler | auditor
//	    principals: [spiffe://ledger.test/person/alice]
//	    tools: [payments.*]
//	dns:
//	  - name: build.example                             # a certificate without any URI SAN
//	    principal: build-host                           # or a SPIFFE ID of the trust domain
//	denied: [spiffe://ledger.test/team/red/agent]       # shut out, whatever the rules above say
//	denied_serials: ["0a:1b:2c", "4F00D1"]              # and certificates: of clients, or of authorities above them
//
// A principal pattern is exact, or has "*" as a whole segment of the path: it
// stands for exactly one segment, never crosses a slash, and is never a part of
// one. A tool pattern is exact, "*" for every tool, or "prefix.*" for every tool
// whose name begins with "prefix.". Names are compared byte by byte.
//
// scopes is required; roles, dns, denied and denied_serials may be left out, but
// are not empty when they are there. A scope's name may be given by several rules with other
// principals, so that the principals of one scope may have different tools. No
// two rules fit the same principal: that would put its keys into two namespaces.
// Rules of roles add up.
//
// Limits are those of a scope, whichever of its principals calls; one rule of a
// scope says them. What is left out has a default, which ends what runs away: in
// a scope 5,000 requests per second (10,000 at once) and 50,000 live operations,
// for each subject 1,000 (2,000 at once) and 5,000.
//
// A serial number is denied whichever authority gave it: where two have given
// the same, both certificates are.
package authz
