package top

import (
	"strings"

	"github.com/charmbracelet/x/ansi"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// textPage is a text that is shown in place of the table: the help, the output of a task, or a timeline.
type textPage struct {
	title             string
	lines             []pageLine
	firstLineOnScreen int  // index of the first line on the screen
	followsEnd        bool // the screen shows the last lines, also after lines are added
	onClose           func()
}

// pageLine is one line of a page. Its text is sanitized.
type pageLine struct{ ansiColour, text string }

const (
	maxPageLines  = 5000     // lines of a page; the oldest are dropped
	maxLineLength = 16 << 10 // bytes of a line; the rest is not shown
)

// newTextPage returns a page with the lines of a text.
func newTextPage(title, text string) *textPage {
	p := &textPage{title: title, onClose: func() {}}
	p.addSanitizedLines("", strings.Split(text, "\n")...)
	return p
}

// addSanitizedLines sanitizes and appends lines. It drops the oldest lines above maxPageLines.
func (p *textPage) addSanitizedLines(colour string, texts ...string) {
	for _, text := range texts {
		text = expandTabs(string(terminal.SanitizeText([]byte(text[:min(len(text), maxLineLength)]), false)))
		p.lines = append(p.lines, pageLine{colour, terminal.SanitizeToOneLine(text)})
	}
	if drop := len(p.lines) - maxPageLines; drop > 0 {
		p.lines = append([]pageLine(nil), p.lines[drop:]...)
		p.firstLineOnScreen = max(p.firstLineOnScreen-drop, 0)
	}
}

// expandTabs replaces tabs by spaces up to the next multiple of 8 columns.
func expandTabs(text string) string {
	parts := strings.Split(text, "\t")
	for i, part := range parts[:len(parts)-1] {
		parts[i] += strings.Repeat(" ", 8-ansi.StringWidthWc(part)%8)
	}
	return strings.Join(parts, "")
}

func (p *textPage) scrollBy(deltaLines, screenHeight int) {
	if p.followsEnd {
		p.firstLineOnScreen = p.lastScreenFirstLine(screenHeight)
	}
	p.firstLineOnScreen = min(max(p.firstLineOnScreen+deltaLines, 0), p.lastScreenFirstLine(screenHeight))
	p.followsEnd = p.firstLineOnScreen == p.lastScreenFirstLine(screenHeight) && deltaLines > 0
}

// lastScreenFirstLine returns the index of the first line on the screen when the page is scrolled to its end.
func (p *textPage) lastScreenFirstLine(screenHeight int) int {
	return max(len(p.lines)-screenHeight, 0)
}

// screenRows returns the rows of the screen. It wraps lines that are wider than the screen.
func (p *textPage) screenRows(columns, height int, useColours bool) []string {
	first := min(p.firstLineOnScreen, len(p.lines))
	if p.followsEnd {
		first = len(p.lines)
		for rows := 0; first > 0 && rows < height; rows += len(p.lines[first].wrapToRows(columns, false)) {
			first--
		}
	}
	var shown []string
	for _, line := range p.lines[first:] {
		if len(shown) >= height && !p.followsEnd {
			break
		}
		shown = append(shown, line.wrapToRows(columns, useColours)...)
	}
	if p.followsEnd {
		return shown[max(len(shown)-height, 0):]
	}
	return shown[:min(len(shown), height)]
}

func (l pageLine) wrapToRows(columns int, useColours bool) []string {
	rows := strings.Split(ansi.HardwrapWc(l.text, columns, true), "\n")
	for i, row := range rows {
		if useColours && l.ansiColour != "" && row != "" {
			rows[i] = l.ansiColour + row + terminal.ColourReset
		}
	}
	return rows
}

// helpLines are the text of the key ?.
const helpLines = `Move
  up down k j        select a row           PgUp PgDn     a screen up or down
  g G Home End       the first, the last    Enter         expand or collapse
  left right         collapse, expand

Show
  /  rows that contain a text: a name, an id or a state. Esc shows all again
  a  also stopped jobs and replaced allocations

Sort (twice: the other way round)
  N name   S state   C processor   M memory   R restarts   U uptime

Selected row
  l  output of the task           t  time line of the allocation
  e  a shell in the task; exit, or ~. at the start of a line, leaves it
  r  restart the task, or the running tasks of the allocation
  s  stop the allocation, which is replaced, or the job

  ?  this text   Ctrl-L  draw again   Ctrl-Z  suspend   q  quit

Processor and memory are measured for the rows on the screen only.`
