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
		u.screen.RedrawAllAtNextDraw()
	case u.prompt != nil:
		u.handlePromptKey(key)
	case u.shownTextPage != nil:
		u.handleTextPageKey(key)
	default:
		u.tableView.recomputeStaleRowsAndScroll(u.cluster, u.tableView.rowsOnScreen) // so that the key applies to a row that still exists
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
		u.openHelpPage()
	case '/':
		u.promptForFilter()
	case 'a':
		u.tableView.showStoppedAndReplaced, u.tableView.areRowsStale = !u.tableView.showStoppedAndReplaced, true
	case terminal.KeyEscape:
		u.setFilter("")
	case terminal.Key(byName), terminal.Key(byState), terminal.Key(byCPU), terminal.Key(byMemory), terminal.Key(byRestarts), terminal.Key(byUptime):
		u.tableView.sortByOrReverse(sortKey(key))
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
		u.openLogsPage(ctx, r)
	case 't':
		u.openTimelinePage(ctx, r)
	case 'e':
		u.openShell(ctx, r)
	case 'r':
		u.askAndRestart(ctx, r)
	case 's':
		u.askAndStop(ctx, r)
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

// movementOfKey returns the number of lines by which a key moves the selection or scrolls a page. ok is false for a key
// that does not move.
func movementOfKey(key terminal.Key, screenLines int) (by int, ok bool) {
	const all = 1 << 30
	switch key {
	case terminal.KeyUp, 'k':
		return -1, true
	case terminal.KeyDown, 'j':
		return 1, true
	case terminal.KeyPageUp:
		return -max(screenLines-1, 1), true
	case terminal.KeyPageDown:
		return max(screenLines-1, 1), true
	case terminal.KeyHome, 'g':
		return -all, true
	case terminal.KeyEnd, 'G':
		return all, true
	}
	return 0, false
}

func (u *ui) handleTextPageKey(key terminal.Key) {
	_, rows := u.screen.Size()
	height := max(rows-u.frameRows(), 1)
	if by, ok := movementOfKey(key, height); ok {
		u.shownTextPage.scrollBy(by, height)
		return
	}
	switch key {
	case 'q', terminal.KeyEscape, '?', terminal.KeyLeft:
		u.shownTextPage.onClose()
		u.shownTextPage, u.tableView.needsUsageRequest = nil, true
	}
}

func (u *ui) handlePromptKey(key terminal.Key) {
	p := u.prompt
	before := p.enteredText
	switch {
	case p.nextKeyIsAnswer:
		u.prompt = nil
		p.onAnswer(string(rune(key)))
		return
	case key == terminal.KeyEnter:
		u.prompt = nil
		p.onAnswer(p.enteredText)
		return
	case key == terminal.KeyEscape:
		u.prompt = nil
		p.onAnswer("")
		return
	case key == terminal.KeyBackspace, key == terminal.KeyCtrlH:
		_, size := utf8.DecodeLastRuneInString(p.enteredText)
		p.enteredText = p.enteredText[:len(p.enteredText)-size]
	case key == terminal.KeyCtrlU:
		p.enteredText = ""
	case key <= unicode.MaxRune && unicode.IsPrint(rune(key)):
		p.enteredText += string(rune(key))
	}
	if p.enteredText != before {
		p.onChange(p.enteredText)
	}
}

// promptForFilter shows a prompt for the filter, which applies while the user types.
func (u *ui) promptForFilter() {
	u.prompt = &prompt{label: "Filter: ", enteredText: u.tableView.lowerCaseFilter, onChange: u.setFilter, onAnswer: u.setFilter}
}

func (u *ui) setFilter(text string) {
	u.tableView.lowerCaseFilter, u.tableView.areRowsStale, u.tableView.needsUsageRequest = strings.ToLower(text), true, true
}

// askYesNo asks a question in the last line, and calls onYes if the user presses y.
func (u *ui) askYesNo(question string, onYes func()) {
	u.prompt = &prompt{label: question + " [y/N] ", nextKeyIsAnswer: true, onAnswer: func(answer string) {
		if answer == "y" {
			onYes()
			return
		}
		u.lastLineMessage = cell{"", "Nothing was done. Only y is a yes."}
	}}
}

func (u *ui) openHelpPage() {
	u.shownTextPage = newTextPage("nomad-lite top: keys")
	u.shownTextPage.addSanitizedLines("", strings.Split(helpLines, "\n")...)
}
