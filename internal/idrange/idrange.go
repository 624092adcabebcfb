// Package idrange implements sets of user and group ids, and their text in
// configurations: "0,10-15,22".
package idrange

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Range is a range of user or group ids, including First and Last.
type Range struct {
	First, Last uint32
}

// Set is a set of user or group ids: the union of ranges. The zero value is empty.
type Set []Range

// Parse parses ids and ranges of ids, separated by commas. The empty text is the empty
// set.
func Parse(text string) (Set, error) {
	var set Set
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err := strconv.ParseUint(strings.TrimSpace(from), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an id nor a range of ids", part)
		}
		last, err := strconv.ParseUint(strings.TrimSpace(to), 10, 32)
		if err != nil || last < first {
			return nil, fmt.Errorf("%q is neither an id nor a range of ids", part)
		}
		set = append(set, Range{uint32(first), uint32(last)})
	}
	return set, nil
}

// Contains reports whether the set contains the id.
func (s Set) Contains(id uint32) bool { return s.Overlaps(Range{id, id}) }

// Overlaps reports whether the set and a range have an id in common.
func (s Set) Overlaps(other Range) bool {
	for _, r := range s {
		if r.First <= other.Last && other.First <= r.Last {
			return true
		}
	}
	return false
}

// MergeRanges returns a set of the same ids with as few ranges as possible, sorted.
func (s Set) MergeRanges() Set {
	sorted := slices.SortedFunc(slices.Values(s), func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var joined Set
	for _, r := range sorted {
		if n := len(joined) - 1; n >= 0 && uint64(r.First) <= uint64(joined[n].Last)+1 {
			joined[n].Last = max(joined[n].Last, r.Last)
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// Len returns the number of ids in all ranges. An id in two ranges counts twice.
func (s Set) Len() uint64 {
	var n uint64
	for _, r := range s {
		n += uint64(r.Last-r.First) + 1
	}
	return n
}

// At returns the id with the index i, which must be less than Len. The ids have the order of the ranges.
func (s Set) At(i uint64) uint32 {
	for _, r := range s {
		n := uint64(r.Last-r.First) + 1
		if i < n {
			return r.First + uint32(i)
		}
		i -= n
	}
	panic(fmt.Sprintf("index beyond the %d ids of the set", s.Len()))
}
