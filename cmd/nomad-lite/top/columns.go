package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// cell is the text of a row in a column. The text can come from the agent and is not safe for a terminal.
type cell struct{ colour, text string }

// column is a column of the table.
type column struct {
	title      string
	minWidth   int
	maxWidth   int // the last column of a screen has no maximum
	rightAlign bool
	cell       func(row, totals, time.Time) cell
}

// The columns in the order on the screen.
const (
	nameColumn = iota
	stateColumn
	cpuColumn
	memoryColumn
	restartsColumn
	uptimeColumn
	portsColumn
	eventColumn
)

var columns = []column{
	nameColumn:     {"NAME", 14, 40, false, func(r row, _ totals, _ time.Time) cell { return cell{"", r.name()} }},
	stateColumn:    {"STATE", 8, 8, false, func(r row, _ totals, _ time.Time) cell { return stateCell(r.state()) }},
	cpuColumn:      {"MHZ", 5, 6, true, cpuCell},
	memoryColumn:   {"MEMORY", 8, 8, true, memoryCell},
	restartsColumn: {"RESTARTS", 8, 8, true, func(r row, t totals, _ time.Time) cell { return cell{"", fmt.Sprint(t.restarts)} }},
	uptimeColumn:   {"UPTIME", 7, 7, true, uptimeCell},
	portsColumn:    {"PORTS", 28, 28, false, portsCell},
	eventColumn:    {"LAST EVENT", 16, 0, false, eventCell},
}

// columnPriority is the order in which columns are left out of a narrow terminal, the last one first.
var columnPriority = []int{nameColumn, stateColumn, cpuColumn, memoryColumn, eventColumn, uptimeColumn, restartsColumn, portsColumn}

// placedColumn is a column at a position of the screen.
type placedColumn struct {
	*column
	at, width int
}

// layOut places the columns that fit into a width. Columns that are left out make room for the others.
func layOut(width int) []placedColumn {
	shown := columnPriority
	for len(shown) > 1 && minTableWidth(shown) > width {
		shown = shown[:len(shown)-1]
	}
	shown = slices.Sorted(slices.Values(shown))
	left := width - minTableWidth(shown)
	placed := make([]placedColumn, len(shown))
	for i, index := range shown {
		placed[i] = placedColumn{column: &columns[index], width: columns[index].minWidth}
	}
	at := 0
	for i := range placed {
		grown := left // the last column takes the rest
		if i < len(placed)-1 {
			grown = min(left/2, placed[i].maxWidth-placed[i].width)
		}
		placed[i].width = max(placed[i].width+grown, 1)
		left -= grown
		placed[i].at = at
		at += placed[i].width + 1
	}
	return placed
}

// layOutWhole places all columns such that no cell is cut off.
func layOutWhole(rows [][]string) []placedColumn {
	placed := make([]placedColumn, len(columns))
	at := 0
	for i := range columns {
		width := len(columns[i].title)
		for _, cells := range rows {
			width = max(width, terminal.DisplayWidth(cells[i]))
		}
		placed[i] = placedColumn{&columns[i], at, width}
		at += width + 2
	}
	return placed
}

// minTableWidth returns the least width of these columns with a space between them.
func minTableWidth(shown []int) int {
	width := len(shown) - 1
	for _, i := range shown {
		width += columns[i].minWidth
	}
	return width
}

const reverseVideo = "\x1b[7m"

// style is the form of a line.
type style struct {
	base     string // colour of the whole line; can be empty
	colours  bool   // cells have their colours, unless base is set
	absolute bool   // each cell starts with a movement of the cursor to its column
}

// lineWriter builds one line of the table.
type lineWriter struct {
	style
	b      strings.Builder
	column int
}

func newLine(s style) *lineWriter {
	l := &lineWriter{style: s}
	l.b.WriteString(s.base)
	return l
}

// add adds a cell of at most width columns, which starts at a column counted from 0.
func (l *lineWriter) add(at, width int, rightAlign bool, c cell) {
	l.addText(at, width, rightAlign, c.colour, truncate(terminal.SingleLine(c.text), width))
}

// truncate returns a text that fits into a width, with a mark if its end is missing.
func truncate(text string, width int) string {
	if width < 3 || terminal.DisplayWidth(text) <= width {
		return terminal.TruncateToWidth(text, width)
	}
	return terminal.TruncateToWidth(text, width-2) + ".."
}

// addText adds a cell whose text is safe and fits.
func (l *lineWriter) addText(at, width int, rightAlign bool, colour, text string) {
	used := terminal.DisplayWidth(text)
	if rightAlign {
		at += width - used
	}
	if at > l.column {
		l.b.WriteString(strings.Repeat(" ", at-l.column))
	}
	if at > 0 && l.absolute {
		// A character of which the terminal knows another width does not move the cells after it.
		fmt.Fprintf(&l.b, "\x1b[%dG", at+1)
	}
	coloured := colour != "" && l.colours && l.base == ""
	if coloured {
		l.b.WriteString(colour)
	}
	l.b.WriteString(text)
	if coloured {
		l.b.WriteString(terminal.ColourReset)
	}
	l.column = at + used
}

// finish returns the line. With a base colour it is padded to the width.
func (l *lineWriter) finish(width int) string {
	if l.base == "" {
		return l.b.String()
	}
	if l.column < width {
		l.b.WriteString(strings.Repeat(" ", width-l.column))
	}
	l.b.WriteString(terminal.ColourReset)
	return l.b.String()
}

