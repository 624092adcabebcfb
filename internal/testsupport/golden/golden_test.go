package golden

import "testing"

func TestFirstDifference(t *testing.T) {
	for _, c := range []struct {
		a, b     string
		line     int
		inA, inB string
	}{
		{"a\nb\n", "a\nb\n", 0, "", ""},
		{"a\nb\n", "a\nc\n", 2, "b\n", "c\n"},
		{"a\n", "a\nb\n", 2, "", "b\n"},
		{"a\n", "a", 1, "a\n", "a"},
		{"", "a", 1, "", "a"},
	} {
		if line, inA, inB := firstDifference(c.a, c.b); line != c.line || inA != c.inA || inB != c.inB {
			t.Errorf("%q and %q differ in line %d, %q and %q, want %d, %q and %q", c.a, c.b, line, inA, inB, c.line, c.inA, c.inB)
		}
	}
}
