// SPDX-License-Identifier: Apache-2.0

package recovery

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Allowed are the places inside of the operator's network that an Asker may connect to. The zero value has none: only what is on the public network is
// asked, whatever a name resolves to, so that a contract can't make the ledger ask the cloud's metadata service or a neighbour's admin page.
type Allowed struct {
	prefixes []netip.Prefix
	hosts    []string
}

var hostForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\.?$`)

// errAllowed tells the form of a list. It shows no entry.
var errAllowed = errors.New("must list addresses (10.1.2.3), networks (10.0.0.0/8) and names of hosts in lower case (payments.internal), separated by commas")

// ParseAllowed reads a list of addresses, networks and names of hosts, separated by commas. A host that is named is trusted with what its name resolves to.
func ParseAllowed(text string) (Allowed, error) {
	var a Allowed
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		prefix, errPrefix := netip.ParsePrefix(entry)
		addr, errAddr := netip.ParseAddr(entry)
		switch {
		case entry == "" && strings.TrimSpace(text) == "":
		case errPrefix == nil:
			a.prefixes = append(a.prefixes, prefix.Masked())
		case errAddr == nil && addr.Zone() == "":
			a.prefixes = append(a.prefixes, netip.PrefixFrom(addr.Unmap(), addr.Unmap().BitLen()))
		case hostForm.MatchString(entry) && strings.ContainsFunc(entry, func(r rune) bool { return r >= 'a' && r <= 'z' }):
			a.hosts = append(a.hosts, entry)
		default:
			return Allowed{}, errAllowed
		}
	}
	return a, nil
}

// inside are networks that no public target is in, besides those that package netip tells.
var inside = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
	// What carries an address of IPv4 inside leads wherever that does.
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("fec0::/10"),
}

// permits says whether an address may be connected to.
func (a Allowed) permits(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	contains := func(p netip.Prefix) bool { return p.Contains(addr) }
	if slices.ContainsFunc(a.prefixes, contains) {
		return true
	}
	return addr.IsGlobalUnicast() && !addr.IsPrivate() && !slices.ContainsFunc(inside, contains)
}

// ErrPlace is why an address was not connected to.
var ErrPlace = errors.New("the address is not allowed")

// Dial connects. The address is judged when it is connected to, after the name was resolved: what a name resolved to before says nothing.
func (a Allowed) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if host, _, err := net.SplitHostPort(address); err != nil || !slices.Contains(a.hosts, host) {
		dialer.Control = func(_, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil || !a.permits(to.Addr()) {
				return ErrPlace
			}
			return nil
		}
	}
	return dialer.DialContext(ctx, network, address)
}
