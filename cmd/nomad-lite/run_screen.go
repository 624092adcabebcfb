package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// screen is a terminal that keeps live lines below all text that is written to it.
//
// The live lines are erased, followed by the new text and drawn again in one write, so that
// nothing flickers and the terminal is in its usual state even if nomad-lite is killed.
type screen struct {
	w io.Writer
	// size returns the size of the terminal; without columns, no live lines are drawn.
	size  func() (columns, rows int)
	drawn []int // widths of the live lines on the terminal
}

const (
	wrapOff = "\x1b[?7l" // the terminal cuts off wide lines
	wrapOn  = "\x1b[?7h"
)

// isScreen reports whether a stream is a terminal that supports cursor movement.
func isScreen(w io.Writer) bool {
	file, ok := w.(*os.File)
	name := os.Getenv("TERM")
	return ok && term.IsTerminal(int(file.Fd())) && name != "" && name != "dumb"
}

// newScreen returns the screen on standard error, or nil. It returns nil if standard output
// is a pipe: the reader of the pipe can write to the same terminal, and the screen would
// erase that text.
func newScreen(s *streams) *screen {
	file, _ := s.err.(*os.File)
	out, ok := s.out.(*os.File)
	if !isScreen(s.err) || !ok {
		return nil
	}
	if info, err := out.Stat(); err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
		return nil
	}
	return &screen{w: file, size: func() (columns, rows int) {
		fd := int(file.Fd())
		// The terminal of a background job shows the lines of other processes.
		if owner, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && owner != unix.Getpgrp() {
			return 0, 0
		}
		columns, rows, err := term.GetSize(fd)
		if err != nil {
			return 0, 0
		}
		return columns, rows
	}}
}

// sameFile reports whether two streams write to the same file.
func sameFile(a, b io.Writer) bool {
	fileA, okA := a.(*os.File)
	fileB, okB := b.(*os.File)
	if !okA || !okB {
		return a == b
	}
	infoA, errA := fileA.Stat()
	infoB, errB := fileB.Stat()
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// show writes whole lines of text, and draws the lines that live returns for the space
// below them.
func (s *screen) show(text []byte, live func(columns, rows int) []string) error {
	columns, rows := s.size()
	var b bytes.Buffer
	if up := s.height(columns); up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", up)
	}
	b.Write(text)
	s.drawn = s.drawn[:0]
	if columns > 0 {
		for _, line := range live(columns, rows) {
			b.WriteString(wrapOff + line + wrapOn + "\n")
			s.drawn = append(s.drawn, width(line))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := s.w.Write(b.Bytes())
	return err
}

// height returns the number of rows of the live lines. A terminal that has become narrower
// has wrapped wider lines.
func (s *screen) height(columns int) int {
	rows := 0
	for _, width := range s.drawn {
		rows++
		if columns > 0 && width > columns {
			rows += (width - 1) / columns
		}
	}
	return rows
}

// forget leaves the live lines on the terminal, after another program has written below
// them.
func (s *screen) forget() { s.drawn = s.drawn[:0] }

// width returns the number of columns of a line, which can contain colours.
func width(line string) int {
	return utf8.RuneCount(printable([]byte(line), false))
}

// printable removes from text what would move the cursor or change the terminal: of control
// characters and sequences it keeps only tabs, ends of lines and, with colours, colours. A
// carriage return inside of a line ends the line, too.
func printable(text []byte, colours bool) []byte {
	out := make([]byte, 0, len(text))
	coloured := false
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRune(text[i:])
		switch {
		case r == '\x1b':
			size = sequence(text[i:])
			if colours && size > 2 && text[i+1] == '[' && text[i+size-1] == 'm' {
				out = append(out, text[i:i+size]...)
				coloured = size > 3 && string(text[i:i+size]) != colourReset
			}
		case r == '\r' && i+1 < len(text) && text[i+1] != '\n':
			out = append(out, '\n')
		case r == '\n' && coloured:
			out, coloured = append(out, colourReset+"\n"...), false
		case r == '\n', r == '\t', !unicode.IsControl(r):
			out = append(out, text[i:i+size]...)
		}
		i += size
	}
	if coloured {
		out = append(out, colourReset...)
	}
	return out
}

// sequence returns the length of the escape sequence at the start of text.
func sequence(text []byte) int {
	if len(text) < 2 {
		return len(text)
	}
	ends := func(c byte) bool { return c >= 0x40 && c <= 0x7e }
	switch text[1] {
	case '[': // a control sequence, up to its final byte
	case ']', 'P', 'X', '^', '_': // a string, up to BEL or ESC \
		ends = func(c byte) bool { return c == '\a' || c == '\\' }
	default:
		return 2
	}
	for i, c := range text[2:] {
		switch {
		case ends(c):
			return i + 3
		case c == '\n' || c == '\r': // the sequence is cut off
			return i + 2
		}
	}
	return len(text)
}

// cut returns the start of a text that fits into columns.
func cut(text string, columns int) string {
	if runes := []rune(text); len(runes) > columns {
		return string(runes[:columns])
	}
	return text
}

// firstLine returns the first line of a text.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
