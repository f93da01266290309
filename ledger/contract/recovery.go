// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
)

// The bounds of recovery's own load on a target, and of what people are told.
const (
	maxConcurrency = 256
	maxPerSecond   = 1000
	maxGuide       = 4000 // bytes
)

func recovery(s section, c *Contract) {
	r := s.sub("recovery", []string{
		"method", "key_retention", "effect_within", "repeat_when_absent", "probe", "verify", "inspect", "checks", "limits", "guide",
	})
	c.Method = []ledger.Method{ledger.MethodOperator, ledger.MethodProbe, ledger.MethodRegrant}[r.choice("method", "operator", "probe", "regrant")]
	r.duration("key_retention", &c.KeyRetention)
	r.duration("effect_within", &c.EffectWithin)
	if r.has("repeat_when_absent") {
		var repeat bool
		r.boolean("repeat_when_absent", &repeat)
		r.said.set("repeat_when_absent", repeat) // either is a statement, and differs from silence
		c.Repeat = ledger.RepeatForbidden
		if repeat {
			c.Repeat = ledger.RepeatAllowed
		}
	}
	probe(r, c)
	verify(r, c)
	inspect(r, c)
	checks(r, &c.Contract)
	limits := r.sub("limits", []string{"concurrency", "per_second"})
	number(limits, "concurrency", maxConcurrency, &c.CheckConcurrency)
	number(limits, "per_second", maxPerSecond, &c.ChecksPerSecond)
	c.Guide = r.text("guide", maxGuide)

	if c.EffectWithin > 0 && c.EffectWithin < c.LeaseTotal {
		s.judge(r.where("effect_within"), "recovery.effect_within must be at least lease.total, because the contract allows a call to take that long; raise it to the longest time after which a sent request can still take effect, or shorten lease.total (90s unless given)")
	}
	if c.KeyRetention > 0 && c.Effect != ledger.Keyed && c.Method != ledger.MethodProbe {
		s.judge(r.where("key_retention"), "recovery.key_retention is for targets that deduplicate by key, or are asked by it; write effect: keyed or method: probe, or remove it")
	}
	methods(r, c)
	repeats(r, &c.Contract)
}

// methods judges whether the way to find out fits the tool.
func methods(r section, c *Contract) {
	switch {
	case c.Method != ledger.MethodOperator && c.Effect == ledger.Read:
		r.judge(r.where("method"), "recovery.method is for tools with an effect: a read is simply asked again; remove it")
	case c.Method == ledger.MethodRegrant && c.Effect == ledger.Unsafe:
		r.judge(r.where("method"), "recovery.method regrant sends again without a query, which an unsafe tool cannot bear; write probe or operator")
	case c.Method == ledger.MethodProbe && !r.has("probe"):
		r.judge(r.where("method"), "recovery.probe is missing: how is the target asked? write probe: {http: {...}} or probe: {grpc: {...}}, or probe: external if somebody else asks and reports by Reconcile")
	case c.Method == ledger.MethodRegrant && r.has("probe"):
		r.judge(r.where("probe"), "recovery.probe is not used by method regrant, which sends again without a query; write method: probe, or remove it")
	case r.has("probe") && !r.has("method"): // with method: operator it waits until the owner lets it
		r.judge(r.where("probe"), "recovery.method is missing, so that people settle what is unknown and nobody is asked; write method: probe")
	}
}

