package logfile

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// describeArrivalTimes formats arrival times as "offset@milliseconds".
func describeArrivalTimes(times []ArrivalTime) string {
	var all []string
	for _, at := range times {
		all = append(all, fmt.Sprintf("%d@%d", at.Offset, at.Time.UnixMilli()))
	}
	return strings.Join(all, " ")
}

func TestArrivalTimes(t *testing.T) {
	t.Parallel()
	at := func(offset, milliseconds int64) ArrivalTime {
		return ArrivalTime{Offset: offset, Time: time.UnixMilli(milliseconds)}
	}
	encode := func(times ...ArrivalTime) []byte {
		var b []byte
		var previous ArrivalTime
		for _, next := range times {
			b = AppendArrivalTime(b, previous, next)
			previous = next
		}
		return b
	}
	const start = 1_700_000_000_000
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":                        {nil, ""},
		"from the start on":            {encode(at(0, start), at(40, start+1), at(5_000_000_000, start+9_000_000)), "0@1700000000000 40@1700000000001 5000000000@1700009000000"},
		"continued by another process": {append(encode(at(0, start)), encode(at(40, start+1))...), "0@1700000000000 40@1700000000001"},
		"a clock that was set back":    {encode(at(0, start), at(40, start-5)), "0@1700000000000 40@1699999999995"},
		"a truncated log file":         {encode(at(0, start), at(40, start+1), at(10, start+2)), "0@1700000000000 10@1700000000002"},
		"a partial record at the end":  {append(encode(at(0, start)), 0x85), "0@1700000000000"},
		"a partial record, continued":  {append(append(encode(at(0, start)), 0x85, 0x01, 0x85), encode(at(40, start+1))...), "0@1700000000000 40@1700000000001"},
		"a start without zero":         {append([]byte{5, 5}, encode(at(0, start))...), "0@1700000000000"},
		"values that no process stores": {append(append([]byte{0}, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0x01),
			encode(at(0, start))...), "0@1700000000000"},
	} {
		if got := describeArrivalTimes(ParseArrivalTimes(test.content)); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
	times := []ArrivalTime{at(5, 1), at(9, 2)}
	for offset, want := range map[int64]int64{4: -1, 5: 1, 8: 1, 9: 2, 1000: 2} {
		got := int64(-1)
		if found, ok := FindArrivalTime(times, offset); ok {
			got = found.UnixMilli()
		}
		if got != want {
			t.Errorf("byte %d arrived at %d, want %d", offset, got, want)
		}
	}
}

// parseSplitAtZeros parses a file of arrival times from the definition of its format, without a decoder.
func parseSplitAtZeros(content []byte) (times []ArrivalTime) {
	_, content, _ = bytes.Cut(content, []byte{0})
	for part := range bytes.SplitSeq(content, []byte{0}) {
		milliseconds, offset := int64(0), int64(-1)
		for len(part) > 0 {
			elapsed, n := binary.Uvarint(part)
			moved, m := binary.Uvarint(part[max(n, 0):])
			if n <= 0 || m <= 0 || elapsed >= 1<<53 || moved >= 1<<53 {
				break
			}
			part = part[n+m:]
			milliseconds, offset = milliseconds+int64(elapsed), offset+int64(moved)
			if max(milliseconds, offset) >= 1<<53 {
				break
			}
			times = slices.DeleteFunc(times, func(at ArrivalTime) bool { return at.Offset >= offset })
			times = append(times, ArrivalTime{offset, time.UnixMilli(milliseconds)})
		}
	}
	return times
}

// FuzzArrivalTimes checks that a decoder which gets a file in pieces finds the same records as one that gets it whole, and as
// the definition of the format.
func FuzzArrivalTimes(f *testing.F) {
	f.Add([]byte{0, 5, 1, 7, 9}, uint8(1))
	f.Add([]byte{5, 0, 5, 1, 0x85, 0, 7, 9, 0, 0, 0, 0x85, 0x80, 0, 3, 3, 4, 4, 0x85}, uint8(3))
	f.Add(append(bytes.Repeat([]byte{0xff}, 30), 0, 9, 9), uint8(7))
	f.Add(append([]byte{0}, append(bytes.Repeat([]byte{0xff}, 9), 1, 0, 9, 9, 1, 1)...), uint8(2))
	f.Fuzz(func(t *testing.T, content []byte, pieceSize uint8) {
		times := ParseArrivalTimes(content)
		if !slices.IsSortedFunc(times, func(a, b ArrivalTime) int { return cmp.Compare(a.Offset, b.Offset) }) || len(times) > 0 && times[0].Offset < 0 {
			t.Errorf("offsets are not sorted: %v", times)
		}
		if got, want := describeArrivalTimes(times), describeArrivalTimes(parseSplitAtZeros(content)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		var d ArrivalTimeDecoder
		var pieces []ArrivalTime
		var undecoded []byte
		for piece := range slices.Chunk(content, int(pieceSize)+1) {
			undecoded = append(undecoded, piece...)
			for {
				at, n, ok := d.Next(undecoded)
				if n == 0 {
					break
				}
				undecoded = undecoded[n:]
				if ok {
					pieces = slices.DeleteFunc(pieces, func(earlier ArrivalTime) bool { return earlier.Offset >= at.Offset })
					pieces = append(pieces, at)
				}
			}
		}
		if got, want := describeArrivalTimes(pieces), describeArrivalTimes(times); got != want {
			t.Errorf("in pieces of %d bytes: got %s, want %s", int(pieceSize)+1, got, want)
		}
	})
}
