package terminaltest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// FakeScrollingTerminal is a fake terminal for programs that write below the text of the terminal. It fails the test
// for an escape sequence that it does not know.
type FakeScrollingTerminal struct {
	t                       *testing.T
	Columns, Rows           int
	lines                   []string // all rows, including those that have scrolled off the top
	rowWraps                []bool   // reports for each row whether its line continues in the next row
	cursorRow, cursorColumn int      // position of the cursor, counted from the first row in lines
	autoWrap                bool
}

// NewFakeScrollingTerminal returns an empty terminal of this size.
func NewFakeScrollingTerminal(t *testing.T, columns, rows int) *FakeScrollingTerminal {
	return &FakeScrollingTerminal{t: t, Columns: columns, Rows: rows, lines: []string{""}, rowWraps: []bool{false}, autoWrap: true}
}

// Write interprets text and escape sequences, as a terminal does. At the end of p, the terminal must wrap lines again.
func (te *FakeScrollingTerminal) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := 1
		switch rest[0] {
		case '\x1b':
			n = terminal.EscapeSequenceLength(rest)
			te.runEscapeSequence(string(rest[:n]))
		case '\n':
			te.moveToNextRow(false)
		case '\r':
			te.cursorColumn = 0
		default:
			te.putByte(rest[0])
		}
		rest = rest[n:]
	}
	if !te.autoWrap {
		te.t.Errorf("the terminal is left in an odd state by %q", p)
	}
	return len(p), nil
}

func (te *FakeScrollingTerminal) runEscapeSequence(sequence string) {
	switch {
	case sequence == "\x1b[?7l":
		te.autoWrap = false
	case sequence == "\x1b[?7h":
		te.autoWrap = true
	case sequence == "\x1b[J":
		te.lines[te.cursorRow] = te.lines[te.cursorRow][:te.cursorColumn]
		te.lines, te.rowWraps = te.lines[:te.cursorRow+1], te.rowWraps[:te.cursorRow+1]
		te.rowWraps[te.cursorRow] = false
	case strings.HasSuffix(sequence, "A"):
		var n int
		fmt.Sscanf(sequence, "\x1b[%dA", &n)
		te.cursorRow = max(te.cursorRow-n, len(te.lines)-te.Rows, 0)
	case strings.HasSuffix(sequence, "m"):
	default:
		te.t.Errorf("the terminal got %q", sequence)
	}
}

func (te *FakeScrollingTerminal) putByte(c byte) {
	if te.cursorColumn == te.Columns {
		if !te.autoWrap {
			return
		}
		te.moveToNextRow(true)
	}
	te.lines[te.cursorRow] = te.lines[te.cursorRow][:te.cursorColumn] + string(c)
	te.cursorColumn++
}

func (te *FakeScrollingTerminal) moveToNextRow(lineContinues bool) {
	te.rowWraps[te.cursorRow] = lineContinues
	te.cursorRow, te.cursorColumn = te.cursorRow+1, 0
	if te.cursorRow == len(te.lines) {
		te.lines, te.rowWraps = append(te.lines, ""), append(te.rowWraps, false)
	}
}

// ResizeAndRewrap changes the size of the terminal. As most terminals do, it joins and wraps the rows of each line
// again.
func (te *FakeScrollingTerminal) ResizeAndRewrap(columns, rows int) {
	var joinedLines []string
	joined := ""
	for i, line := range te.lines {
		if joined += line; !te.rowWraps[i] {
			joinedLines, joined = append(joinedLines, joined), ""
		}
	}
	te.Columns, te.Rows = columns, rows
	te.lines, te.rowWraps = nil, nil
	for _, line := range joinedLines {
		for len(line) > columns {
			te.lines, te.rowWraps = append(te.lines, line[:columns]), append(te.rowWraps, true)
			line = line[columns:]
		}
		te.lines, te.rowWraps = append(te.lines, line), append(te.rowWraps, false)
	}
	te.cursorRow, te.cursorColumn = len(te.lines)-1, len(te.lines[len(te.lines)-1])
}

// String returns all rows, including those that have scrolled off the top.
func (te *FakeScrollingTerminal) String() string { return strings.Join(te.lines, "\n") }
