// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"errors"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/opsledger/opsledger/ledger"
)

const (
	maxAddress   = 2048 // bytes, in the file and filled in
	maxHeaders   = 16
	maxReference = 255
)

// address is the URL of a question, with places for what it asks about. Scheme, host and port are fixed; a place is one segment of the
// path, a part of one, or a part of a parameter's value, and what fills it is escaped: nothing that is known of an operation can
// lead the question to another server or another path.
type address struct {
	parts []part
}

type part struct {
	literal string
	place   string // what fills it; "" for a literal
	query   bool   // it stands in a parameter
}

var (
	addressForm = regexp.MustCompile(`^(https?)://([a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\])(:[0-9]{1,5})?/`)
	literalForm = regexp.MustCompile(`^[A-Za-z0-9._~!$&'()*+,;=:@/?%-]*$`)
	targetForm  = regexp.MustCompile(`^(dns:///)?([a-z0-9][a-z0-9.-]*|\[[0-9a-f:.]+\])(:[0-9]{1,5})$`)
)

// places are what can be filled in, besides attributes.NAME.
var (
	probePlaces   = []string{"downstream_key", "operation_id"}
	inspectPlaces = []string{"resource.id", "resource.type", "downstream_key", "operation_id"}
)

// parseAddress checks a URL; rule says what is wrong with it. It returns the places that it has.
func parseAddress(text string, allowed, attributes []string) (a *address, places []string, rule string) {
	head := addressForm.FindStringSubmatch(text)
	switch {
	case len(text) > maxAddress:
		return nil, nil, "must have at most 2048 bytes"
	case head == nil || !goodPort(head[3]):
		return nil, nil, "must begin with https:// or http://, a fixed host in lower case, and a path; write for example https://payments.internal/v1/charges?key={downstream_key}"
	}
	a = &address{parts: []part{{literal: head[0]}}}
	rest, query := text[len(head[0]):], false
	for rest != "" {
		literal, after, open := strings.Cut(rest, "{")
		if !literalForm.MatchString(literal) || strings.Count(literal, "?") > 1 || query && strings.Contains(literal, "?") {
			return nil, nil, "must be a URL without a fragment, in which all but letters, digits and the usual marks is escaped by %, and { and } stand around what is filled in"
		}
		query = query || strings.Contains(literal, "?")
		a.parts = append(a.parts, part{literal: literal})
		if !open {
			break
		}
		place, end, closed := strings.Cut(after, "}")
		known := slices.Contains(allowed, place)
		if attribute, ok := strings.CutPrefix(place, "attributes."); ok {
			known = slices.Contains(attributes, attribute)
		}
		switch {
		case !closed || !known:
			return nil, nil, "must be filled in by {" + strings.Join(allowed, "}, {") + "} or {attributes.NAME}, where attributes declares the name"
		case query && !inValue(a.parts):
			return nil, nil, "must be filled in after the = of a parameter, not in its name; write for example ?key={downstream_key}"
		}
		a.parts = append(a.parts, part{place: place, query: query})
		places = append(places, place)
		rest = end
	}
	if rule := a.sound(); rule != "" {
		return nil, nil, rule
	}
	return a, places, ""
}

func goodPort(port string) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(port, ":"))
	return port == "" || err == nil && n >= 1 && n <= 65535
}

// inValue reports whether what has been read ends within a parameter's value.
func inValue(parts []part) bool {
	var before strings.Builder
	for _, p := range parts {
		before.WriteString(p.literal)
		if p.place != "" {
			before.WriteByte('x')
		}
	}
	text := before.String()
	return strings.LastIndexByte(text, '=') > strings.LastIndexAny(text, "?&")
}

// sound parses the URL with something harmless in each place.
func (a *address) sound() string {
	text, err := a.fill(func(string) string { return "x" })
	if err != nil {
		return "must have no . or .. as a part of its path"
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil {
		return "must be a URL in which each % begins an escape of two hexadecimal digits"
	}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return "must have parameters of the form name=value, joined by &"
	}
	return ""
}

var (
	errNotKnown = errors.New("what the address asks about is not known of the operation")
	errSegment  = errors.New("what is filled into the address would change its path")
	errTooLong  = errors.New("the address is too long")
)

// fill writes the URL. value gives what fills a place, "" where it is not known.
func (a *address) fill(value func(place string) string) (string, error) {
	var b strings.Builder
	for _, p := range a.parts {
		if p.place == "" {
			b.WriteString(p.literal)
			continue
		}
		v := value(p.place)
		switch {
		case v == "":
			return "", errNotKnown
		case p.query:
			b.WriteString(url.QueryEscape(v))
		default:
			b.WriteString(url.PathEscape(v))
		}
	}
	text := b.String()
	path, _, _ := strings.Cut(text, "?")
	for _, segment := range strings.Split(path, "/") {
		if plain := strings.ReplaceAll(strings.ToLower(segment), "%2e", "."); plain == "." || plain == ".." {
			return "", errSegment
		}
	}
	if len(text) > maxAddress {
		return "", errTooLong
	}
	return text, nil
}

// safe reports whether what is sent there can't be read on the way.
func (a *address) safe() bool {
	u, err := url.Parse(a.parts[0].literal)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname()) // a name may begin with 127, too
	return u.Scheme == "https" || u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

// known is what fills a place of a question about an operation; resource is that of an inspection.
func known(op *ledger.Operation, resource ledger.ResourceRef) func(place string) string {
	return func(place string) string {
		switch place {
		case "downstream_key":
			return op.KeyHash.DownstreamKey()
		case "operation_id":
			return op.ID.String()
		case "resource.id":
			return resource.ID
		case "resource.type":
			return resource.Type
		default:
			return op.TargetAttributes[strings.TrimPrefix(place, "attributes.")]
		}
	}
}

// Header is one header of a question. Secrets are never in a contract: it names the file or the variable that holds them.
type Header struct {
	Name string
	// Text stands before what File or Env holds: an authentication scheme and a space; or it is the whole value.
	Text string
	// File is a path whose content, without white space around it, is the value; Env names a variable of the environment.
	File string
	Env  string
}

var (
	headerForm    = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
	literalValue  = regexp.MustCompile(`^[A-Za-z0-9 /*+.;,=_-]{1,128}$`)
	referenceForm = regexp.MustCompile(`^(?:(Bearer|Basic|Token|ApiKey) )?\$\{(?:file:(/[A-Za-z0-9._/-]+)|env:([A-Za-z_][A-Za-z0-9_]*))\}$`)
)

// plainHeaders may have a value written out, because nobody keeps a secret there.
var plainHeaders = []string{"accept", "accept-language", "user-agent"}

// ownHeaders belong to the connection, or would make the question another one.
var ownHeaders = []string{
	"connection", "content-length", "content-type", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// parseHeader reads one header's value; false: it is neither a reference nor harmless.
func parseHeader(name, text string) (Header, bool) {
	if slices.Contains(plainHeaders, name) && literalValue.MatchString(text) {
		return Header{Name: name, Text: text}, true
	}
	m := referenceForm.FindStringSubmatch(text)
	// What configures ledgerd itself (its store's password) is not for targets.
	if m == nil || len(text) > maxReference || strings.HasPrefix(m[3], "LEDGERD_") {
		return Header{}, false
	}
	h := Header{Name: name, File: m[2], Env: m[3]}
	if m[1] != "" {
		h.Text = m[1] + " "
	}
	return h, true
}
