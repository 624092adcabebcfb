package top

import (
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// handleKey handles one key. The command that it returns can be nil.
func (u *ui) handleKey(msg tea.KeyPressMsg) tea.Cmd {
	u.message = cell{}
	key := msg.String()
	switch {
	case key == "ctrl+c":
		return tea.Quit
	case key == "ctrl+z": // in raw mode the terminal sends no signal for Ctrl-Z
		return tea.Exec(terminalFunc(u.suspend), nil)
	case key == "ctrl+l":
		return tea.ClearScreen
	case u.question != nil:
		return u.answer(key)
	case u.editsFilter:
		u.editFilter(key, msg.Text)
	case u.page != nil:
		u.handlePageKey(key)
	default:
		u.tableView.recomputeStaleRowsAndScroll(u.cluster, u.tableView.rowsOnScreen) // so that the key applies to a row that still exists
		return u.handleTableKey(key)
	}
	return nil
}

func (u *ui) handleTableKey(key string) tea.Cmd {
	v := &u.tableView
	if by, ok := movementOfKey(key, v.rowsOnScreen); ok {
		v.moveSelection(by)
		return nil
	}
	switch key {
	case "q":
		return tea.Quit
	case "?":
		u.page = newTextPage("nomad-lite top: keys", helpLines)
	case "/":
		u.editsFilter = true
	case "a":
		v.showStoppedAndReplaced, v.areRowsStale = !v.showStoppedAndReplaced, true
	case "esc":
		v.setFilter("")
	default:
		if sortNames[sortKey(key)] != "" {
			v.sortByOrReverse(sortKey(key))
		} else if v.selectedIndex < len(v.allRows) {
			return u.handleRowKey(key, v.allRows[v.selectedIndex])
		}
	}
	return nil
}

// handleRowKey handles the keys for the selected row.
func (u *ui) handleRowKey(key string, r row) tea.Cmd {
	switch key {
	case "enter", "space":
		if r.task == nil {
			u.tableView.setCollapsed(r.id(), !r.isCollapsed)
		}
	case "left", "h":
		u.tableView.collapseOrSelectParent(r)
	case "right":
		u.tableView.setCollapsed(r.id(), false)
	case "l":
		return u.openLogsPage(r)
	case "t":
		return u.openTimelinePage(r)
	case "e":
		return u.openShell(r)
	case "r":
		u.askAndRestart(r)
	case "s":
		u.askAndStop(r)
	}
	return nil
}

// movementOfKey returns the number of lines by which a key moves the selection or scrolls a page. ok is false for a key
// that does not move.
func movementOfKey(key string, screenLines int) (by int, ok bool) {
	const all = 1 << 30
	by, ok = map[string]int{
		"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -max(screenLines-1, 1), "pgdown": max(screenLines-1, 1),
		"home": -all, "g": -all, "end": all, "G": all,
	}[key]
	return by, ok
}

func (u *ui) handlePageKey(key string) {
	height := max(u.height-u.frameRows(), 1)
	if by, ok := movementOfKey(key, height); ok {
		u.page.scrollBy(by, height)
		return
	}
	switch key {
	case "q", "esc", "?", "left":
		u.page.onClose()
		u.page, u.tableView.needsUsageRequest = nil, true
	}
}

// editFilter handles a key while the last line takes the text of the filter, which applies while the user types.
func (u *ui) editFilter(key, text string) {
	filter := u.tableView.filter
	switch key {
	case "enter", "esc":
		u.editsFilter = false
		if key == "esc" {
			filter = ""
		}
	case "backspace", "ctrl+h":
		_, size := utf8.DecodeLastRuneInString(filter)
		filter = filter[:len(filter)-size]
	case "ctrl+u":
		filter = ""
	default:
		filter += text
	}
	u.tableView.setFilter(filter)
}

// answer handles the key that answers the question of the last line.
func (u *ui) answer(key string) tea.Cmd {
	c := u.question
	u.question = nil
	if key != "y" {
		u.message = cell{"", "Nothing was done. Only y is a yes."}
		return nil
	}
	return u.sendAndReport(c)
}
