// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/opsledger/opsledger/gen/opsledger/v1"
)

// output is a form of answers.
type output string

// The forms. JSON is the contract's messages as ProtoJSON.
const (
	outputText  output = "text"
	outputJSON  output = "json"
	outputJSONL output = "jsonl"
)

func (o *output) String() string { return string(*o) }

// Type names the flag's value in help.
func (*output) Type() string { return "form" }

// Set is for flags.
func (o *output) Set(s string) error {
	switch output(s) {
	case outputText, outputJSON, outputJSONL:
		*o = output(s)
		return nil
	default:
		return errors.New("must be text, json or jsonl")
	}
}

// printer writes answers.
type printer struct {
	w      io.Writer
	output output
}

// print writes text of ours, in which what others wrote has been made plain.
func (p printer) print(format string, args ...any) error {
	_, err := fmt.Fprintf(p.w, format, args...)
	return err
}

// message writes a message as JSON: indented, or on one line. What the ledger keeps of business data is not shown.
func (p printer) message(m proto.Message) error {
	text, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	var out bytes.Buffer
	if p.output == outputJSON {
		err = json.Indent(&out, text, "", "  ")
	} else {
		err = json.Compact(&out, text) // protojson puts spaces where it likes
	}
	if err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	_, err = fmt.Fprintln(p.w, plainJSON(out.String()))
	return err
}

// withoutPayloads drops results' payloads: what the target answered is for workers.
func withoutPayloads(v *pb.GetOperationResponse) *pb.GetOperationResponse {
	c := proto.CloneOf(v)
	for _, r := range []*pb.Result{c.GetResult(), c.GetReportedResult(), c.GetApproval().GetResolution().GetHappened()} {
		if r != nil {
			r.Payload = nil
		}
	}
	return c
}

// plain makes what others wrote safe to print within a line: what does not show as itself is written as an escape, so that it can
// neither control a terminal, nor begin a line of its own, nor turn the direction of writing.
func plain(s string) string {
	return rewrite(s, func(r rune) bool { return unicode.IsGraphic(r) && (r == ' ' || !unicode.IsSpace(r)) })
}

// plainLines leaves the ends of lines.
func plainLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = plain(lines[i])
	}
	return strings.Join(lines, "\n")
}

// plainJSON writes as escapes what JSON may have in strings as it is, and a terminal may obey. Space between tokens is left.
func plainJSON(s string) string {
	return rewrite(s, func(r rune) bool { return r == '\n' || unicode.IsGraphic(r) })
}

func rewrite(s string, safe func(rune) bool) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case safe(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r) // as JSON has it
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
		s = s[size:]
	}
	return b.String()
}

// cut shortens what others wrote for a column; the whole is in op get.
func cut(s string, width int) string {
	s = plain(s)
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	return string([]rune(s)[:width-1]) + "…"
}

// count is a number of things that have a name with a regular plural.
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// word is an enumeration's value without its prefix; a value of a later release is its number.
func word(e protoreflect.Enum) string {
	values := e.Descriptor().Values()
	v := values.ByNumber(e.Number())
	if v == nil {
		return fmt.Sprint(e.Number())
	}
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	return strings.TrimPrefix(string(v.Name()), prefix)
}

// span is a length of time as people say it.
func span(d time.Duration) string {
	d = d.Abs()
	switch {
	case d < time.Second:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 10*time.Minute:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

// instant is a time as RFC 3339 in UTC, as exact as it is.
func instant(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

// when is a time, and how far it is from now; empty without one.
func when(t *timestamppb.Timestamp, now time.Time) string {
	if t == nil {
		return ""
	}
	at := t.AsTime()
	if at.After(now) {
		return fmt.Sprintf("%s (in %s)", instant(at), span(at.Sub(now)))
	}
	return fmt.Sprintf("%s (%s ago)", instant(at), span(now.Sub(at)))
}
