package terminaltest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// Terminal is a fake terminal that interprets the text written to it.
type Terminal struct {
	t             *testing.T
	Columns, Rows int
	lines         []string // all rows, including those that have scrolled off the top
	rowWraps      []bool   // reports for each row whether its line continues in the next row
	y, x          int      // position of the cursor, counted from the first row in lines
	autoWrap      bool
}

// New returns an empty terminal of this size.
func New(t *testing.T, columns, rows int) *Terminal {
	return &Terminal{t: t, Columns: columns, Rows: rows, lines: []string{""}, rowWraps: []bool{false}, autoWrap: true}
}

// Write interprets text and escape sequences.
func (f *Terminal) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		n := 1
		switch rest[0] {
		case '\x1b':
			n = terminal.EscapeSequenceLength(rest)
			f.runEscapeSequence(string(rest[:n]))
		case '\n':
			f.moveDown(false)
		case '\r':
			f.x = 0
		default:
			f.put(rest[0])
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
		f.lines[f.y] = f.lines[f.y][:f.x]
		f.lines, f.rowWraps = f.lines[:f.y+1], f.rowWraps[:f.y+1]
		f.rowWraps[f.y] = false
	case strings.HasSuffix(sequence, "A"):
		var n int
		fmt.Sscanf(sequence, "\x1b[%dA", &n)
		f.y = max(f.y-n, len(f.lines)-f.Rows, 0)
	case strings.HasSuffix(sequence, "m"):
	default:
		f.t.Errorf("the terminal got %q", sequence)
	}
}

func (f *Terminal) put(c byte) {
	if f.x == f.Columns {
		if !f.autoWrap {
			return
		}
		f.moveDown(true)
	}
	f.lines[f.y] = f.lines[f.y][:f.x] + string(c)
	f.x++
}

func (f *Terminal) moveDown(broken bool) {
	f.rowWraps[f.y] = broken
	f.y, f.x = f.y+1, 0
	if f.y == len(f.lines) {
		f.lines, f.rowWraps = append(f.lines, ""), append(f.rowWraps, false)
	}
}

// Resize changes the size. It wraps and joins rows as most terminals do.
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
	f.y, f.x = len(f.lines)-1, len(f.lines[len(f.lines)-1])
}

// String returns all rows, including those that have scrolled off the top.
func (f *Terminal) String() string { return strings.Join(f.lines, "\n") }
