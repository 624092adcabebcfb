package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Screen is a terminal that keeps live lines below all text that is written to it.
//
// The live lines are erased, followed by the new text and drawn again in one write, so that
// nothing flickers and the terminal is in its usual state even if nomad-lite is killed.
type Screen struct {
	W io.Writer
	// Size returns the size of the terminal; without columns, no live lines are drawn.
	Size        func() (columns, rows int)
	drawnWidths []int // widths of the live lines on the terminal
}

const (
	disableWrap = "\x1b[?7l" // the terminal cuts off wide lines
	enableWrap  = "\x1b[?7h"
)

// NewScreen returns the screen on standard error, or nil. It returns nil if standard output
// is a pipe: the reader of the pipe can write to the same terminal, and the screen would
// erase that text.
func NewScreen(stdout, stderr io.Writer) *Screen {
	file, _ := stderr.(*os.File)
	out, ok := stdout.(*os.File)
	if !SupportsCursor(stderr) || !ok {
		return nil
	}
	if info, err := out.Stat(); err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
		return nil
	}
	return &Screen{W: file, Size: func() (columns, rows int) {
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

// Show writes whole lines of text, and draws the lines that live returns for the space
// below them.
func (s *Screen) Show(text []byte, live func(columns, rows int) []string) error {
	columns, rows := s.Size()
	var b bytes.Buffer
	if up := s.liveHeight(columns); up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", up)
	}
	b.Write(text)
	s.drawnWidths = s.drawnWidths[:0]
	if columns > 0 {
		for _, line := range live(columns, rows) {
			b.WriteString(disableWrap + line + enableWrap + "\n")
			s.drawnWidths = append(s.drawnWidths, DisplayWidth(line))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := s.W.Write(b.Bytes())
	return err
}

// liveHeight returns the number of terminal rows that the live lines occupy. A terminal that
// has become narrower shows a line that is too wide in several rows.
func (s *Screen) liveHeight(columns int) int {
	rows := 0
	for _, width := range s.drawnWidths {
		rows++
		if columns > 0 && width > columns {
			rows += (width - 1) / columns
		}
	}
	return rows
}

// ForgetDrawnLines leaves the live lines on the terminal, after another program has written below
// them.
func (s *Screen) ForgetDrawnLines() { s.drawnWidths = s.drawnWidths[:0] }
