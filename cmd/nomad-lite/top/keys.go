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
	u.message = cell{}
	switch {
	case key == terminal.KeyCtrlC:
		return true
	case key == terminal.KeyCtrlZ: // raw mode makes no signal of it
		return u.suspend() != nil // an error means that the terminal was closed
	case key == terminal.KeyCtrlL:
		u.screen.Redraw()
	case u.prompt != nil:
		u.handlePromptKey(key)
	case u.page != nil:
		u.handlePageKey(key)
	default:
		u.view.update(u.cluster, u.view.height) // the key is for a row that exists
		return u.handleTableKey(ctx, key)
	}
	return false
}

func (u *ui) handleTableKey(ctx context.Context, key terminal.Key) (quit bool) {
	if by, ok := movement(key, u.view.height); ok {
		u.view.move(by)
		return false
	}
	switch key {
	case 'q':
		return true
	case '?':
		u.openHelp()
	case '/':
		u.askFilter()
	case 'a':
		u.view.all, u.view.stale = !u.view.all, true
	case terminal.KeyEscape:
		u.setFilter("")
	case terminal.Key(byName), terminal.Key(byState), terminal.Key(byCPU), terminal.Key(byMemory), terminal.Key(byRestarts), terminal.Key(byUptime):
		u.view.sortBy(sortKey(key))
	default:
		if r, ok := u.view.current(); ok {
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
			u.view.setCollapsed(r.id(), !r.collapsed)
		}
	case terminal.KeyLeft, 'h':
		u.collapse(r)
	case terminal.KeyRight:
		u.view.setCollapsed(r.id(), false)
	case 'l':
		u.openLogs(ctx, r)
	case 't':
		u.openTimeline(ctx, r)
	case 'e':
		u.openShell(ctx, r)
	case 'r':
		u.askRestart(ctx, r)
	case 's':
		u.askStop(ctx, r)
	}
}

// collapse collapses a row. A row that is collapsed, or has no rows below it, selects the row above it.
func (u *ui) collapse(r row) {
	id := r.id()
	switch {
	case r.task != nil:
		id.task = ""
	case !r.collapsed:
		u.view.setCollapsed(id, true)
		return
	case r.alloc != nil:
		id.allocID = ""
	}
	u.view.selected, u.view.stale = id, true
}

// movement returns the number of lines by which a key moves the selection or a text. height is the number of lines on
// the screen.
func movement(key terminal.Key, height int) (by int, ok bool) {
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
	if by, ok := movement(key, height); ok {
		u.page.scroll(by, height)
		return
	}
	switch key {
	case 'q', terminal.KeyEscape, '?', terminal.KeyLeft:
		u.page.close()
		u.page, u.view.wantSample = nil, true
	}
}

func (u *ui) handlePromptKey(key terminal.Key) {
	p := u.prompt
	before := p.text
	switch {
	case p.confirm:
		u.prompt = nil
		p.done(string(rune(key)))
		return
	case key == terminal.KeyEnter:
		u.prompt = nil
		p.done(p.text)
		return
	case key == terminal.KeyEscape:
		u.prompt = nil
		p.done("")
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
		p.changed(p.text)
	}
}

// askFilter filters the rows while the user types.
func (u *ui) askFilter() {
	u.prompt = &prompt{label: "Filter: ", text: u.view.filter, changed: u.setFilter, done: u.setFilter}
}

func (u *ui) setFilter(text string) {
	u.view.filter, u.view.stale, u.view.wantSample = strings.ToLower(text), true, true
}

// confirm calls do if the user answers a question with y.
func (u *ui) confirm(question string, do func()) {
	u.prompt = &prompt{label: question + " [y/N] ", confirm: true, done: func(answer string) {
		if answer == "y" {
			do()
			return
		}
		u.message = cell{"", "Nothing was done. Only y is a yes."}
	}}
}

func (u *ui) openHelp() {
	u.page = newPage("nomad-lite top: keys")
	u.page.add("", strings.Split(helpLines, "\n")...)
}
