package terminal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// LiveScreen is a terminal on which live lines stay below all text that is written.
//
// A single write erases the live lines, writes the new text and draws the live lines again. So nothing flickers, and
// the terminal is in its usual state even if nomad-lite is killed.
type LiveScreen struct {
	Output io.Writer
	// Size returns the size of the terminal. If columns is 0, no live lines are drawn.
	Size            func() (columns, rows int)
	drawnLineWidths []int // widths of the live lines that are drawn on the terminal
}

const (
	disableWrap = "\x1b[?7l" // makes the terminal cut off wide lines
	enableWrap  = "\x1b[?7h"
)

// NewLiveScreenOrNil returns a screen on standard error, or nil if that is no terminal. It also returns nil
// if standard output is a pipe: the reader of the pipe can write to the same terminal, and the
// screen would erase its text.
func NewLiveScreenOrNil(stdout, stderr io.Writer) *LiveScreen {
	file, _ := FileOfStream(stderr)
	out, ok := FileOfStream(stdout)
	if !SupportsCursor(stderr) || !ok {
		return nil
	}
	if info, err := out.Stat(); err != nil || info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
		return nil
	}
	return &LiveScreen{Output: file, Size: func() (columns, rows int) {
		fd := int(file.Fd())
		// A background job must not draw live lines, because its terminal shows the output of other
		// processes.
		if !isForegroundJobOf(fd) {
			return 0, 0
		}
		columns, rows, err := term.GetSize(fd)
		if err != nil {
			return 0, 0
		}
		return columns, rows
	}}
}

// WriteAboveLiveLines writes whole lines of text, and then draws the live lines that liveLines returns for the size of
// the terminal. It sanitizes both by SanitizeText.
func (s *LiveScreen) WriteAboveLiveLines(text []byte, liveLines func(columns, rows int) []string) error {
	columns, rows := s.Size()
	var b bytes.Buffer
	if up := s.drawnRowCount(columns); up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA\r\x1b[J", up)
	}
	b.Write(SanitizeText(text, true))
	s.drawnLineWidths = s.drawnLineWidths[:0]
	if columns > 0 {
		for _, line := range liveLines(columns, rows) {
			line = strings.ReplaceAll(string(SanitizeText([]byte(line), true)), "\n", " ")
			b.WriteString(disableWrap + line + enableWrap + "\n")
			s.drawnLineWidths = append(s.drawnLineWidths, DisplayWidth(line))
		}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := s.Output.Write(b.Bytes())
	return err
}

// drawnRowCount returns the number of terminal rows that the live lines occupy. If the terminal has
// become narrower, a wide line occupies several rows.
func (s *LiveScreen) drawnRowCount(columns int) int {
	rows := 0
	for _, width := range s.drawnLineWidths {
		rows++
		if columns > 0 && width > columns {
			rows += (width - 1) / columns
		}
	}
	return rows
}

// KeepDrawnLinesAtNextWrite makes the next call of WriteAboveLiveLines leave the drawn live lines on the terminal. It
// must be called when another program has written below them.
func (s *LiveScreen) KeepDrawnLinesAtNextWrite() { s.drawnLineWidths = s.drawnLineWidths[:0] }
