// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/opsledger/opsledger/ledger/fingerprint"
)

// The canaries: each stands for something that callers give.
const (
	canaryKey      = "canary-KEY-1"
	canaryTo       = "canary-to@x.test"
	canaryBody     = "canary-BODY"
	canaryField    = "canary-FIELD"
	canaryInvalid  = "canary-INVALID"
	canaryOverlong = "canary-OVERLONG"
	canarySubject  = "canary-SUBJECT"
	canaryToken    = "canary-TOKEN"
	canaryHeader   = "canary-HEADER"
	canaryMalform  = "canary-MALFORMED"
	canaryDropped  = "canary-DROPPED"
	canaryObserved = "canary-OBSERVED"
	canaryFilled   = "canary-FILLED"
	canaryReason   = "canary-REASON"
	canaryAnswer   = "canary-ANSWER"
	canarySecret   = "canary-SECRET"
	canaryNote     = "canary-NOTE"

	canaryTask      = "canary-TASK"
	canarySummary   = "canary-SUMMARY"
	canaryAttribute = "canary-ATTRIBUTE"
	canaryWorker    = "canary-WORKER"
	canaryResource  = "canary-RESOURCE"
	canaryURI       = "canary-URI"
	canaryCode      = "canary-CODE"
	canaryETag      = "canary-ETAG"
	canaryPayload   = "canary-PAYLOAD"
	canaryMessage   = "canary-MESSAGE"
	canaryDetail    = "canary-DETAIL"
	canarySource    = "canary-SOURCE"

	// planted is the leak: the name of a tool, which every source may show, and what else is stored and shown in clear.
	planted = "canary-leak"
)

// whereabouts is where something that callers give may stand.
type whereabouts int

const (
	// nowhere: in no source, neither in any form nor as a digest without a key.
	nowhere whereabouts = iota
	// stored: by the contract in the database, and in answers to those who may see it now. In no log, trace, metric or status.
	stored
	// inConflicts: stored, and in the detail of a conflict for who may see the result.
	inConflicts
)

// canaries and where the contract has them stand in clear: what operators are meant to see of an operation (task, summary, declared
// attributes, who works on it), and what came of it: the resource, the target's code, declared attributes of a result, a payload under a
// declared schema, what a failure and a refusal say, and where evidence is from. A tool's name stands everywhere, and is no canary but the leak.
var canaries = map[string]whereabouts{
	canaryKey: nowhere, canaryTo: nowhere, canaryBody: nowhere, canaryField: nowhere, canaryInvalid: nowhere, canaryOverlong: nowhere,
	canarySubject: nowhere, canaryToken: nowhere, canaryHeader: nowhere, canaryMalform: nowhere, canaryDropped: nowhere, canaryObserved: nowhere,
	canaryFilled: nowhere, canaryReason: nowhere, canaryAnswer: nowhere, canarySecret: nowhere, canaryNote: nowhere,

	canaryTask: stored, canarySummary: stored, canaryAttribute: stored, canaryWorker: stored,
	canaryCode: stored, canaryETag: stored, canaryPayload: stored, canaryMessage: stored, canaryDetail: stored,
	canarySource:   stored,
	canaryResource: inConflicts, canaryURI: inConflicts,
}

// mayStand says whether a canary may stand in a source.
func (s whereabouts) mayStand(name string, p place) bool {
	return s != nowhere && p == inside || s == inConflicts && name == "statuses"
}

// canaryRequest is the request of each Claim with canaries. noteFields are what the contract of note.write declares of it.
const canaryRequest = `{"to":"` + canaryTo + `","note":"` + canaryBody + `","` + canaryField + `":true}`

var noteFields = map[string]fingerprint.Field{"note": {Category: "body"}, "to": {Category: "recipient"}}

// guessable are the texts whose digests must stand nowhere, as whoever reads one could find its text by trying: each value by itself and as
// JSON, the request as it was sent, its canonical form, and its part of each category.
func guessable(t *testing.T) []string {
	t.Helper()
	rules, err := fingerprint.NewRules(noteFields, nil)
	if err != nil {
		t.Fatal(err)
	}
	canonical, err := fingerprint.Text([]byte(canaryRequest), rules)
	if err != nil {
		t.Fatal(err)
	}
	texts := []string{canaryRequest, string(canonical)}
	for name, value := range map[string]string{"note": `"` + canaryBody + `"`, "to": `"` + canaryTo + `"`, canaryField: "true"} {
		texts = append(texts, fmt.Sprintf(`{%q:%s}`, name, value))
	}
	for canary, where := range canaries {
		if where == nowhere {
			texts = append(texts, canary)
		}
	}
	return texts
}

// digestsOf are the forms in which a digest without a key of a text, or of the text as a JSON string, may stand somewhere. Each is the
// beginning only: a digest may have been cut.
func digestsOf(t *testing.T, text string) (forms []writtenAs) {
	t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, spelling := range []string{text, string(quoted)} {
		long, middle, short := sha256.Sum256([]byte(spelling)), sha1.Sum([]byte(spelling)), md5.Sum([]byte(spelling))
		for hash, sum := range map[string][]byte{"SHA-256": long[:], "SHA-1": middle[:], "MD5": short[:]} {
			const most = 8 // as long as the digest of a category
			in := hex.EncodeToString(sum[:most])
			base64 := base64.StdEncoding.EncodeToString(sum)[:10]
			url := strings.NewReplacer("+", "-", "/", "_").Replace(base64)
			numbers := strings.Trim(strings.ReplaceAll(fmt.Sprint(sum[:most]), " ", ","), "[]") // as encoding/json writes an array of bytes
			for name, form := range map[string]string{
				"bytes": string(sum[:most]), "hex": in, "HEX": strings.ToUpper(in), "base64": base64, "base64url": url, "numbers": numbers,
			} {
				forms = append(forms, writtenAs{hash + " in " + name, []byte(form)})
			}
		}
	}
	return forms
}

// wantNoDigest fails if a source holds a digest of what must not be guessed.
func wantNoDigest(t *testing.T, name string, s source) {
	t.Helper()
	var forms []writtenAs
	for _, text := range guessable(t) {
		for _, form := range digestsOf(t, text) {
			forms = append(forms, writtenAs{form.name + " of " + text, form.bytes})
		}
	}
	if in := s.findAny(forms); len(in) > 0 {
		t.Errorf("a digest without a key is in %s: %v", name, in)
	}
	t.Logf("looked in %s for %d digests", name, len(forms))
}

// dump reads all columns of all rows as the database gives them: nothing is compressed there, and nothing is left of what was deleted.
func (w *watched) dump(t *testing.T) source {
	t.Helper()
	parts := map[string][]byte{}
	tables := "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'"
	if w.postgres == nil {
		tables = "SELECT name FROM sqlite_schema WHERE type = 'table'"
	}
	for _, table := range w.rows(t, tables) {
		name := table["name"]
		for _, row := range w.rows(t, "SELECT * FROM "+name) {
			for _, column := range slices.Sorted(maps.Keys(row)) {
				parts[name] = fmt.Appendf(parts[name], "%s=%s\n", column, row[column])
				if bytes, err := hex.DecodeString(row[column]); err == nil { // as they are, too
					parts[name] = append(parts[name], bytes...)
				}
			}
		}
	}
	for _, table := range []string{"operations", "events"} {
		if len(parts[table]) == 0 {
			t.Errorf("the dump has no rows of %s: it has %v", table, slices.Sorted(maps.Keys(parts)))
		}
	}
	return source{inside, parts}
}
