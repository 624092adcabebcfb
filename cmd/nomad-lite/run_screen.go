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

// screen is a terminal that keeps live lines below all that is written to it.
//
// The live lines are erased, followed by the new text and drawn again in one
// write, so that nothing flickers and the terminal is in its usual state
// whenever nomad-lite may be killed.
type screen struct {
	w io.Writer
	// size is how much room there is; nothing is drawn without columns.
	size  func() (columns, rows int)
	drawn []int // widths of the live lines on the terminal
}

const (
	wrapOff = "\x1b[?7l" // what is too wide is cut off
	wrapOn  = "\x1b[?7h"
)

// isScreen reports whether a stream is a terminal that can do more than a printer.
func isScreen(w io.Writer) bool {
	file, ok := w.(*os.File)
	name := os.Getenv("TERM")
	return ok && term.IsTerminal(int(file.Fd())) && name != "" && name != "dumb"
}

// newScreen returns the screen that standard error is, or nil. If standard output
// is a pipe there is none: whoever reads it may write to the same terminal, and
// would be erased.
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
		// The terminal of a background job shows somebody else's lines.
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

// sameFile reports whether two streams end in the same place.
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

// show writes whole lines of text, and draws what live returns for the room that
// there is below them.
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

// height is how many rows the live lines take up. A terminal that has become
// narrower has broken those that were wider.
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

// forget leaves the live lines where they are: something else has been written
// below them.
func (s *screen) forget() { s.drawn = s.drawn[:0] }

// width is how many columns a line takes up that may be coloured.
func width(line string) int {
	return utf8.RuneCount(printable([]byte(line), false))
}

// printable is text without what would move the cursor or change the terminal:
// of control characters and sequences only tabs, ends of lines and, if wanted,
// colours are left. A carriage return inside of a line ends it, too.
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

// sequence is the length of the escape sequence that text begins with.
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
		case c == '\n' || c == '\r': // cut off
			return i + 2
		}
	}
	return len(text)
}

// cut is the beginning of a text that fits into columns.
func cut(text string, columns int) string {
	if runes := []rune(text); len(runes) > columns {
		return string(runes[:columns])
	}
	return text
}

// firstLine is a text without what follows its first line.
func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}
