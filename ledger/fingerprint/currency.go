// SPDX-License-Identifier: Apache-2.0

package fingerprint

import "strings"

// The currencies of ISO 4217 list one (currencies and funds), as SIX Group, its
// maintenance agency, published it on 2026-01-01, by the digits of their minor
// unit. Codes without one (metals, XDR, XTS, XXX) are left out: an amount of
// them has no number of places. Within a spec version codes are added, never
// removed, and digits only rise: what was accepted stays accepted.
const currenciesPublished = "2026-01-01"

var currenciesByDigits = [...]string{
	0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
	2: "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF CHW CNY COP COU " +
		"CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG HUF IDR ILS INR IRR JMD KES " +
		"KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR " +
		"NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP " +
		"TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XAD XCD XCG YER ZAR ZMW ZWG",
	3: "BHD IQD JOD KWD LYD OMR TND",
	4: "CLF UYW",
}

// minorUnits maps a currency to the digits of its minor unit.
var minorUnits = func() map[string]int {
	m := map[string]int{}
	for digits, codes := range currenciesByDigits {
		for code := range strings.FieldsSeq(codes) {
			m[code] = digits
		}
	}
	return m
}()
