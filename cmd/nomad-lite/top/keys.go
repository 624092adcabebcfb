package top

import (
	"context"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// handleKey handles one key, and reports whether the user quits.
func (u *ui) handleKey(ctx context.Context, key terminal.Key) (quit bool) {
	u.lastLineMessage = cell{}
	switch {
	case key == terminal.KeyCtrlC:
		return true
	case key == terminal.KeyCtrlZ: // in raw mode the terminal sends no signal for Ctrl-Z
		return u.suspend() != nil // an error means that the terminal was closed
	case key == terminal.KeyCtrlL:
		u.screen.ForgetDrawnLines()
	case u.prompt != nil:
		u.handlePromptKey(key)
	case u.openTextPage != nil:
		u.handlePageKey(key)
	default:
		u.tableView.recomputeRowsAndScroll(u.cluster, u.tableView.rowsOnScreen) // so that the key applies to a row that still exists
		return u.handleTableKey(ctx, key)
	}
	return false
}

func (u *ui) handleTableKey(ctx context.Context, key terminal.Key) (quit bool) {
	if by, ok := movementOfKey(key, u.tableView.rowsOnScreen); ok {
		u.tableView.moveSelection(by)
		return false
	}
	switch key {
	case 'q':
		return true
	case '?':
		u.openHelp()
	case '/':
		u.promptForFilter()
	case 'a':
		u.tableView.showAll, u.tableView.areRowsStale = !u.tableView.showAll, true
	case terminal.KeyEscape:
		u.setFilter("")
	case terminal.Key(byName), terminal.Key(byState), terminal.Key(byCPU), terminal.Key(byMemory), terminal.Key(byRestarts), terminal.Key(byUptime):
		u.tableView.sortBy(sortKey(key))
	default:
		if r, ok := u.tableView.selectedRow(); ok {
			u.handleRowKey(ctx, key, r)
		}
	}
	return false
}

// handleRowKey handles the keys for the selected row.
func (u *ui) handleRowKey(ctx context.Context, key terminal.Key, r row) {
	switch key {
	case terminal.KeyEnter, ' ':
		if r.task == nil {
			u.tableView.setCollapsed(r.id(), !r.isCollapsed)
		}
	case terminal.KeyLeft, 'h':
		u.collapseOrSelectParent(r)
	case terminal.KeyRight:
		u.tableView.setCollapsed(r.id(), false)
	case 'l':
		u.openLogs(ctx, r)
	case 't':
		u.openTimeline(ctx, r)
	case 'e':
		u.openShell(ctx, r)
	case 'r':
		u.confirmRestart(ctx, r)
	case 's':
		u.confirmStop(ctx, r)
	}
}

// collapseOrSelectParent collapses a row. If the row cannot be collapsed, it selects the row of the object above: the
// allocation of a task, or the job of an allocation.
func (u *ui) collapseOrSelectParent(r row) {
	id := r.id()
	switch {
	case r.task != nil:
		id.taskName = ""
	case !r.isCollapsed:
		u.tableView.setCollapsed(id, true)
		return
	case r.alloc != nil:
		id.allocID = ""
	}
	u.tableView.selectedID, u.tableView.areRowsStale = id, true
}

// movementOfKey returns the number of lines by which a key moves the selection or scrolls a page. height is the number
// of lines on the screen. ok is false for a key that does not move.
func movementOfKey(key terminal.Key, height int) (by int, ok bool) {
	const all = 1 << 30
	switch key {
	case terminal.KeyUp, 'k':
		return -1, true
	case terminal.KeyDown, 'j':
		return 1, true
	case terminal.KeyPageUp:
		return -max(height-1, 1), true
	case terminal.KeyPageDown:
		return max(height-1, 1), true
	case terminal.KeyHome, 'g':
		return -all, true
	case terminal.KeyEnd, 'G':
		return all, true
	}
	return 0, false
}

func (u *ui) handlePageKey(key terminal.Key) {
	_, rows := u.screen.Size()
	height := max(rows-frameRows, 1)
	if by, ok := movementOfKey(key, height); ok {
		u.openTextPage.scrollBy(by, height)
		return
	}
	switch key {
	case 'q', terminal.KeyEscape, '?', terminal.KeyLeft:
		u.openTextPage.onClose()
		u.openTextPage, u.tableView.needsUsageRequest = nil, true
	}
}

func (u *ui) handlePromptKey(key terminal.Key) {
	p := u.prompt
	before := p.text
	switch {
	case p.nextKeyIsAnswer:
		u.prompt = nil
		p.onAnswer(string(rune(key)))
		return
	case key == terminal.KeyEnter:
		u.prompt = nil
		p.onAnswer(p.text)
		return
	case key == terminal.KeyEscape:
		u.prompt = nil
		p.onAnswer("")
		return
	case key == terminal.KeyBackspace, key == terminal.KeyCtrlH:
		_, size := utf8.DecodeLastRuneInString(p.text)
		p.text = p.text[:len(p.text)-size]
	case key == terminal.KeyCtrlU:
		p.text = ""
	case key <= unicode.MaxRune && unicode.IsPrint(rune(key)):
		p.text += string(rune(key))
	}
	if p.text != before {
		p.onChange(p.text)
	}
}

// promptForFilter shows a prompt for the filter, which applies while the user types.
func (u *ui) promptForFilter() {
	u.prompt = &prompt{label: "Filter: ", text: u.tableView.filter, onChange: u.setFilter, onAnswer: u.setFilter}
}

func (u *ui) setFilter(text string) {
	u.tableView.filter, u.tableView.areRowsStale, u.tableView.needsUsageRequest = strings.ToLower(text), true, true
}

// askYesNo asks a question in the last line, and calls do if the user presses y.
func (u *ui) askYesNo(question string, do func()) {
	u.prompt = &prompt{label: question + " [y/N] ", nextKeyIsAnswer: true, onAnswer: func(answer string) {
		if answer == "y" {
			do()
			return
		}
		u.lastLineMessage = cell{"", "Nothing was done. Only y is a yes."}
	}}
}

func (u *ui) openHelp() {
	u.openTextPage = newTextPage("nomad-lite top: keys")
	u.openTextPage.addLines("", strings.Split(helpLines, "\n")...)
}
