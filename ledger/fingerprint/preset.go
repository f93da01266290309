// SPDX-License-Identifier: Apache-2.0

package fingerprint

// addDefaults adds to the object at an offset those members that are absent and
// have a default. It reports whether there are any.
func (p *parser) addDefaults(at *place, offset int) (added bool) {
	for _, below := range at.absent {
		if p.marks[below.mark-1] == offset+1 {
			continue
		}
		if !added {
			added = true
			p.flush()
		}
		begin := p.written()
		p.preset(below, offset)
		if p.added += int(p.written() - begin); p.added > MaxSize && p.fault == nil {
			p.fails(RuleDefaults, offset)
		}
		if p.fault != nil {
			return added
		}
		name := len(p.scratch)
		p.scratch = append(p.scratch, below.path.last()...)
		p.children = append(p.children, child{name: spanOf(name, len(p.scratch), true), begin: begin, end: p.written(), offset: int32(offset)})
	}
	return added
}

// preset writes a member that is absent: with its default, or as an object of the
// defaults below it.
func (p *parser) preset(at *place, offset int) {
	p.out = append(appendQuoted(p.out, []byte(at.path.last())), ':')
	if !at.hasDefault() {
		pending := len(p.pending)
		p.out = append(p.out, '{')
		for i, below := range at.absent { // in their order
			if i > 0 {
				p.out = append(p.out, ',')
			}
			p.preset(below, offset)
		}
		p.out = append(p.out, '}')
		p.findCurrencies(at, offset, pending)
		return
	}
	p.out = append(p.out, at.preset...)
	if at.anchor != nil && at.preset[0] != 'n' {
		p.pending = append(p.pending, amount{at: at, places: decimalPlaces(at.preset), offset: offset, preset: true})
	}
	if at.isCurrency > 0 {
		p.currencyText(at, at.preset, offset)
	}
}
