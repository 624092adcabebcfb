package duration

import (
	"strconv"
	"time"
)

const day = 24 * time.Hour

var units = []struct {
	size time.Duration
	name string
}{{365 * day, "y"}, {30 * day, "mo"}, {day, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}}

// Format returns a duration below a minute rounded to three digits, and a longer one cut after its two largest units:
// "0.05ms", "250ms", "4.21s", "5m12s", "3d". A negative duration counts as 0.
func Format(d time.Duration) string {
	if d < time.Minute {
		precision := time.Microsecond
		for d >= 1000*precision {
			precision *= 10
		}
		d = max(d, 0).Round(precision)
	}
	switch {
	case d == 0:
		return "0s"
	case d < time.Second:
		return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', -1, 64) + "ms"
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
	}
	i := 0
	for d < units[i].size {
		i++
	}
	text := strconv.Itoa(int(d/units[i].size)) + units[i].name
	if second := units[i+1]; d%units[i].size >= second.size {
		text += strconv.Itoa(int(d%units[i].size/second.size)) + second.name
	}
	return text
}
