package acl

import (
	"cmp"
	"slices"
	"strings"
)

// labels maps labels to capabilities. Of the labels that match a name, the exact one counts; without it, the pattern with the
// most characters besides *, and among patterns with equally many the last in byte order.
type labels struct {
	exact    map[string]capabilitySet
	patterns []pattern     // the first that matches counts
	granted  capabilitySet // the capabilities of all labels together
}

// pattern is a label with the wildcard *.
type pattern struct {
	label string
	parts []string // the texts around the wildcards
	set   capabilitySet
}

// newLabels sorts capabilities by label.
func newLabels(sets map[string]capabilitySet) labels {
	l := labels{exact: make(map[string]capabilitySet)}
	for label, set := range sets {
		l.granted |= set
		if !strings.Contains(label, "*") {
			l.exact[label] = set
			continue
		}
		l.patterns = append(l.patterns, newPattern(label, set))
	}
	slices.SortFunc(l.patterns, func(a, b pattern) int {
		return cmp.Or(cmp.Compare(b.literalLength(), a.literalLength()), strings.Compare(b.label, a.label))
	})
	return l
}

// literalLength returns how many characters of the label are not wildcards.
func (p pattern) literalLength() int { return len(p.label) - (len(p.parts) - 1) }

func newPattern(label string, set capabilitySet) pattern {
	return pattern{label, strings.Split(label, "*"), set}
}

// matches reports whether a name has the texts of the label around its wildcards. A label without a wildcard matches its own text.
func (p pattern) matches(name string) bool {
	if len(p.parts) == 1 {
		return name == p.label
	}
	first, last := p.parts[0], p.parts[len(p.parts)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	rest := name[len(first) : len(name)-len(last)]
	for _, part := range p.parts[1 : len(p.parts)-1] {
		var found bool
		if _, rest, found = strings.Cut(rest, part); !found {
			return false
		}
	}
	return true
}

// find returns the capabilities of the label that counts for a name, or none.
func (l labels) find(name string) capabilitySet {
	if set, found := l.exact[name]; found {
		return set
	}
	for _, p := range l.patterns {
		if p.matches(name) {
			return p.set
		}
	}
	return 0
}

// anyHas reports whether one of the labels has one of the capabilities.
func (l labels) anyHas(capabilities []Capability) bool { return l.granted&setOf(capabilities) != 0 }

// anyGrants reports whether one of the labels has a capability.
func (l labels) anyGrants() bool { return l.granted != 0 }

// labelMerger collects the capabilities of equal labels.
type labelMerger map[string]capabilitySet

// add gives a label the capabilities of a rule.
func (m labelMerger) add(label string, capabilities []Capability) { m[label] |= setOf(capabilities) }

// labels returns the labels, without rights for a label with Deny.
func (m labelMerger) labels() labels {
	for label, set := range m {
		if set.hasAny([]Capability{Deny}) {
			m[label] = 0
		}
	}
	return newLabels(m)
}
