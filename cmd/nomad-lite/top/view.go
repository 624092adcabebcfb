package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

const reverseVideo = "\x1b[7m"

// frameRows returns the number of rows of the screen that are not rows of the table: the summary, the line of conditions if there are
// any, the titles and the last line.
func (u *ui) frameRows() int {
	if len(u.conditions) > 0 {
		return 4
	}
	return 3
}

// draw returns the screen, whose only escape sequences are colours.
func (u *ui) draw(now time.Time) string {
	lines := []string{u.summaryOrConnectionErrorLine()}
	if len(u.conditions) > 0 {
		lines = append(lines, u.conditionLine())
	}
	height := max(u.height-u.frameRows(), 1)
	if u.page != nil {
		lines = append(lines, u.colourizeLine(reverseVideo, terminal.SanitizeAndTrimLine(u.page.title)))
		lines = append(lines, u.page.screenRows(u.width, height, u.useColours)...)
	} else {
		placed := layOutFittingColumns(u.width)
		lines = append(lines, u.colourizeLine(reverseVideo, formatLine(placed, titleCells(""), " ", false)))
		lines = append(lines, u.visibleTableLines(placed, height, now)...)
	}
	lines = append(lines, make([]string, u.height)...)[:u.height-1]
	lines = append(lines, u.promptMessageOrKeyHintLine())
	for i := range lines {
		lines[i] = ansi.TruncateWc(lines[i], u.width, "")
	}
	return strings.Join(lines, "\n")
}

// visibleTableLines returns the lines of those rows of the table that are on the screen.
func (u *ui) visibleTableLines(placed []placedColumn, height int, now time.Time) []string {
	v := &u.tableView
	v.recomputeStaleRowsAndScroll(u.cluster, height)
	if len(v.allRows) == 0 && v.filter != "" {
		return []string{"No row contains this text. Press / and Escape to show all."}
	}
	if len(v.allRows) == 0 {
		return []string{"No jobs. To run one: nomad-lite job run FILE"}
	}
	var lines []string
	for i, r := range v.visibleRows() {
		switch {
		case v.firstRowOnScreen+i == v.selectedIndex:
			lines = append(lines, u.colourizeLine(reverseVideo, formatRow(r, placed, now, false)))
		case u.agentErr != nil || r.hasEndedWithoutFailure():
			lines = append(lines, u.colourize(terminal.ColourDim, formatRow(r, placed, now, false)))
		default:
			lines = append(lines, formatRow(r, placed, now, u.useColours))
		}
	}
	return lines
}

// hasEndedWithoutFailure reports whether the object of a row has ended without a failure.
func (r row) hasEndedWithoutFailure() bool {
	switch {
	case r.task != nil:
		return r.alloc.isTerminal() && !r.task.state.Failed
	case r.alloc != nil:
		return r.alloc.ClientStatus == "complete"
	}
	return false
}

// colourizeLine returns a line with a text in a colour, up to the edge of the screen, even if colours are not used.
func (u *ui) colourizeLine(colour, text string) string {
	return colour + text + strings.Repeat(" ", max(u.width-ansi.StringWidthWc(text), 0)) + terminal.ColourReset
}

func (u *ui) colourize(colour, text string) string {
	if !u.useColours || colour == "" {
		return text
	}
	return colour + text + terminal.ColourReset
}

// summaryOrConnectionErrorLine returns the first line of the screen: the numbers of objects and the settings of the
// table, or the error if the agent cannot be reached.
func (u *ui) summaryOrConnectionErrorLine() string {
	if u.agentErr != nil {
		text := "AGENT LOST, retrying: " + terminal.SanitizeAndTrimLine(u.agentErr.Error())
		return u.colourize(terminal.ColourRed, ansi.TruncateWc(text, u.width, ".."))
	}
	jobs, allocs, running, tasks := u.cluster.countObjects()
	attention := ""
	switch count := u.cluster.countJobsThatNeedAttention(); count {
	case 0:
	case 1:
		attention = ", 1 needs attention"
	default:
		attention = fmt.Sprintf(", %d need attention", count)
	}
	text := fmt.Sprintf("%s%s  %s, %d running  %s  sort: %s", output.FormatCount(jobs, "job"), attention, output.FormatCount(allocs, "alloc"), running,
		output.FormatCount(tasks, "task"), sortNames[u.tableView.sortedBy])
	if u.tableView.isReversed {
		text += " reversed"
	}
	if u.tableView.showStoppedAndReplaced {
		text += "  all"
	}
	if u.tableView.filter != "" {
		text += "  filter: " + terminal.SanitizeAndTrimLine(strings.ToLower(u.tableView.filter))
	}
	return text
}

// conditionLine returns a line with the first condition, which is the most severe one, and the number of the others.
func (u *ui) conditionLine() string {
	more := " (nomad-lite status)"
	if n := len(u.conditions) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more: nomad-lite status)", n)
	}
	text := ansi.TruncateWc(terminal.SanitizeAndTrimLine(u.conditions[0].Summary), max(u.width-len(more), 0), "..")
	return u.colourize(tables.ConditionColour(u.conditions[0]), text+more)
}

