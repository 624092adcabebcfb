package logfile

import (
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

func FuzzParseArrivalTimes(f *testing.F) {
	f.Add([]byte{0, 5, 1, 7, 9})
	f.Fuzz(func(t *testing.T, content []byte) {
		times := ParseArrivalTimes(content)
		if !slices.IsSortedFunc(times, func(a, b ArrivalTime) int { return int(a.Offset - b.Offset) }) || len(times) > 0 && times[0].Offset < 0 {
			t.Errorf("offsets are not sorted: %v", times)
		}
	})
}
