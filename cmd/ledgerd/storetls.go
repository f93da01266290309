// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"net/netip"

	"github.com/jackc/pgx/v5/pgconn"
)

// What --store-tls may be.
const (
	storeTLSVerified = "verified"
	storeTLSAsInURL  = "as-in-url"
)

// checkTransport refuses a database on the network whose certificate is not verified: who can take its place answers that nothing was
// ever done. A socket or the loopback needs no TLS.
func checkTransport(at location, rule string) error {
	if at.isFile() || rule == storeTLSAsInURL {
		return nil
	}
	config, err := parseDSN(at.dsn)
	if err != nil {
		return err
	}
	verified := isLocal(config.Host) || isVerified(config.TLSConfig)
	for _, next := range config.Fallbacks {
		verified = verified && (isLocal(next.Host) || isVerified(next.TLSConfig))
	}
	if !verified {
		return usageError{ruleError("store", "must have sslmode=verify-full, and sslrootcert where the system does not know the authority, "+
			"unless the database is on this host; --store-tls="+storeTLSAsInURL+" takes the URL as it is, for a network that protects it otherwise")}
	}
	return nil
}

// isVerified: the certificate is checked for the name that was asked for. The other modes check less themselves.
func isVerified(config *tls.Config) bool {
	return config != nil && !config.InsecureSkipVerify && config.ServerName != ""
}

func isLocal(host string) bool {
	if network, _ := pgconn.NetworkAddress(host, 0); network == "unix" || host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
