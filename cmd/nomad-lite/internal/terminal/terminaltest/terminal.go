package terminaltest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// Terminal is a fake terminal for programs that write below the text of the terminal. It fails the test for an escape
// sequence that it does not know.
type Terminal struct {
	t                       *testing.T
	Columns, Rows           int
	lines                   []string // all rows, including those that have scrolled off the top
	rowWraps                []bool   // reports for each row whether its line continues in the next row
	cursorRow, cursorColumn int      // position of the cursor, counted from the first row in lines
	autoWrap                bool
}

// New returns an empty terminal of this size.
func New(t *testing.T, columns, rows int) *Terminal {
	return &Terminal{t: t, Columns: columns, Rows: rows, lines: []string{""}, rowWraps: []bool{false}, autoWrap: true}
}

// Write interprets text and escape sequences, as a terminal does. At the end of p, the terminal must wrap lines again.
func (f *Terminal) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := 1
		switch rest[0] {
		case '\x1b':
			n = terminal.EscapeSequenceLength(rest)
			f.runEscapeSequence(string(rest[:n]))
		case '\n':
			f.startNextRow(false)
		case '\r':
			f.cursorColumn = 0
		default:
			f.putByte(rest[0])
		}
		rest = rest[n:]
	}
	if !f.autoWrap {
		f.t.Errorf("the terminal is left in an odd state by %q", p)
	}
	return len(p), nil
}

func (f *Terminal) runEscapeSequence(sequence string) {
	switch {
	case sequence == "\x1b[?7l":
		f.autoWrap = false
	case sequence == "\x1b[?7h":
		f.autoWrap = true
	case sequence == "\x1b[J":
		f.lines[f.cursorRow] = f.lines[f.cursorRow][:f.cursorColumn]
		f.lines, f.rowWraps = f.lines[:f.cursorRow+1], f.rowWraps[:f.cursorRow+1]
		f.rowWraps[f.cursorRow] = false
	case strings.HasSuffix(sequence, "A"):
		var n int
		fmt.Sscanf(sequence, "\x1b[%dA", &n)
		f.cursorRow = max(f.cursorRow-n, len(f.lines)-f.Rows, 0)
	case strings.HasSuffix(sequence, "m"):
	default:
		f.t.Errorf("the terminal got %q", sequence)
	}
}

func (f *Terminal) putByte(c byte) {
	if f.cursorColumn == f.Columns {
		if !f.autoWrap {
			return
		}
		f.startNextRow(true)
	}
	f.lines[f.cursorRow] = f.lines[f.cursorRow][:f.cursorColumn] + string(c)
	f.cursorColumn++
}

func (f *Terminal) startNextRow(broken bool) {
	f.rowWraps[f.cursorRow] = broken
	f.cursorRow, f.cursorColumn = f.cursorRow+1, 0
	if f.cursorRow == len(f.lines) {
		f.lines, f.rowWraps = append(f.lines, ""), append(f.rowWraps, false)
	}
}

// Resize changes the size of the terminal. As most terminals do, it joins and wraps the rows of each line again.
func (f *Terminal) Resize(columns, rows int) {
	var joinedLines []string
	joined := ""
	for i, line := range f.lines {
		if joined += line; !f.rowWraps[i] {
			joinedLines, joined = append(joinedLines, joined), ""
		}
	}
	f.Columns, f.Rows = columns, rows
	f.lines, f.rowWraps = nil, nil
	for _, line := range joinedLines {
		for len(line) > columns {
			f.lines, f.rowWraps = append(f.lines, line[:columns]), append(f.rowWraps, true)
			line = line[columns:]
		}
		f.lines, f.rowWraps = append(f.lines, line), append(f.rowWraps, false)
	}
	f.cursorRow, f.cursorColumn = len(f.lines)-1, len(f.lines[len(f.lines)-1])
}

// String returns all rows, including those that have scrolled off the top.
func (f *Terminal) String() string { return strings.Join(f.lines, "\n") }
