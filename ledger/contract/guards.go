// SPDX-License-Identifier: Apache-2.0

package contract

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/opsledger/opsledger/ledger"
)

// declares reports whether a category is one that the contract's fields have.
func declares(c *ledger.Contract) func(category string) bool {
	return func(category string) bool {
		return slices.Contains(c.Categories(), category)
	}
}

// unique reads one rule, or a list of them.
func unique(s section, c *ledger.Contract) {
	node := s.fields["unique"]
	if node == nil {
		return
	}
	rules := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		rules = node.Content
	}
	if len(rules) == 0 || len(rules) > maxRules {
		s.fault(node, "unique must be a rule or a list of 1 to %d; write unique: {by: [amount, recipient], within: 10m}", maxRules)
		return
	}
	said := make([]*object, 0, len(rules))
	for i, rule := range rules {
		r := s.section(rule, "unique", &object{}, []string{"by", "within", "override"})
		if rule.Kind != yaml.MappingNode || len(rule.Content) == 0 { // has been told
			continue
		}
		u := ledger.UniqueRule{By: r.list("by", declaredRule, declares(c))}
		r.duration("within", &u.Within)
		override := []ledger.Override{ledger.OverrideApproval, ledger.OverrideCaller}[r.choice("override", "approval", "caller")]
		switch {
		case !r.has("by") || len(r.fields["by"].Content) == 0:
			s.fault(r.where("by"), "unique.by must name at least one category; write by: [amount, recipient]")
		case !r.has("within"):
			s.fault(rule, "unique.within is missing: for how long are look-alikes refused after one has completed? write within: 10m")
		case slices.ContainsFunc(c.Unique, func(other ledger.UniqueRule) bool { return slices.Equal(other.By, u.By) }):
			s.fault(rule, "unique has two rules by the same categories; keep one of the two")
		case i > 0 && override != c.Override:
			s.fault(r.where("override"), "unique.override must be the same in every rule: it is one word on who lifts a refusal")
		default:
			c.Unique = append(c.Unique, u)
			c.Override = override
			said = append(said, r.said)
		}
	}
	// Their order says nothing.
	slices.SortFunc(c.Unique, func(a, b ledger.UniqueRule) int { return slices.Compare(a.By, b.By) })
	slices.SortFunc(said, func(a, b *object) int { return slices.Compare(a.values["by"].([]string), b.values["by"].([]string)) })
	s.said.set("unique", said)
}

func answers(s section, c *ledger.Contract) {
	a := s.sub("answers", []string{"declined", "invalid", "sticky"})
	declined := a.list("declined", wordRule, wordForm.MatchString)
	invalid := a.list("invalid", wordRule, wordForm.MatchString)
	if slices.ContainsFunc(invalid, func(code string) bool { return slices.Contains(declined, code) }) {
		s.judge(a.where("invalid"), "answers.declined and answers.invalid share a code; keep it in one of the two")
	}
	c.RejectCodes = slices.Sorted(slices.Values(slices.Concat(declined, invalid)))
	a.boolean("sticky", &c.StickyAnswers)
	if c.StickyAnswers && len(c.RejectCodes) == 0 {
		s.judge(a.where("sticky"), "answers.sticky needs codes that stick; write answers: {declined: [code], sticky: true}")
	}
}

func replay(s section, c *Contract) {
	r := s.sub("replay", []string{"rule", "schemas", "payload_limit", "result_attributes"})
	c.Schemas = r.list("schemas", wordRule, wordForm.MatchString)
	r.size("payload_limit", maxPayload, &c.PayloadLimit)
	c.ResultAttributes = r.list("result_attributes", wordRule, wordForm.MatchString)
	if p := r.expression("rule", replayTerms, asTruth); p != nil {
		c.Replay = &Rule{p}
	}
}

// compensation says which tool undoes what this one did.
func compensation(s section, c *Contract) {
	node := s.fields["compensation"]
	if node == nil {
		return
	}
	r := s.sub("compensation", []string{"tool", "require_unchanged", "fresh_for", "per_original"})
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 { // has been told
		return
	}
	r.boolean("require_unchanged", &c.undone.requireUnchanged)
	r.duration("fresh_for", &c.undone.freshFor)
	number(r, "per_original", maxStarts, &c.undone.perOriginal)
	c.compensationAt = r.where("tool")
	tool := r.fields["tool"]
	switch {
	case tool == nil:
		s.fault(node, "compensation.tool is missing: which tool undoes what this one did? write compensation: {tool: payments.refund}")
	case tool.Kind != yaml.ScalarNode || tool.ShortTag() != "!!str" || !toolForm.MatchString(tool.Value):
		s.fault(tool, "compensation.tool must be %s", toolRule)
	case tool.Value == string(c.Tool):
		s.fault(tool, "compensation.tool must be another tool: doing it again does not undo it")
	default:
		c.Compensation = ledger.Tool(tool.Value)
		r.said.set("tool", tool.Value)
	}
	switch {
	case c.Irreversible:
		s.judge(node, "compensation is for what can be undone, and the tool is irreversible; remove one of the two (what is irreversible is corrected, with approval)")
	case c.undone.requireUnchanged && c.Inspect == nil:
		s.judge(r.where("require_unchanged"), "compensation.require_unchanged needs recovery.inspect, which asks whether the resource is still as it was left; write one, or require_unchanged: false")
	case c.undone.freshFor < time.Second:
		s.judge(r.where("fresh_for"), "compensation.fresh_for must be at least 1s: the compensation has to be claimed while the look at its resource counts")
	}
}

// people reads what takes a person's word.
func people(s section, c *ledger.Contract) {
	a := s.sub("approval", []string{"corrections", "expires"})
	a.boolean("corrections", &c.ApproveCorrections)
	a.duration("expires", &c.ApprovalExpires)
	if c.Irreversible && !c.ApproveCorrections {
		s.judge(a.where("corrections"), "approval.corrections must be true for an irreversible tool: a correction is all that can follow, and it can't be undone either")
	}
	r := s.sub("resolve", []string{"second_person", "proposal_expires"})
	r.boolean("second_person", &c.SecondPerson)
	r.duration("proposal_expires", &c.ProposalExpires)
}

// harmless judges what makes no sense for a tool without an effect: it is asked again, and that is all.
func harmless(s section, c *Contract) {
	if c.Effect != ledger.Read {
		return
	}
	for _, key := range []string{"unique", "compensation", "irreversible", "max_unknown"} {
		if s.has(key) && !(key == "irreversible" && !c.Irreversible) {
			s.judge(s.where(key), "%s is for tools with an effect, and the tool is declared as read; remove it, or declare the effect that it has", key)
		}
	}
}
