package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/runtime/explain/jobhealth"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
)

// cell is the text of a row in one column, with its colour. The text can come from the agent and is not safe for a
// terminal.
type cell struct{ ansiColour, text string }

// column is a column of the table.
type column struct {
	title      string
	minWidth   int
	maxWidth   int // not applied to the last column on the screen
	rightAlign bool
	formatCell func(r row, sum totals, now time.Time) cell
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
	nameColumn:     {"NAME", 14, 40, false, nameCell},
	stateColumn:    {"STATE", 9, 9, false, func(r row, _ totals, _ time.Time) cell { return r.stateCell() }},
	cpuColumn:      {"MHZ", 5, 6, true, cpuCell},
	memoryColumn:   {"MEMORY", 8, 8, true, memoryCell},
	restartsColumn: {"RESTARTS", 8, 8, true, func(r row, t totals, _ time.Time) cell { return cell{"", fmt.Sprint(t.restarts)} }},
	uptimeColumn:   {"UPTIME", 7, 7, true, uptimeCell},
	portsColumn:    {"PORTS", 28, 28, false, portsCell},
	eventColumn:    {"LAST EVENT", 16, 0, false, eventCell},
}

// columnPriority lists the columns by importance. A narrow terminal leaves out the last ones.
var columnPriority = []int{nameColumn, stateColumn, cpuColumn, memoryColumn, eventColumn, uptimeColumn, restartsColumn, portsColumn}

// placedColumn is a column with its position on the screen.
type placedColumn struct {
	*column
	startColumn, width int
}

// layOutFittingColumns chooses the columns that fit into screenWidth, and distributes the remaining width among them.
func layOutFittingColumns(screenWidth int) []placedColumn {
	shown := columnPriority
	for len(shown) > 1 && minTableWidth(shown) > screenWidth {
		shown = shown[:len(shown)-1]
	}
	shown = slices.Sorted(slices.Values(shown))
	left := screenWidth - minTableWidth(shown)
	placed := make([]placedColumn, len(shown))
	for i, index := range shown {
		placed[i] = placedColumn{column: &columns[index], width: columns[index].minWidth}
	}
	at := 0
	for i := range placed {
		grown := left // the last column gets the remaining width
		if i < len(placed)-1 {
			grown = min(left/2, placed[i].maxWidth-placed[i].width)
		}
		placed[i].width = max(placed[i].width+grown, 1)
		left -= grown
		placed[i].startColumn = at
		at += placed[i].width + 1
	}
	return placed
}

// layOutAllColumns places all columns, each as wide as its widest cell.
func layOutAllColumns(cellTexts [][]string) []placedColumn {
	placed := make([]placedColumn, len(columns))
	at := 0
	for i := range columns {
		width := len(columns[i].title)
		for _, cells := range cellTexts {
			width = max(width, terminal.DisplayWidth(cells[i]))
		}
		placed[i] = placedColumn{&columns[i], at, width}
		at += width + 2
	}
	return placed
}

// minTableWidth returns the sum of the minimum widths of these columns, with a space between them.
func minTableWidth(columnIndexes []int) int {
	width := len(columnIndexes) - 1
	for _, i := range columnIndexes {
		width += columns[i].minWidth
	}
	return width
}

const reverseVideo = "\x1b[7m"

// lineStyle says how a line is coloured and positioned.
type lineStyle struct {
	lineColour         string // colour of the whole line; can be empty
	useColours         bool   // cells are shown in their colours, unless lineColour is set
	movesCursorToCells bool   // an escape sequence moves the cursor to the start of each cell
}

// lineWriter builds one line of the screen from cells.
type lineWriter struct {
	lineStyle
	text          strings.Builder
	currentColumn int
}

func newLineWriter(s lineStyle) *lineWriter {
	l := &lineWriter{lineStyle: s}
	l.text.WriteString(s.lineColour)
	return l
}

// sanitizeAndAddCell adds a cell of at most width columns at startColumn, which counts from 0. It sanitizes and
// truncates the text.
func (l *lineWriter) sanitizeAndAddCell(startColumn, width int, rightAlign bool, c cell) {
	l.addSanitizedCell(startColumn, width, rightAlign, c.ansiColour, truncateWithDots(terminal.SanitizeAndTrimLine(c.text), width))
}

// truncateWithDots returns the start of a text that fits into width columns, with ".." in place of a missing end.
func truncateWithDots(text string, width int) string {
	if width < 3 || terminal.DisplayWidth(text) <= width {
		return terminal.TruncateToWidth(text, width)
	}
	return terminal.TruncateToWidth(text, width-2) + ".."
}

