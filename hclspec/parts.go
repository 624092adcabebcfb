package hclspec

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// Part is an argument or a block of a body, as a Spec describes it. For hosts only.
type Part struct {
	Name        string
	Spec        *Spec  // its kind is KindAttr or one of the kinds of blocks
	DefaultText string // value of the part if it is absent; "" if the Spec has none
	isDefault   bool   // the value of the part is the default of another part
}

// Parts returns the arguments and blocks of the body that s describes: the arguments first, each sorted by name.
// It omits a part without a name, which block.Decode rejects. If several parts have one name, it returns the first of them that
// is not the default of another part, or else the first. For hosts only.
func (s *Spec) Parts() (arguments, blocks []Part) {
	all := s.appendParts(nil, "", MaxDepth)
	sort.SliceStable(all, func(i, j int) bool { return !all[i].isDefault && all[j].isDefault })
	for _, p := range all {
		list := &blocks
		if p.Spec.kind == KindAttr {
			list = &arguments
		}
		isSame := func(known Part) bool { return known.Name == p.Name }
		if p.Name != "" && !slices.ContainsFunc(*list, isSame) {
			*list = append(*list, p)
		}
	}
	for _, list := range [][]Part{arguments, blocks} {
		sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	}
	return arguments, blocks
}

// appendParts appends the arguments and blocks of s. key is the name of s if s is an argument or a block without a name.
func (s *Spec) appendParts(parts []Part, key string, depth int) []Part {
	if s == nil || depth == 0 {
		return parts
	}
	switch s.kind {
	case KindObject:
		for _, key := range slices.Sorted(maps.Keys(s.attributes)) {
			parts = s.attributes[key].appendParts(parts, key, depth-1)
		}
	case KindArray:
		for _, value := range s.values {
			parts = value.appendParts(parts, "", depth-1)
		}
	case KindDefault:
		first := len(parts)
		parts = s.nested.appendParts(parts, "", depth-1)
		if len(parts) > first && parts[first].DefaultText == "" {
			parts[first].DefaultText = s.defaultSpec.defaultText()
		}
		second := len(parts)
		parts = s.defaultSpec.appendParts(parts, "", depth-1)
		for i := range parts[second:] {
			parts[second+i].isDefault = true
		}
	case KindAttr, KindBlock, KindBlockAttrs, KindBlockList, KindBlockSet, KindBlockMap:
		parts = append(parts, Part{Name: cmp.Or(s.name, key), Spec: s})
	}
	return parts
}

// defaultText returns a text in one line for the default value that s describes, or "" if it describes none.
func (s *Spec) defaultText() string {
	switch {
	case s == nil:
		return ""
	case s.kind == KindLiteral:
		return strings.Join(strings.Fields(s.typeOrLiteral), " ")
	case s.kind == KindDefault:
		return s.nested.defaultText()
	case s.name != "":
		return "the value of " + s.name
	}
	return ""
}

// blockLimits returns the minimum and the maximum number of occurrences of a block; a max of 0 means no limit.
func (s *Spec) blockLimits() (min, max uint64) {
	switch s.kind {
	case KindBlock, KindBlockAttrs:
		if s.required {
			return 1, 1
		}
		return 0, 1
	case KindBlockList, KindBlockSet:
		return s.minBlocks, s.maxBlocks
	}
	return 0, 0
}

// describeLimits returns a text for the number of occurrences that a block can have, such as "at least 2".
func (s *Spec) describeLimits() string {
	switch min, max := s.blockLimits(); {
	case min == 1 && max == 1:
		return "required"
	case max == 1:
		return "optional"
	case min == 0 && max == 0:
		return "any number"
	case max == 0:
		return "at least " + strconv.FormatUint(min, 10)
	case min == 0:
		return "at most " + strconv.FormatUint(max, 10)
	default:
		return strconv.FormatUint(min, 10) + " to " + strconv.FormatUint(max, 10)
	}
}