// promptMessageOrKeyHintLine returns the last line of the screen: a question, a message, or the hint at keys.
func (u *ui) promptMessageOrKeyHintLine() string {
	switch {
	case u.question != nil:
		return u.promptLine(u.question.question + " [y/N] ")
	case u.editsFilter:
		return u.promptLine("Filter: " + u.tableView.filter)
	case u.message.text != "":
		return u.colourize(u.message.ansiColour, ansi.TruncateWc(terminal.SanitizeAndTrimLine(u.message.text), u.width, ".."))
	case u.page != nil:
		return "q back  up/down scroll  G end"
	}
	return "? help  q quit  / filter  l logs  t time line  e shell  r restart  s stop"
}

// promptLine returns a text with a cursor after it. It shows the end of a text that is too long.
func (u *ui) promptLine(text string) string {
	text = terminal.SanitizeToOneLine(text)
	return u.colourize(terminal.ColourBold, ansi.TruncateLeftWc(text, max(ansi.StringWidthWc(text)-u.width+1, 0), "")+"_")
}

// tableView is the table with its rows, the selection, and the position of the screen in the rows.
type tableView struct {
	table
	allRows           []row
	areRowsStale      bool // allRows must be computed again, because the cluster or the settings have changed
	needsUsageRequest bool // usage must be requested for the visible rows
	selectedID        rowID
	selectedIndex     int // index of the selected row
	firstRowOnScreen  int // index of the first row on the screen
	rowsOnScreen      int // number of rows on the screen; 0 before the first draw
}

// recomputeStaleRowsAndScroll recomputes outdated rows, keeps the selection, and scrolls such that the selected row is
// on the screen.
func (v *tableView) recomputeStaleRowsAndScroll(c *knownJobsAndAllocs, height int) {
	firstBefore := v.firstRowOnScreen
	if v.areRowsStale {
		v.allRows = v.selectAndSortRows(c)
		if v.rowsOnScreen == 0 && len(v.allRows) > height {
			v.jobsStartCollapsed = true
			v.allRows = v.selectAndSortRows(c)
		}
		v.selectedIndex = v.findSelectedOrNearestIndex()
		v.areRowsStale = false
	}
	v.rowsOnScreen = height
	v.selectedIndex = min(max(v.selectedIndex, 0), max(len(v.allRows)-1, 0))
	if len(v.allRows) > 0 {
		v.selectedID = v.allRows[v.selectedIndex].id()
	}
	v.firstRowOnScreen = min(v.firstRowOnScreen, v.selectedIndex, max(len(v.allRows)-height, 0))
	v.firstRowOnScreen = max(v.firstRowOnScreen, v.selectedIndex-height+1)
	v.needsUsageRequest = v.needsUsageRequest || v.firstRowOnScreen != firstBefore
}

// findSelectedOrNearestIndex returns the index of the selected row. If that row no longer exists, it returns the row of
// its allocation or job, or else the index of the cursor.
func (v *tableView) findSelectedOrNearestIndex() int {
	best, place := -1, v.selectedIndex
	for i, r := range v.allRows {
		switch id := r.id(); {
		case id == v.selectedID:
			return i
		case id.jobKey == v.selectedID.jobKey && (id.allocID == "" || id.allocID == v.selectedID.allocID && id.taskName == ""):
			best = i
		}
	}
	if best >= 0 && v.selectedID.allocID != "" {
		return best
	}
	return place
}

// visibleRows returns the rows that are on the screen.
func (v *tableView) visibleRows() []row {
	return v.allRows[min(v.firstRowOnScreen, len(v.allRows)):min(v.firstRowOnScreen+v.rowsOnScreen, len(v.allRows))]
}

// visibleRunningAllocs returns at most maxSampled running allocations of the rows on the screen, including the
// allocations of collapsed jobs.
func (v *tableView) visibleRunningAllocs() []*api.Allocation {
	var found []*api.Allocation
	seen := map[string]bool{}
	add := func(a *alloc) {
		if a.isRunning() && !seen[a.ID] && len(found) < maxSampled {
			seen[a.ID] = true
			found = append(found, copyAllocForRequests(a))
		}
	}
	for _, r := range v.visibleRows() {
		switch {
		case r.alloc != nil:
			add(r.alloc)
		case r.isCollapsed:
			for _, a := range r.job.allocs {
				add(a)
			}
		}
	}
	return found
}

func (v *tableView) moveSelection(deltaRows int) {
	v.selectedIndex = min(max(v.selectedIndex+deltaRows, 0), max(len(v.allRows)-1, 0))
	if len(v.allRows) > 0 {
		v.selectedID = v.allRows[v.selectedIndex].id()
	}
}

// setCollapsed collapses or expands a row.
func (v *tableView) setCollapsed(id rowID, collapsed bool) {
	v.collapsedRows[id] = collapsed
	v.areRowsStale, v.needsUsageRequest = true, true
}

// collapseOrSelectParent collapses a row. If the row cannot be collapsed, it selects the row of the object above: the
// allocation of a task, or the job of an allocation.
func (v *tableView) collapseOrSelectParent(r row) {
	id := r.id()
	switch {
	case r.task != nil:
		id.taskName = ""
	case !r.isCollapsed:
		v.setCollapsed(id, true)
		return
	case r.alloc != nil:
		id.allocID = ""
	}
	v.selectedID, v.areRowsStale = id, true
}

func (v *tableView) setFilter(text string) {
	v.filter, v.areRowsStale, v.needsUsageRequest = text, true, true
}

// sortByOrReverse sorts the rows by a key. If they are already sorted by this key, it reverses the order.
func (v *tableView) sortByOrReverse(key sortKey) {
	v.isReversed = v.sortedBy == key && !v.isReversed
	v.sortedBy, v.areRowsStale = key, true
}