// addSanitizedCell adds a cell whose text is sanitized and fits.
func (l *lineWriter) addSanitizedCell(startColumn, width int, rightAlign bool, colour, text string) {
	used := terminal.DisplayWidth(text)
	if rightAlign {
		startColumn += width - used
	}
	if startColumn > l.currentColumn {
		l.text.WriteString(strings.Repeat(" ", startColumn-l.currentColumn))
	}
	if startColumn > 0 && l.movesCursorToCells {
		// The terminal can draw a character with another width than DisplayWidth assumes. The absolute position keeps
		// the next cells in their columns.
		fmt.Fprintf(&l.text, "\x1b[%dG", startColumn+1)
	}
	coloured := colour != "" && l.useColours && l.lineColour == ""
	if coloured {
		l.text.WriteString(colour)
	}
	l.text.WriteString(text)
	if coloured {
		l.text.WriteString(terminal.ColourReset)
	}
	l.currentColumn = startColumn + used
}

// finishAndPadColouredLine returns the line. If it has a base colour, it is padded to width.
func (l *lineWriter) finishAndPadColouredLine(width int) string {
	if l.lineColour == "" {
		return l.text.String()
	}
	if l.currentColumn < width {
		l.text.WriteString(strings.Repeat(" ", width-l.currentColumn))
	}
	l.text.WriteString(terminal.ColourReset)
	return l.text.String()
}

// formatRow returns the line of the screen for a row of the table.
func formatRow(r row, placed []placedColumn, width int, now time.Time, s lineStyle) string {
	line := newLineWriter(s)
	sum := r.totals()
	for _, c := range placed {
		shown := c.formatCell(r, sum, now)
		if c.column == &columns[nameColumn] {
			indent, marker := r.indent()
			line.addSanitizedCell(c.startColumn, c.width, false, "", terminal.TruncateToWidth(strings.Repeat(" ", indent)+marker, c.width))
			line.sanitizeAndAddCell(c.startColumn+indent+len(marker), max(c.width-indent-len(marker), 0), false, shown)
			continue
		}
		if c.column == &columns[cpuColumn] && r.hasReasonToShow() && !hasRoomForReason(placed) {
			line.sanitizeAndAddCell(c.startColumn, width-c.startColumn, false, jobEventCell(r.job))
			break
		}
		line.sanitizeAndAddCell(c.startColumn, c.width, c.rightAlign, shown)
	}
	return line.finishAndPadColouredLine(width)
}

// hasReasonToShow reports whether the row is that of a job that does not work, or that waits, with the reason.
func (r row) hasReasonToShow() bool {
	return r.alloc == nil && r.job.health != nil && r.job.health.Reason != "" && (r.job.health.NeedsAttention || r.job.health.Health == string(jobhealth.Waiting))
}

// reasonWidth is the width of the column of events from which on it shows reasons.
const reasonWidth = 60

// hasRoomForReason reports whether the column of events can show a reason. In a narrower one, the reason of a job takes the place of
// the columns after its state.
func hasRoomForReason(placed []placedColumn) bool {
	return slices.ContainsFunc(placed, func(c placedColumn) bool { return c.column == &columns[eventColumn] && c.width >= reasonWidth })
}

func formatColumnTitles(placed []placedColumn, width int, s lineStyle) string {
	line := newLineWriter(s)
	for _, c := range placed {
		line.sanitizeAndAddCell(c.startColumn, c.width, c.rightAlign, cell{"", c.title})
	}
	return line.finishAndPadColouredLine(width)
}

