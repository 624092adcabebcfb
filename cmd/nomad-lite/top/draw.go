package top

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// frameRows returns the number of rows of the screen that are not rows of the table: the summary, the line of conditions if there are
// any, the titles and the last line.
func (u *ui) frameRows() int {
	if len(u.conditions) > 0 {
		return 4
	}
	return 3
}

func (u *ui) drawScreenAndRequestUsage(ctx context.Context) error {
	if u.isShellRunning {
		return nil
	}
	columns, rows := u.screen.Size()
	lines := []string{u.summaryOrConnectionErrorLine(columns)}
	if len(u.conditions) > 0 {
		lines = append(lines, u.conditionLine(columns))
	}
	if u.shownTextPage != nil {
		lines = append(lines, newTitleLine(u.shownTextPage.title, columns))
		lines = append(lines, u.shownTextPage.screenRows(columns, max(rows-u.frameRows(), 1), u.useColours)...)
	} else {
		placed := layOutFittingColumns(columns)
		lines = append(lines, formatColumnTitles(placed, columns, lineStyle{lineColour: reverseVideo, movesCursorToCells: true}))
		lines = append(lines, u.visibleTableLines(placed, columns, max(rows-u.frameRows(), 1))...)
	}
	for len(lines) < rows-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(min(len(lines), rows-1), 0)], u.promptMessageOrKeyHintLine(columns))
	if err := u.screen.DrawChangedLines(lines); err != nil {
		return err
	}
	if u.tableView.needsUsageRequest {
		u.requestUsageOfVisibleAllocs(ctx)
	}
	return nil
}

// visibleTableLines returns the lines of those rows of the table that are on the screen.
func (u *ui) visibleTableLines(placed []placedColumn, screenWidth, height int) []string {
	v := &u.tableView
	v.recomputeStaleRowsAndScroll(u.cluster, height)
	now := time.Now()
	var lines []string
	for i, r := range v.visibleRows() {
		s := lineStyle{useColours: u.useColours, movesCursorToCells: true}
		switch {
		case v.firstRowOnScreen+i == v.selectedIndex:
			s.lineColour = reverseVideo
		case u.useColours && (u.connectionErr != nil || r.hasEndedWithoutFailure()):
			s.lineColour = terminal.ColourDim
		}
		lines = append(lines, formatRow(r, placed, screenWidth, now, s))
	}
	if len(lines) == 0 {
		text := "No jobs. To run one: nomad-lite job run FILE"
		if v.lowerCaseFilter != "" {
			text = "No row contains this text. Press / and Escape to show all."
		}
		lines = append(lines, terminal.TruncateToWidth(text, screenWidth))
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

func newTitleLine(title string, columns int) string {
	line := newLineWriter(lineStyle{lineColour: reverseVideo, movesCursorToCells: true})
	line.sanitizeAndAddCell(0, columns, false, cell{"", title})
	return line.finishAndPadColouredLine(columns)
}

func (u *ui) colourize(colour, text string) string {
	if !u.useColours || colour == "" {
		return text
	}
	return colour + text + terminal.ColourReset
}

// summaryOrConnectionErrorLine returns the first line of the screen: the numbers of objects and the settings of the
// table, or the error if the agent cannot be reached.
func (u *ui) summaryOrConnectionErrorLine(screenWidth int) string {
	if u.connectionErr != nil {
		text := "AGENT LOST, retrying: " + terminal.SanitizeAndTrimLine(u.connectionErr.Error())
		return u.colourize(terminal.ColourRed, truncateWithDots(text, screenWidth))
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
	if u.tableView.lowerCaseFilter != "" {
		text += "  filter: " + terminal.SanitizeAndTrimLine(u.tableView.lowerCaseFilter)
	}
	return terminal.TruncateToWidth(text, screenWidth)
}

// conditionLine returns a line with the first condition, which is the most severe one, and the number of the others.
func (u *ui) conditionLine(screenWidth int) string {
	more := " (nomad-lite status)"
	if n := len(u.conditions) - 1; n > 0 {
		more = fmt.Sprintf(" (and %d more: nomad-lite status)", n)
	}
	text := truncateWithDots(terminal.SanitizeAndTrimLine(u.conditions[0].Summary), max(screenWidth-len(more), 0))
	return u.colourize(tables.ConditionColour(u.conditions[0]), text+more)
}

// promptMessageOrKeyHintLine returns the last line of the screen: a question, a message, or the hint at keys.
func (u *ui) promptMessageOrKeyHintLine(screenWidth int) string {
	switch {
	case u.prompt != nil:
		text := terminal.SanitizeToOneLine(u.prompt.label) + u.prompt.enteredText
		for text != "" && terminal.DisplayWidth(text) >= screenWidth { // shows the end of a text that is too long
			_, size := utf8.DecodeRuneInString(text)
			text = text[size:]
		}
		return u.colourize(terminal.ColourBold, text+"_")
	case u.lastLineMessage.text != "":
		return u.colourize(u.lastLineMessage.ansiColour, truncateWithDots(terminal.SanitizeAndTrimLine(u.lastLineMessage.text), screenWidth))
	case u.shownTextPage != nil:
		return terminal.TruncateToWidth("q back  up/down scroll  G end", screenWidth)
	}
	return terminal.TruncateToWidth("? help  q quit  / filter  l logs  t time line  e shell  r restart  s stop", screenWidth)
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

// selectedRow returns the selected row; ok is false if the table is empty.
func (v *tableView) selectedRow() (row, bool) {
	if v.selectedIndex >= len(v.allRows) {
		return row{}, false
	}
	return v.allRows[v.selectedIndex], true
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

// sortByOrReverse sorts the rows by a key. If they are already sorted by this key, it reverses the order.
func (v *tableView) sortByOrReverse(key sortKey) {
	v.isReversed = v.sortedBy == key && !v.isReversed
	v.sortedBy, v.areRowsStale = key, true
}
