package idrange

import (
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]Set{
		"":                nil,
		"0":               {{0, 0}},
		"0,10-15, 22 ":    {{0, 0}, {10, 15}, {22, 22}},
		"4294967295":      {{4294967295, 4294967295}},
		"5 - 7":           {{5, 7}},
		"1000-4294967294": {{1000, 4294967294}},
	} {
		if got, err := Parse(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
	for _, bad := range []string{"root", "1-", "-1", "5-3", "1-2-3", "4294967296", "1;2"} {
		if got, err := Parse(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func TestSetContainsAndOverlaps(t *testing.T) {
	s := Set{{5, 7}, {0, 0}, {4294967290, 4294967295}}
	var all []uint32
	for i := range s.Len() {
		all = append(all, s.At(i))
	}
	want := []uint32{5, 6, 7, 0, 4294967290, 4294967291, 4294967292, 4294967293, 4294967294, 4294967295}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("the set has %v, want %v", all, want)
	}
	for _, id := range want {
		if !s.Contains(id) {
			t.Errorf("%d is missing", id)
		}
	}
	for _, id := range []uint32{1, 4, 8, 4294967289} {
		if s.Contains(id) {
			t.Errorf("%d is in the set", id)
		}
	}
	for r, want := range map[Range]bool{{1, 4}: false, {1, 5}: true, {6, 6}: true, {7, 9}: true, {8, 9}: false, {0, 9}: true} {
		if got := s.Overlaps(r); got != want {
			t.Errorf("overlap with %v: %v", r, got)
		}
	}
	if Set(nil).Len() != 0 || Set(nil).Contains(0) {
		t.Error("the empty set has ids")
	}
}

func TestJoin(t *testing.T) {
	for text, want := range map[string]Set{
		"":                                    nil,
		"7,5-6,1":                             {{1, 1}, {5, 7}},
		"5-9,6-7,9-12":                        {{5, 12}},
		"4294967295,0-4294967294":             {{0, 4294967295}},
		"10-4294967295,4294967295,4294967294": {{10, 4294967295}},
	} {
		set, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := set.MergeRanges(); !reflect.DeepEqual(got, want) {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}