// repeats judges whether what the contract repeats without a person can be repeated without a second effect.
func repeats(r section, c *ledger.Contract) {
	byItself := ""
	switch {
	case c.Effect == ledger.Read, c.Method == ledger.MethodRegrant && c.Effect == ledger.Unsafe: // has been told
		return
	case c.Method == ledger.MethodRegrant && c.Repeat != ledger.RepeatDefault:
		r.judge(r.where("repeat_when_absent"), "recovery.repeat_when_absent is for a target that is asked, and method regrant asks nobody; remove it")
		return
	case c.Method == ledger.MethodRegrant:
		byItself = "recovery.method regrant"
	case c.Repeat == ledger.RepeatAllowed && c.Method != ledger.MethodProbe:
		r.judge(r.where("repeat_when_absent"), "recovery.repeat_when_absent needs somebody who can say that it is absent; write method: probe, or remove it")
		return
	case c.Repeat == ledger.RepeatAllowed:
		byItself = "recovery.repeat_when_absent"
	case c.Repeat == ledger.RepeatDefault && c.Method == ledger.MethodProbe && c.Effect != ledger.Unsafe:
		byItself = "a tool that is not unsafe is repeated when absent, which"
	}
	if byItself == "" {
		return
	}
	lands := c.SendWithin + c.EffectWithin
	switch {
	case c.EffectWithin == 0:
		r.judge(r.node, "%s needs recovery.effect_within: nothing that was sent is repeated without a bound on when it can still land; state it, or write repeat_when_absent: false (with regrant: method: operator)", byItself)
	case c.KeyRetention == 0 && c.Effect == ledger.Keyed:
		r.judge(r.node, "%s needs recovery.key_retention for a keyed tool: how long the target remembers a key; state it, or write repeat_when_absent: false (with regrant: method: operator)", byItself)
	case c.KeyRetention == 0:
	case c.Method == ledger.MethodRegrant && c.KeyRetention <= c.LeaseDefault+lands:
		r.judge(r.where("key_retention"), "recovery.key_retention must be longer than lease.default + send_within + effect_within: a repeat begins when a lease is over, and has to land while the target still remembers the key")
	case c.Method == ledger.MethodProbe && c.KeyRetention <= lands+c.CheckTimeout:
		r.judge(r.where("key_retention"), "recovery.key_retention must be longer than send_within + effect_within + checks.timeout: only a check that begins after the first two, and ends while the target still remembers the key, proves that nothing happened")
	}
}

func verify(r section, c *Contract) {
	if !r.has("verify") {
		if c.Method == ledger.MethodProbe {
			r.judge(r.node, "recovery.verify is missing: which categories must the resource that is found show equal? write verify: [amount], or verify: [] if any resource under the key will do")
		}
		return
	}
	c.Verify = r.list("verify", declaredRule, declares(&c.Contract))
	c.VerifyStated = true
	r.said.set("verify", c.Verify) // the empty list is a statement, and differs from silence
	if c.Probe == nil || c.Probe.HTTP == nil || c.Probe.HTTP.says[saysFound] == nil {
		return
	}
	for _, category := range c.Verify {
		lacks := slices.DeleteFunc(shownBy(&c.Contract, category), func(name string) bool { return c.Probe.HTTP.observed[name] != nil })
		if len(lacks) > 0 {
			r.judge(r.where("verify"), "recovery.verify asks for a category of which recovery.probe.http.observed lacks %d of the request's fields, so that nothing found could be complete; observe them, or leave the category out", len(lacks))
		}
	}
}

// probe reads how the target is asked what became of an operation.
func probe(r section, c *Contract) {
	node := r.fields["probe"]
	switch {
	case node == nil:
		return
	case node.Kind == yaml.ScalarNode && node.ShortTag() == "!!str" && node.Value == "external":
		c.Probe = &Probe{External: true}
		r.said.set("probe", "external")
		return
	case node.Kind == yaml.ScalarNode:
		r.fault(node, "%s must be a mapping with http or grpc, or the word external", r.path("probe"))
		return
	}
	p := r.sub("probe", []string{"http", "grpc"})
	c.Probe = &Probe{}
	if onlyOne(p) {
		c.Probe.GRPC = grpcTarget(p)
		c.Probe.HTTP = probeHTTP(p, c)
	}
}

// onlyOne reports whether one way of asking is given, and no second one.
func onlyOne(p section) bool {
	if p.has("http") && p.has("grpc") {
		p.fault(p.node, "%s must have one of http and grpc; remove the other", p.at)
		return false
	}
	return true
}

