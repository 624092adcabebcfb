package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"

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

// placedColumn is a column with its width on the screen.
type placedColumn struct{ index, width int }

// layOutFittingColumns chooses the columns that fit into screenWidth, and distributes the remaining width among them.
func layOutFittingColumns(screenWidth int) []placedColumn {
	shown := columnPriority
	for len(shown) > 1 && minTableWidth(shown) > screenWidth {
		shown = shown[:len(shown)-1]
	}
	left := screenWidth - minTableWidth(shown)
	var placed []placedColumn
	for i, index := range slices.Sorted(slices.Values(shown)) {
		grown := left // the last column gets the remaining width
		if i < len(shown)-1 {
			grown = min(left/2, columns[index].maxWidth-columns[index].minWidth)
		}
		placed = append(placed, placedColumn{index, max(columns[index].minWidth+grown, 1)})
		left -= grown
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

// layOutAllColumns places all columns, each as wide as its widest cell.
func layOutAllColumns(lines [][]cell) []placedColumn {
	placed := make([]placedColumn, len(columns))
	for i := range columns {
		placed[i].index = i
		for _, cells := range lines {
			placed[i].width = max(placed[i].width, ansi.StringWidthWc(cells[i].text))
		}
	}
	return placed
}

// formatLine returns the placed ones of the cells, which are sanitized, with gap between them. A text that does not fit
// ends in "..".
func formatLine(placed []placedColumn, cells []cell, gap string, useColours bool) string {
	var b strings.Builder
	for i, p := range placed {
		if i > 0 {
			b.WriteString(gap)
		}
		c := cells[p.index]
		text := ansi.TruncateWc(c.text, p.width, "..")
		padding := strings.Repeat(" ", max(p.width-ansi.StringWidthWc(text), 0))
		if useColours && c.ansiColour != "" && text != "" {
			text = c.ansiColour + text + terminal.ColourReset
		}
		if columns[p.index].rightAlign {
			b.WriteString(padding + text)
		} else {
			b.WriteString(text + padding)
		}
	}
	return strings.TrimRight(b.String(), " ")
}

// formatRow returns the line of the screen for a row of the table.
func formatRow(r row, placed []placedColumn, now time.Time, useColours bool) string {
	cells := r.cells(now)
	if at := slices.IndexFunc(placed, func(p placedColumn) bool { return p.index == cpuColumn }); at >= 0 && r.hasReasonToShow() && !hasRoomForReason(placed) {
		reason := placedColumn{eventColumn, len(placed) - at - 1}
		for _, p := range placed[at:] {
			reason.width += p.width
		}
		placed = append(placed[:at:at], reason)
	}
	return formatLine(placed, cells, " ", useColours)
}

// cells returns the sanitized cells of a row in all columns.
func (r row) cells(now time.Time) []cell {
	cells := make([]cell, len(columns))
	sum := r.totals()
	for i := range columns {
		c := columns[i].formatCell(r, sum, now)
		cells[i] = cell{c.ansiColour, terminal.SanitizeAndTrimLine(c.text)}
	}
	cells[nameColumn].text = r.indentAndMarker() + cells[nameColumn].text
	return cells
}

func titleCells(colour string) (cells []cell) {
	for _, c := range columns {
		cells = append(cells, cell{colour, c.title})
	}
	return cells
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
	return slices.ContainsFunc(placed, func(c placedColumn) bool { return c.index == eventColumn && c.width >= reasonWidth })
}

// indentAndMarker returns the spaces before the name of a row, and the marker of a row that can be expanded or
// collapsed.
func (r row) indentAndMarker() string {
	marker := "- "
	switch {
	case r.task != nil:
		return "    "
	case r.alloc != nil && len(r.alloc.tasks) == 0, r.alloc == nil && len(r.job.allocs) == 0:
		marker = "  "
	case r.isCollapsed:
		marker = "+ "
	}
	if r.alloc != nil {
		return "  " + marker
	}
	return marker
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
