package output

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/duration"
)

// EmptyCell is shown in place of an empty value, as in Nomad's tables.
const EmptyCell = "<none>"

// BlankCell is shown as a cell without text. An empty string, in contrast, is shown as EmptyCell.
const BlankCell = blankCell("")

type blankCell string

// ColouredCell is a cell with a colour.
type ColouredCell struct{ ColourEscape, Text string }

// StatusCell returns a cell with a status in the colour that its first word has: green for good, red for bad, yellow
// for intermediate states.
func StatusCell(text string) ColouredCell {
	word, _, _ := strings.Cut(text, " ")
	switch word {
	case "running", "successful", "complete", "ready", "passing", "success", "true":
		return ColouredCell{terminal.ColourGreen, text}
	case "failed", "lost", "down", "critical", "failing", "failure", "unknown":
		return ColouredCell{terminal.ColourRed, text}
	case "pending", "blocked", "paused", "initializing", "disconnected", "ineligible":
		return ColouredCell{terminal.ColourYellow, text}
	}
	return ColouredCell{"", text}
}

// ShortIDUnlessVerbose returns the first eight characters of an id, which all commands accept as an id, or the
// whole id if verbose is set.
func ShortIDUnlessVerbose(id string, verbose bool) string {
	if verbose {
		return id
	}
	return TruncateID(id)
}

// TruncateID returns the first eight characters of an id.
func TruncateID(id string) string { return id[:min(8, len(id))] }

// FormatCount returns "1 task" or "3 tasks": the noun gets an s unless n is 1.
func FormatCount(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// JoinSortedKeys returns the sorted keys of a map, separated by commas.
func JoinSortedKeys[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// FormatDate formats a point in time of the API, in nanoseconds since 1970, or returns "N/A" for 0.
func FormatDate(unixNanos int64) string {
	if unixNanos == 0 {
		return "N/A"
	}
	return time.Unix(0, unixNanos).Format(time.RFC3339)
}

// FormatTimestamp formats a point in time in local time, or returns "N/A" for the zero time.
func FormatTimestamp(t time.Time) string {
	if t.IsZero() {
		return "N/A"
	}
	return FormatDate(t.UnixNano())
}

// FormatAgeUnlessVerbose formats a point in time as its distance from now, or with -verbose as a date.
func FormatAgeUnlessVerbose(unixNanos int64, verbose bool) string {
	if verbose || unixNanos == 0 {
		return FormatDate(unixNanos)
	}
	return FormatRelativeTime(time.Since(time.Unix(0, unixNanos)))
}

// FormatRelativeTime formats a time that is age before now, such as "1h5m ago". A negative age is a time after now,
// such as "1h5m from now".
func FormatRelativeTime(age time.Duration) string {
	suffix := " ago"
	if age < 0 {
		age, suffix = -age, " from now"
	}
	return FormatDuration(age) + suffix
}

// FormatDuration formats whole seconds in their two largest units, such as "1h5m".
func FormatDuration(d time.Duration) string { return duration.Format(d.Truncate(time.Second)) }

// FormatPercent formats a percentage with two decimals.
func FormatPercent(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) + "%" }

// FormatBytes formats a number of bytes in the largest binary unit that it reaches, such as "1.5 MiB".
func FormatBytes(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	value, unit := float64(n), 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 || value >= 10 {
		return fmt.Sprintf("%.0f %s", value, units[unit])
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// FormatMebibytes formats a number of mebibytes as FormatBytes does. A negative number counts as 0.
func FormatMebibytes(n int64) string { return FormatBytes(uint64(max(n, 0)) << 20) }
