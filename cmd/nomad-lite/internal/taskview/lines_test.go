package taskview

import (
	"slices"
	"strings"
	"testing"
)

func TestLineBuffer(t *testing.T) {
	long := strings.Repeat("x", maxLineSize)
	for _, c := range []struct {
		name         string
		pieces, want []string
	}{
		{"whole lines are shown at once", []string{"a\nb\n", "c\n"}, []string{"a\nb\n", "c\n"}},
		{"a line is shown when its end is there", []string{"a", "b", "c\n"}, []string{"abc\n"}},
		{"what comes with that end follows", []string{"a", "b\nc\nd"}, []string{"ab\n", "c\n", "d"}},
		{"an end alone", []string{"a", "\n", "\n"}, []string{"a\n", "\n"}},
		{"the last line needs no end", []string{"a\nb"}, []string{"a\n", "b"}},
		{"a line that is too long is cut", []string{"a\n", long, "b\n"}, []string{"a\n", long, "b\n"}},
		{"nothing", nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			show := func(text []byte) { got = append(got, string(text)) }
			var b LineBuffer
			for _, piece := range c.pieces {
				data := []byte(piece)
				b.AddData(data, show)
				clear(data) // a caller of Add reuses the buffer
			}
			b.Flush(show)
			if !slices.Equal(got, c.want) {
				t.Errorf("shown %q, want %q", got, c.want)
			}
		})
	}
}
