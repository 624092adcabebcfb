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

// Rows of the screen that are not rows of the table: a summary and the titles above it, and the last line.
const frameRows = 3

func (u *ui) draw(ctx context.Context) error {
	if u.running {
		return nil
	}
	columns, rows := u.screen.Size()
	lines := []string{u.summaryLine(columns)}
	if u.page != nil {
		lines = append(lines, newTitleLine(u.page.title, columns))
		lines = append(lines, u.page.draw(columns, max(rows-frameRows, 1), u.colours)...)
	} else {
		placed := layOut(columns)
		lines = append(lines, formatTitles(placed, columns, style{base: reverseVideo, absolute: true}))
		lines = append(lines, u.tableLines(placed, columns, max(rows-frameRows, 1))...)
	}
	for len(lines) < rows-1 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(min(len(lines), rows-1), 0)], u.lastLine(columns))
	if err := u.screen.Draw(lines); err != nil {
		return err
	}
	if u.view.wantSample {
		u.sample(ctx)
	}
	return nil
}

// tableLines formats only the rows on the screen.
func (u *ui) tableLines(placed []placedColumn, columns, height int) []string {
	v := &u.view
	v.update(u.cluster, height)
	now := time.Now()
	var lines []string
	for i, r := range v.visible() {
		s := style{colours: u.colours, absolute: true}
		switch {
		case v.first+i == v.cursor:
			s.base = reverseVideo
		case u.colours && (u.lost != nil || r.ended()):
			s.base = terminal.ColourDim
		case u.colours && r.alloc == nil:
			s.base = terminal.ColourBold
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

// ended reports whether the object of a row has ended, and does not start again.
func (r row) ended() bool {
	switch {
	case r.task != nil:
		return r.alloc.terminal() && !r.task.state.Failed
	case r.alloc != nil:
		return r.alloc.ClientStatus == "complete"
	}
	return false
}

func newTitleLine(title string, columns int) string {
	line := newLine(style{base: reverseVideo, absolute: true})
	line.add(0, columns, false, cell{"", title})
	return line.finish(columns)
}

func (u *ui) colourize(colour, text string) string {
	if !u.colours || colour == "" {
		return text
	}
	return colour + text + terminal.ColourReset
}

// summaryLine returns the first line of the screen.
func (u *ui) summaryLine(columns int) string {
	if u.lost != nil {
		text := "AGENT LOST, retrying: " + terminal.SingleLine(u.lost.Error())
		return u.colourize(terminal.ColourRed, truncate(text, columns))
	}
	jobs, allocs, running, tasks := u.cluster.counts()
	text := fmt.Sprintf("%s  %s, %d running  %s  sort: %s", output.FormatCount(jobs, "job"), output.FormatCount(allocs, "alloc"), running,
		output.FormatCount(tasks, "task"), sortNames[u.view.sort])
	if u.view.reversed {
		text += " reversed"
	}
	if u.view.all {
		text += "  all"
	}
	if u.view.filter != "" {
		text += "  filter: " + terminal.SingleLine(u.view.filter)
	}
	return terminal.TruncateToWidth(text, columns)
}

// lastLine returns the question, the message or the hint in the last line of the screen.
func (u *ui) lastLine(columns int) string {
	switch {
	case u.prompt != nil:
		text := terminal.SanitizeLine(u.prompt.label) + u.prompt.text
		for text != "" && terminal.DisplayWidth(text) >= columns { // of a long text, the end is shown
			_, size := utf8.DecodeRuneInString(text)
			text = text[size:]
		}
		return u.colourize(terminal.ColourBold, text+"_")
	case u.message.text != "":
		return u.colourize(u.message.colour, truncate(terminal.SingleLine(u.message.text), columns))
	case u.page != nil:
		return terminal.TruncateToWidth("q back  up/down scroll  G end", columns)
	}
	return terminal.TruncateToWidth("? help  q quit  / filter  l logs  t time line  e shell  r restart  s stop", columns)
}

// update brings the rows up to date, keeps the selection, and scrolls such that the selected row is visible.
func (v *tableView) update(c *cluster, height int) {
	firstBefore := v.first
	if v.stale {
		v.shown = v.rows(c)
		v.cursor = v.findSelected()
		v.stale = false
	}
	v.height = height
	v.cursor = min(max(v.cursor, 0), max(len(v.shown)-1, 0))
	if len(v.shown) > 0 {
		v.selected = v.shown[v.cursor].id()
	}
	v.first = min(v.first, v.cursor, max(len(v.shown)-height, 0))
	v.first = max(v.first, v.cursor-height+1)
	v.wantSample = v.wantSample || v.first != firstBefore
}

// findSelected returns the index of the selected row. If the row is no longer shown, it is the allocation or the job
// of the row, else the row that is now at its place.
func (v *tableView) findSelected() int {
	best, place := -1, v.cursor
	for i, r := range v.shown {
		switch id := r.id(); {
		case id == v.selected:
			return i
		case id.jobKey == v.selected.jobKey && (id.allocID == "" || id.allocID == v.selected.allocID && id.task == ""):
			best = i
		}
	}
	if best >= 0 && v.selected.allocID != "" {
		return best
	}
	return place
}

// visible returns the rows on the screen.
func (v *tableView) visible() []row {
	return v.shown[min(v.first, len(v.shown)):min(v.first+v.height, len(v.shown))]
}

// visibleAllocs returns the running allocations on the screen, also those of collapsed jobs.
func (v *tableView) visibleAllocs() []*api.Allocation {
	var found []*api.Allocation
	seen := map[string]bool{}
	add := func(a *alloc) {
		if a.running() && !seen[a.ID] && len(found) < maxSampled {
			seen[a.ID] = true
			found = append(found, requestAlloc(a))
		}
	}
	for _, r := range v.visible() {
		switch {
		case r.alloc != nil:
			add(r.alloc)
		case r.collapsed:
			for _, a := range r.job.allocs {
				add(a)
			}
		}
	}
	return found
}

// current returns the selected row, or false if the table is empty.
func (v *tableView) current() (row, bool) {
	if v.cursor >= len(v.shown) {
		return row{}, false
	}
	return v.shown[v.cursor], true
}

// move moves the selection by a number of rows.
func (v *tableView) move(by int) {
	v.cursor = min(max(v.cursor+by, 0), max(len(v.shown)-1, 0))
	if len(v.shown) > 0 {
		v.selected = v.shown[v.cursor].id()
	}
}

// setCollapsed collapses or expands a row.
func (v *tableView) setCollapsed(id rowID, collapsed bool) {
	if collapsed {
		v.collapsed[id] = true
	} else {
		delete(v.collapsed, id)
	}
	v.stale, v.wantSample = true, true
}

// sortBy sorts by a key, or the other way round if that is the present key.
func (v *tableView) sortBy(key sortKey) {
	v.reversed = v.sort == key && !v.reversed
	v.sort, v.stale = key, true
}