// formatRow returns the line of a row.
func formatRow(r row, placed []placedColumn, width int, now time.Time, s style) string {
	line := newLine(s)
	sum := r.totals()
	for _, c := range placed {
		shown := c.cell(r, sum, now)
		if c.column == &columns[nameColumn] {
			indent, marker := r.indent()
			line.addText(c.at, c.width, false, "", terminal.TruncateToWidth(strings.Repeat(" ", indent)+marker, c.width))
			line.add(c.at+indent+len(marker), max(c.width-indent-len(marker), 0), false, shown)
			continue
		}
		line.add(c.at, c.width, c.rightAlign, shown)
	}
	return line.finish(width)
}

// formatTitles returns the line with the titles of the columns.
func formatTitles(placed []placedColumn, width int, s style) string {
	line := newLine(s)
	for _, c := range placed {
		line.add(c.at, c.width, c.rightAlign, cell{"", c.title})
	}
	return line.finish(width)
}

// indent returns the number of spaces in front of the name, and the marker of a row that has rows below it.
func (r row) indent() (spaces int, marker string) {
	marker = "- "
	if r.collapsed {
		marker = "+ "
	}
	switch {
	case r.task != nil:
		return 4, ""
	case r.alloc != nil && len(r.alloc.tasks) == 0, r.alloc == nil && len(r.job.allocs) == 0:
		marker = "  "
	}
	if r.alloc != nil {
		return 2, marker
	}
	return 0, marker
}

func (r row) name() string {
	switch {
	case r.task != nil:
		return r.task.name
	case r.alloc != nil:
		return r.alloc.shortName() + " " + output.TruncateID(r.alloc.ID)
	}
	return r.job.id
}

func (r row) state() string {
	switch {
	case r.task != nil:
		return cmp.Or(r.task.status(), "-")
	case r.alloc != nil:
		return cmp.Or(r.alloc.status(), "-")
	case r.job.status == "":
		return "purged"
	case r.job.stopped && r.job.status != "dead":
		return "stopping"
	}
	return r.job.status
}

func stateCell(state string) cell {
	switch state {
	case "stopping":
		return cell{terminal.ColourYellow, state}
	case "dead", "purged":
		return cell{terminal.ColourDim, state}
	}
	return cell{output.StatusCell(state).Colour, state}
}

// noText is shown for a value that is unknown, or that the object does not have.
const noText = "-"

func cpuCell(_ row, t totals, _ time.Time) cell {
	if !t.sampled || t.running == 0 {
		return cell{"", noText}
	}
	if t.mhz < 10 {
		return cell{"", fmt.Sprintf("%.1f", t.mhz)}
	}
	return cell{"", fmt.Sprintf("%.0f", t.mhz)}
}

func memoryCell(_ row, t totals, _ time.Time) cell {
	if !t.sampled || t.running == 0 {
		return cell{"", noText}
	}
	return cell{"", output.FormatBytes(t.memory)}
}

func uptimeCell(r row, t totals, now time.Time) cell {
	if r.alloc == nil || t.started.IsZero() {
		return cell{"", noText}
	}
	return cell{"", output.FormatDuration(max(now.Sub(t.started), 0))}
}

func portsCell(r row, _ totals, _ time.Time) cell {
	if r.alloc == nil || r.task != nil {
		return cell{}
	}
	return cell{"", r.alloc.ports}
}

func eventCell(r row, _ totals, now time.Time) cell {
	switch {
	case r.task != nil:
		return taskEventCell(*r.task, now)
	case r.alloc != nil:
		return allocEventCell(r, now)
	}
	return cell{"", describeJob(r.job)}
}

// describeJob returns how many allocations of a job are in each state.
func describeJob(j *job) string {
	counts := map[string]int{}
	for _, a := range j.allocs {
		if !a.hidden() {
			counts[a.status()]++
		}
	}
	var parts []string
	for _, state := range []string{"running", "pending", "stopping", "failed", "lost", "unknown", "complete"} {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	if len(parts) == 0 {
		return j.description
	}
	return strings.Join(parts, ", ")
}

// taskEventCell returns why a task does not run, or its last event.
func taskEventCell(t task, now time.Time) cell {
	if reason := taskreason.FromTaskState(t.state, now); reason.Cause != "" && !reason.IsBeingSetUp() {
		colour := terminal.ColourYellow
		if t.state.Failed {
			colour = terminal.ColourRed
		}
		return cell{colour, reason.String()}
	}
	if len(t.state.Events) == 0 {
		return cell{}
	}
	last := t.state.Events[len(t.state.Events)-1]
	if last.DisplayMessage == "" || last.DisplayMessage == last.Type {
		return cell{"", last.Type}
	}
	return cell{"", last.Type + ": " + last.DisplayMessage}
}

// allocEventCell returns why an allocation does not run. A collapsed allocation has the newest event of its tasks.
func allocEventCell(r row, now time.Time) cell {
	a := r.alloc
	switch {
	case r.collapsed && len(a.tasks) > 0:
		newest := slices.MaxFunc(a.tasks, compareNews)
		c := taskEventCell(newest, now)
		c.text = newest.name + ": " + c.text
		return c
	case !a.running() && a.ClientDescription != "":
		return cell{"", a.ClientDescription}
	case a.status() == "stopping":
		return cell{"", a.DesiredDescription}
	}
	return cell{}
}

// compareNews sorts the most informative task of an allocation last: a failed task, else the task with the newest event.
func compareNews(a, b task) int {
	failed := func(t task) int {
		if t.state.Failed {
			return 1
		}
		return 0
	}
	newest := func(t task) int64 {
		if len(t.state.Events) == 0 {
			return 0
		}
		return t.state.Events[len(t.state.Events)-1].Time
	}
	return cmp.Or(cmp.Compare(failed(a), failed(b)), cmp.Compare(newest(a), newest(b)))
}