// grpcTarget reads the address of the owner's EvidenceService.
func grpcTarget(p section) string {
	node := p.fields["grpc"]
	if node == nil {
		return ""
	}
	g := p.sub("grpc", []string{"target"})
	target := g.fields["target"]
	var parts []string
	if target != nil && target.Kind == yaml.ScalarNode && target.ShortTag() == "!!str" {
		parts = targetForm.FindStringSubmatch(target.Value)
	}
	if parts == nil || !goodPort(parts[3]) {
		p.fault(g.where("target"), "%s must be the address of an EvidenceService; write for example target: payments.internal:7443", g.path("target"))
		return ""
	}
	g.said.set("target", target.Value)
	return target.Value
}

func probeHTTP(p section, c *Contract) *Query {
	node := p.fields["http"]
	if node == nil {
		return nil
	}
	h := p.sub("http", []string{
		"url", "headers", "pending", "rejected", "ambiguous", "found", "not_accepted", "not_accepted_final", "not_found", "observed", "result", "next",
	})
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 { // has been told
		return nil
	}
	q := &Query{question: ask(h, c, probePlaces, probePlaces)}
	for i, key := range findings {
		q.says[i] = h.expression(key, answerTerms, asTruth)
	}
	if !h.has("not_found") {
		h.fault(node, "%s is missing: what does the target answer when it has nothing? write for example not_found: \"status == 200 && size(body.data) == 0\"", h.path("not_found"))
	}
	observed(h, q)
	result(h, q)
	q.next = h.expression("next", answerTerms, asReference)
	return q
}

// maxObservations bounds the fields that are observed.
const maxObservations = 64

// observed reads the business fields as the target has them, in the request's own names; created is when it made the resource.
func observed(h section, q *Query) {
	node := h.fields["observed"]
	if node == nil {
		return
	}
	switch {
	case node.Kind != yaml.MappingNode || len(node.Content) == 0 || len(node.Content) > 2*maxObservations:
		h.fault(node, "%s must be a mapping of 1 to %d of the request's fields; write observed: {amount: \"body.amount\"}", h.path("observed"), maxObservations)
		return
	case !h.has("found"):
		h.judge(node, "%s says what the resource that is found shows, and there is no %s; write one, or remove it", h.path("observed"), h.path("found"))
	}
	o := section{reader: h.reader, at: h.path("observed"), node: node, fields: map[string]*yaml.Node{}, said: h.said.sub("observed")}
	q.observed = map[string]*program{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, body := node.Content[i], node.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" || key.Value == "" || len(key.Value) > maxFieldName:
			h.fault(key, "%s must be named by the request's fields; put the name in quotes", o.at)
		case o.has(key.Value):
			h.fault(key, "%s has a field twice; keep one of the two", o.at)
		case key.Value == "created":
			o.fields[key.Value] = body
			q.created = o.expression(key.Value, answerTerms, asTime)
		default:
			o.fields[key.Value] = body
			q.observed[key.Value] = o.expression(key.Value, answerTerms, asValue)
		}
	}
}

// result reads how what is found is named.
func result(h section, q *Query) {
	if !h.has("result") {
		if h.has("found") {
			h.fault(h.fields["found"], "%s is missing: what is found has to be named; write result: {id: \"body.id\"}", h.path("result"))
		}
		return
	}
	r := h.sub("result", []string{"id", "type", "uri", "version", "code"})
	q.id = r.expression("id", answerTerms, asName)
	loose := answerTerms // a type may be the same for all
	loose.evidence = nil
	q.kind = r.expression("type", loose, asName)
	q.uri = r.expression("uri", loose, asName)
	q.version = r.expression("version", answerTerms, asName)
	q.code = r.expression("code", loose, asName)
	switch {
	case !h.has("found"):
		h.judge(r.node, "%s names the resource that is found, and there is no %s; write one, or remove it", r.at, h.path("found"))
	case !r.has("id"):
		h.fault(r.node, "%s is missing: what is found has to be named; write result: {id: \"body.id\"}", r.path("id"))
	}
}

