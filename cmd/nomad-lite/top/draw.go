package top

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// frameRows is the number of rows of the screen that are not rows of the table: the summary, the titles and the last
// line.
const frameRows = 3

func (u *ui) drawScreen(ctx context.Context) error {
	if u.isShellRunning {
		return nil
	}
	columns, rows := u.screen.Size()
	lines := []string{u.summaryLine(columns)}
	if u.openTextPage != nil {
		lines = append(lines, newTitleLine(u.openTextPage.title, columns))
		lines = append(lines, u.openTextPage.screenRows(columns, max(rows-frameRows, 1), u.useColours)...)
	} else {
		placed := layOutFittingColumns(columns)
		lines = append(lines, formatTitles(placed, columns, lineStyle{lineColour: reverseVideo, movesCursorToCells: true}))
		lines = append(lines, u.tableLines(placed, columns, max(rows-frameRows, 1))...)
	}
	for len(lines) < rows-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(min(len(lines), rows-1), 0)], u.promptOrMessageLine(columns))
	if err := u.screen.Draw(lines); err != nil {
		return err
	}
	if u.tableView.needsUsageRequest {
		u.requestUsage(ctx)
	}
	return nil
}

// tableLines returns the lines of those rows of the table that are on the screen.
func (u *ui) tableLines(placed []placedColumn, columns, height int) []string {
	v := &u.tableView
	v.recomputeRowsAndScroll(u.cluster, height)
	now := time.Now()
	var lines []string
	for i, r := range v.visibleRows() {
		s := lineStyle{useColours: u.useColours, movesCursorToCells: true}
		switch {
		case v.firstOnScreen+i == v.selectedIndex:
			s.lineColour = reverseVideo
		case u.useColours && (u.connectionErr != nil || r.hasEnded()):
			s.lineColour = terminal.ColourDim
		case u.useColours && r.alloc == nil:
			s.lineColour = terminal.ColourBold
		}
		lines = append(lines, formatRow(r, placed, columns, now, s))
	}
	if len(lines) == 0 {
		text := "No jobs. To run one: nomad-lite job run FILE"
		if v.filter != "" {
			text = "No row contains this text. Press / and Escape to show all."
		}
		lines = append(lines, terminal.TruncateToWidth(text, columns))
	}
	return lines
}

// hasEnded reports whether the object of a row has ended without a failure.
func (r row) hasEnded() bool {
	switch {
	case r.task != nil:
		return r.alloc.isTerminal() && !r.task.state.Failed
	case r.alloc != nil:
		return r.alloc.ClientStatus == "complete"
	}
	return false
}

func newTitleLine(title string, columns int) string {
	line := newLine(lineStyle{lineColour: reverseVideo, movesCursorToCells: true})
	line.addCell(0, columns, false, cell{"", title})
	return line.paddedLine(columns)
}

func (u *ui) colourize(colour, text string) string {
	if !u.useColours || colour == "" {
		return text
	}
	return colour + text + terminal.ColourReset
}

// summaryLine returns the first line of the screen: the numbers of objects and the settings of the table, or the error
// if the agent cannot be reached.
func (u *ui) summaryLine(columns int) string {
	if u.connectionErr != nil {
		text := "AGENT LOST, retrying: " + terminal.SingleLine(u.connectionErr.Error())
		return u.colourize(terminal.ColourRed, truncateWithMark(text, columns))
	}
	jobs, allocs, running, tasks := u.cluster.countObjects()
	text := fmt.Sprintf("%s  %s, %d running  %s  sort: %s", output.FormatCount(jobs, "job"), output.FormatCount(allocs, "alloc"), running,
		output.FormatCount(tasks, "task"), sortNames[u.tableView.sortedBy])
	if u.tableView.isReversed {
		text += " reversed"
	}
	if u.tableView.showAll {
		text += "  all"
	}
	if u.tableView.filter != "" {
		text += "  filter: " + terminal.SingleLine(u.tableView.filter)
	}
	return terminal.TruncateToWidth(text, columns)
}

// promptOrMessageLine returns the last line of the screen: a question, a message, or the hint at keys.
func (u *ui) promptOrMessageLine(columns int) string {
	switch {
	case u.prompt != nil:
		text := terminal.SanitizeLine(u.prompt.label) + u.prompt.text
		for text != "" && terminal.DisplayWidth(text) >= columns { // shows the end of a text that is too long
			_, size := utf8.DecodeRuneInString(text)
			text = text[size:]
		}
		return u.colourize(terminal.ColourBold, text+"_")
	case u.lastLineMessage.text != "":
		return u.colourize(u.lastLineMessage.colour, truncateWithMark(terminal.SingleLine(u.lastLineMessage.text), columns))
	case u.openTextPage != nil:
		return terminal.TruncateToWidth("q back  up/down scroll  G end", columns)
	}
	return terminal.TruncateToWidth("? help  q quit  / filter  l logs  t time line  e shell  r restart  s stop", columns)
}

// recomputeRowsAndScroll recomputes outdated rows, keeps the selection, and scrolls such that the selected row is on
// the screen.
func (v *tableView) recomputeRowsAndScroll(c *cluster, height int) {
	firstBefore := v.firstOnScreen
	if v.areRowsStale {
		v.allRows = v.rows(c)
		v.selectedIndex = v.findSelected()
		v.areRowsStale = false
	}
	v.rowsOnScreen = height
	v.selectedIndex = min(max(v.selectedIndex, 0), max(len(v.allRows)-1, 0))
	if len(v.allRows) > 0 {
		v.selectedID = v.allRows[v.selectedIndex].id()
	}
	v.firstOnScreen = min(v.firstOnScreen, v.selectedIndex, max(len(v.allRows)-height, 0))
	v.firstOnScreen = max(v.firstOnScreen, v.selectedIndex-height+1)
	v.needsUsageRequest = v.needsUsageRequest || v.firstOnScreen != firstBefore
}

// findSelected returns the index of the selected row. If that row no longer exists, it returns the row of its
// allocation or job, or else the index of the cursor.
func (v *tableView) findSelected() int {
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
	return v.allRows[min(v.firstOnScreen, len(v.allRows)):min(v.firstOnScreen+v.rowsOnScreen, len(v.allRows))]
}

// visibleAllocs returns at most maxSampled running allocations of the rows on the screen, including the allocations of
// collapsed jobs.
func (v *tableView) visibleAllocs() []*api.Allocation {
	var found []*api.Allocation
	seen := map[string]bool{}
	add := func(a *alloc) {
		if a.isRunning() && !seen[a.ID] && len(found) < maxSampled {
			seen[a.ID] = true
			found = append(found, allocWithRequestFields(a))
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

// moveSelection moves the selection by a number of rows.
func (v *tableView) moveSelection(by int) {
	v.selectedIndex = min(max(v.selectedIndex+by, 0), max(len(v.allRows)-1, 0))
	if len(v.allRows) > 0 {
		v.selectedID = v.allRows[v.selectedIndex].id()
	}
}

// setCollapsed collapses or expands a row.
func (v *tableView) setCollapsed(id rowID, collapsed bool) {
	if collapsed {
		v.collapsedRows[id] = true
	} else {
		delete(v.collapsedRows, id)
	}
	v.areRowsStale, v.needsUsageRequest = true, true
}

// sortBy sorts the rows by a key. If they are already sorted by this key, it reverses the order.
func (v *tableView) sortBy(key sortKey) {
	v.isReversed = v.sortedBy == key && !v.isReversed
	v.sortedBy, v.areRowsStale = key, true
}