// indent returns the number of spaces before the name of a row, and the marker of a row that can be expanded or
// collapsed.
func (r row) indent() (spaces int, marker string) {
	marker = "- "
	if r.isCollapsed {
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

// nameCell returns the name of a row. That of a job is bold, as a head of the rows below it.
func nameCell(r row, _ totals, _ time.Time) cell {
	if r.alloc == nil {
		return cell{terminal.ColourBold, r.name()}
	}
	return cell{"", r.name()}
}

// stateSortKey returns a text that sorts jobs by their state. With a health, jobs that need attention come first.
func (j *job) stateSortKey() string {
	if j.health == nil {
		return j.status
	}
	return fmt.Sprint(slices.Index(jobhealth.Words, jobhealth.Word(j.health.Health)))
}

// state returns the health of a job, or its status if the agent does not report the health, and the state of other rows.
func (r row) state() string {
	switch {
	case r.task != nil:
		return cmp.Or(r.task.displayedStatus(), "-")
	case r.alloc != nil:
		return cmp.Or(r.alloc.displayedStatus(), "-")
	case r.job.status == "":
		return "purged"
	case r.job.isStopped && r.job.status != "dead":
		return "stopping"
	case r.job.health != nil:
		return r.job.health.Health
	}
	return r.job.status
}

func (r row) stateCell() cell {
	state := r.state()
	if r.alloc == nil && r.job.health != nil && state == r.job.health.Health {
		return cell{tables.HealthCell(state).ColourEscape, state}
	}
	switch state {
	case "stopping":
		return cell{terminal.ColourYellow, state}
	case "dead", "purged":
		return cell{terminal.ColourDim, state}
	}
	return cell{output.StatusCell(state).ColourEscape, state}
}

// noText is shown for a value that is unknown, or that objects of this kind do not have.
const noText = "-"

func cpuCell(_ row, t totals, _ time.Time) cell {
	if !t.hasUsageOfRunningTasks || t.runningTasks == 0 {
		return cell{"", noText}
	}
	if t.cpuMHz < 10 {
		return cell{"", fmt.Sprintf("%.1f", t.cpuMHz)}
	}
	return cell{"", fmt.Sprintf("%.0f", t.cpuMHz)}
}

func memoryCell(_ row, t totals, _ time.Time) cell {
	if !t.hasUsageOfRunningTasks || t.runningTasks == 0 {
		return cell{"", noText}
	}
	return cell{"", output.FormatBytes(t.memoryBytes)}
}

func uptimeCell(r row, t totals, now time.Time) cell {
	if r.alloc == nil || t.oldestStart.IsZero() {
		return cell{"", noText}
	}
	return cell{"", output.FormatDuration(max(now.Sub(t.oldestStart), 0))}
}

func portsCell(r row, _ totals, _ time.Time) cell {
	if r.alloc == nil || r.task != nil {
		return cell{}
	}
	return cell{"", r.alloc.formattedPorts}
}

func eventCell(r row, _ totals, now time.Time) cell {
	switch {
	case r.task != nil:
		return taskReasonOrEventCell(*r.task, now)
	case r.alloc != nil:
		return allocReasonOrEventCell(r, now)
	}
	return jobEventCell(r.job)
}

// jobEventCell returns a cell with the reason for the health of a job, or with the number of its allocations in each state.
func jobEventCell(j *job) cell {
	if j.health == nil || j.health.Reason == "" {
		return cell{"", formatAllocCountsOrDescription(j)}
	}
	return cell{tables.HealthCell(j.health.Health).ColourEscape, j.health.Sentence()}
}

// formatAllocCountsOrDescription returns the number of the job's allocations in each state, such as "2 running, 1
// pending".
func formatAllocCountsOrDescription(j *job) string {
	counts := map[string]int{}
	for _, a := range j.allocs {
		if !a.isHiddenUnlessShowAll() {
			counts[a.displayedStatus()]++
		}
	}
	var parts []string
	for _, state := range []string{"running", "pending", "stopping", "failed", "lost", "unknown", "complete"} {
		if counts[state] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", counts[state], state))
		}
	}
	if len(parts) == 0 {
		return j.statusDescription
	}
	return strings.Join(parts, ", ")
}

// taskReasonOrEventCell returns a cell with the reason why a task does not run, or with the task's last event.
func taskReasonOrEventCell(t task, now time.Time) cell {
	if why := reason.FromTaskState(t.state, now); why.Cause != "" && !why.IsBeingSetUp() {
		colour := terminal.ColourYellow
		if t.state.Failed {
			colour = terminal.ColourRed
		}
		return cell{colour, why.String()}
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

// allocReasonOrEventCell returns a cell with the reason why an allocation does not run. For a collapsed allocation it
// returns the cell of the task with the most important event.
func allocReasonOrEventCell(r row, now time.Time) cell {
	a := r.alloc
	switch {
	case r.isCollapsed && len(a.tasks) > 0:
		newest := slices.MaxFunc(a.tasks, compareEventImportance)
		c := taskReasonOrEventCell(newest, now)
		c.text = newest.name + ": " + c.text
		return c
	case !a.isRunning() && a.ClientDescription != "":
		return cell{"", a.ClientDescription}
	case a.displayedStatus() == "stopping":
		return cell{"", a.DesiredDescription}
	}
	return cell{}
}

// compareEventImportance orders tasks by the importance of their last event: failed tasks last, and otherwise the
// newest event last.
func compareEventImportance(a, b task) int {
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