// inspect reads how the target is asked whether a resource is as it was left.
func inspect(r section, c *Contract) {
	node := r.fields["inspect"]
	if node == nil {
		return
	}
	i := r.sub("inspect", []string{"http", "grpc"})
	c.Inspect = &Inspect{}
	if !onlyOne(i) {
		return
	}
	c.Inspect.GRPC = grpcTarget(i)
	if !i.has("http") {
		return
	}
	h := i.sub("http", []string{"url", "headers", "version", "gone"})
	if node := i.fields["http"]; node.Kind != yaml.MappingNode || len(node.Content) == 0 { // has been told
		return
	}
	look := &Look{question: ask(h, c, inspectPlaces, []string{"resource.id"})}
	look.version = h.expression("version", answerTerms, asName)
	look.gone = h.expression("gone", answerTerms, asTruth)
	if !h.has("version") {
		h.fault(h.node, "%s is missing: by what is a changed resource told from an unchanged one? write for example version: \"string(body.revision)\"", h.path("version"))
	}
	c.Inspect.HTTP = look
}

// ask reads what both kinds of HTTP question have. must are the places of which the URL has to have one.
func ask(h section, c *Contract, allowed, must []string) question {
	q := question{headers: headers(h)}
	node := h.fields["url"]
	if node == nil {
		h.fault(h.node, "%s is missing; write for example url: \"https://payments.internal/v1/charges?key={downstream_key}\"", h.path("url"))
		return q
	}
	text := h.text("url", maxAddress)
	if text == "" { // has been told
		return q
	}
	a, places, rule := parseAddress(text, allowed, c.Attributes)
	switch {
	case rule != "":
		h.fault(node, "%s %s", h.path("url"), rule)
		return q
	case !slices.ContainsFunc(places, func(p string) bool { return slices.Contains(must, p) || strings.HasPrefix(p, "attributes.") }):
		h.fault(node, "%s must be filled in by what it asks about; write for example {%s}", h.path("url"), must[0])
		return q
	}
	q.address = a
	if secret := slices.ContainsFunc(q.headers, func(h Header) bool { return h.File != "" || h.Env != "" }); secret && !a.safe() {
		h.judge(node, "%s must begin with https://, or be on this host, because a header holds a secret that would be sent in clear", h.path("url"))
	}
	return q
}

func headers(h section) []Header {
	node := h.fields["headers"]
	if node == nil {
		return nil
	}
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 || len(node.Content) > 2*maxHeaders {
		h.fault(node, "%s must be a mapping of 1 to %d headers; write headers: {authorization: \"${file:/run/secrets/token}\"}", h.path("headers"), maxHeaders)
		return nil
	}
	said := h.said.sub("headers")
	var out []Header
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		header, ok := Header{}, value.Kind == yaml.ScalarNode && value.ShortTag() == "!!str"
		if ok {
			header, ok = parseHeader(key.Value, value.Value)
		}
		switch {
		case key.Kind != yaml.ScalarNode || !headerForm.MatchString(key.Value) || slices.Contains(ownHeaders, key.Value):
			h.fault(key, "%s must be named in lower case, and not one of %s", h.path("headers"), strings.Join(ownHeaders, ", "))
		case slices.ContainsFunc(out, func(other Header) bool { return other.Name == key.Value }):
			h.fault(key, "%s has a header twice; keep one of the two", h.path("headers"))
		case !ok:
			h.fault(value, "%s must say where a value is, not the value, because it may be a secret; write \"${file:/run/secrets/token}\" or \"${env:TOKEN}\" (no LEDGERD_ variable), with Bearer, Basic, Token or ApiKey before it if need be; only %s are written out", h.path("headers"), strings.Join(plainHeaders, ", "))
		default:
			out = append(out, header)
			said.set(key.Value, value.Value)
		}
	}
	slices.SortFunc(out, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	return out
}
