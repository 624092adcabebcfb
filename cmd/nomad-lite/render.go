package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// page is the output of a command for a person. Text from an agent goes through its cells,
// which drop sequences that would change the terminal. It is large because each kind of object that
// commands show has its own method.
type page struct {
	text    strings.Builder
	colours bool
}

func (s *streams) page() *page { return &page{colours: s.colours(s.out)} }

// show writes the page to standard output.
func (s *streams) show(p *page) error {
	_, err := io.WriteString(s.out, p.text.String())
	return err
}

// coloredCell is a cell with a colour.
type coloredCell struct{ colour, text string }

const (
	colourBold   = "\x1b[1m"
	colourGreen  = "\x1b[32m"
	colourYellow = "\x1b[33m"
)

// none stands for an empty value, as in Nomad's tables.
const none = "<none>"

// cell returns a value as one line of text.
func (p *page) cell(value any) string {
	colour := ""
	if c, ok := value.(coloredCell); ok {
		colour, value = c.colour, c.text
	}
	text := strings.NewReplacer("\n", " ", "\t", " ").Replace(strings.TrimSpace(string(printable([]byte(fmt.Sprint(value)), false))))
	if text == "" {
		return none
	}
	return p.paint(colour, text)
}

func (p *page) paint(colour, text string) string {
	if colour == "" || !p.colours {
		return text
	}
	return colour + text + colourReset
}

// line adds a line. Its arguments become cells.
func (p *page) line(format string, args ...any) {
	for i, arg := range args {
		switch arg.(type) {
		case string, coloredCell, fmt.Stringer, error:
			args[i] = p.cell(arg)
		}
	}
	fmt.Fprintf(&p.text, format+"\n", args...)
}

// section adds the title of a new part.
func (p *page) section(title string) {
	if p.text.Len() > 0 {
		p.text.WriteByte('\n')
	}
	p.text.WriteString(p.paint(colourBold, title) + "\n")
}

// table is rows of cells in aligned columns.
type table struct {
	head []string
	rows [][]any
}

func newTable(head ...string) *table { return &table{head: head} }

func (t *table) row(cells ...any) { t.rows = append(t.rows, cells) }

// pairs are rows of two cells, aligned at an equals sign.
type pairs [][2]any

func (p *page) table(t *table) { p.indented("", t) }

// indented adds a table with a prefix on each line.
func (p *page) indented(indent string, t *table) {
	rows := make([][]string, 0, len(t.rows)+1)
	if t.head != nil {
		head := make([]string, len(t.head))
		for i, title := range t.head {
			head[i] = p.paint(colourBold, title)
		}
		rows = append(rows, head)
	}
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, value := range row {
			cells[i] = p.cell(value)
		}
		rows = append(rows, cells)
	}
	p.align(indent, "  ", rows)
}

func (p *page) pairs(all pairs) {
	rows := make([][]string, len(all))
	for i, pair := range all {
		rows[i] = []string{p.paint(colourBold, fmt.Sprint(pair[0])), p.cell(pair[1])}
	}
	p.align("", " = ", rows)
}

func (p *page) align(indent, gap string, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	for _, row := range rows {
		p.text.WriteString(indent)
		for i, cell := range row {
			p.text.WriteString(cell)
			if i < len(row)-1 {
				p.text.WriteString(strings.Repeat(" ", widths[i]-width(cell)) + gap)
			}
		}
		p.text.WriteByte('\n')
	}
}

// tableOr adds a table, or the line nothing if the table is empty.
func (p *page) tableOr(t *table, nothing string) {
	if len(t.rows) == 0 {
		p.line("%s", nothing)
		return
	}
	p.table(t)
}

func sortedPairs(m map[string]string) pairs {
	var all pairs
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, [2]any{name, m[name]})
	}
	return all
}

// names returns the keys of a map, sorted.
func names[T any](m map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ", ")
}

// statusCell returns a status in its colour.
func statusCell(text string) coloredCell {
	word, _, _ := strings.Cut(text, " ")
	switch word {
	case "running", "successful", "complete", "ready", "passing", "success", "true":
		return coloredCell{colourGreen, text}
	case "failed", "lost", "down", "critical", "failing", "failure", "unknown":
		return coloredCell{colourRed, text}
	case "pending", "blocked", "paused", "initializing", "disconnected", "ineligible":
		return coloredCell{colourYellow, text}
	}
	return coloredCell{"", text}
}

// shortID returns an id for display: its first eight characters are enough for a person,
// and for each command that takes an id.
func shortID(id string, verbose bool) string {
	if verbose {
		return id
	}
	return short(id)
}

// short returns the first eight characters of an id.
func short(id string) string { return id[:min(8, len(id))] }

// counted returns a number and its noun.
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// date formats a point in time of the API, in nanoseconds.
func date(nanoseconds int64) string {
	if nanoseconds == 0 {
		return "N/A"
	}
	return time.Unix(0, nanoseconds).Format(time.RFC3339)
}

// when formats a point in time as its distance from now, or with -verbose as a date.
func when(nanoseconds int64, verbose bool) string {
	if verbose || nanoseconds == 0 {
		return date(nanoseconds)
	}
	return ago(time.Since(time.Unix(0, nanoseconds)))
}

// ago formats a duration in its two largest units.
func ago(d time.Duration) string {
	suffix := " ago"
	if d < 0 {
		d, suffix = -d, " from now"
	}
	return span(d) + suffix
}

func span(d time.Duration) string {
	const day = 24 * time.Hour
	d = d.Truncate(time.Second)
	var parts []string
	for _, unit := range []struct {
		name string
		size time.Duration
	}{{"y", 365 * day}, {"mo", 30 * day}, {"d", day}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if n := d / unit.size; n > 0 {
			parts = append(parts, fmt.Sprintf("%d%s", n, unit.name))
			d -= n * unit.size
		} else if len(parts) > 0 {
			break
		}
		if len(parts) == 2 {
			break
		}
	}
	if parts == nil {
		return "0s"
	}
	return strings.Join(parts, "")
}

func percent(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) + "%" }
