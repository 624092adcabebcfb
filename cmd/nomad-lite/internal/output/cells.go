package output

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// EmptyCell stands for an empty value, as in Nomad's tables.
const EmptyCell = "<none>"

// BlankCell is a cell without text. An empty text, in contrast, is shown as EmptyCell.
const BlankCell = blank("")

type blank string

// ColoredCell is a cell with a colour.
type ColoredCell struct{ Colour, Text string }

// StatusCell returns a status in its colour.
func StatusCell(text string) ColoredCell {
	word, _, _ := strings.Cut(text, " ")
	switch word {
	case "running", "successful", "complete", "ready", "passing", "success", "true":
		return ColoredCell{terminal.ColourGreen, text}
	case "failed", "lost", "down", "critical", "failing", "failure", "unknown":
		return ColoredCell{terminal.ColourRed, text}
	case "pending", "blocked", "paused", "initializing", "disconnected", "ineligible":
		return ColoredCell{terminal.ColourYellow, text}
	}
	return ColoredCell{"", text}
}

// ShortID returns the first eight characters of an id, which all commands accept as an id, or the
// whole id if verbose is set.
func ShortID(id string, verbose bool) string {
	if verbose {
		return id
	}
	return TruncateID(id)
}

// TruncateID returns the first eight characters of an id.
func TruncateID(id string) string { return id[:min(8, len(id))] }

// FormatCount returns a number and its noun.
func FormatCount(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// JoinKeys returns the keys of a map, sorted.
func JoinKeys[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// FormatDate formats a point in time of the API, in nanoseconds.
func FormatDate(nanoseconds int64) string {
	if nanoseconds == 0 {
		return "N/A"
	}
	return time.Unix(0, nanoseconds).Format(time.RFC3339)
}

// FormatTimestamp formats a time of a task.
func FormatTimestamp(t time.Time) string {
	if t.IsZero() {
		return "N/A"
	}
	return FormatDate(t.UnixNano())
}

// FormatAge formats a point in time as its distance from now, or with -verbose as a date.
func FormatAge(nanoseconds int64, verbose bool) string {
	if verbose || nanoseconds == 0 {
		return FormatDate(nanoseconds)
	}
	return FormatRelativeTime(time.Since(time.Unix(0, nanoseconds)))
}

// FormatRelativeTime formats a duration in its two largest units.
func FormatRelativeTime(d time.Duration) string {
	suffix := " ago"
	if d < 0 {
		d, suffix = -d, " from now"
	}
	return FormatDuration(d) + suffix
}

// FormatDuration formats a duration in its two largest units.
func FormatDuration(d time.Duration) string {
	const day = 24 * time.Hour
	d = d.Truncate(time.Second)
	var unitParts []string
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"y", 365 * day}, {"mo", 30 * day}, {"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if n := d / unit.size; n > 0 {
			unitParts = append(unitParts, fmt.Sprintf("%d%s", n, unit.name))
			d -= n * unit.size
		} else if len(unitParts) > 0 {
			break
		}
		if len(unitParts) == 2 {
			break
		}
	}
	if unitParts == nil {
		return "0s"
	}
	return strings.Join(unitParts, "")
}

// FormatPercent formats a number of percent.
func FormatPercent(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) + "%" }

// FormatBytes formats a number of bytes.
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

// FormatMebibytes formats a number of mebibytes.
func FormatMebibytes(n int64) string { return FormatBytes(uint64(max(n, 0)) << 20) }
