package terminal

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/term"
)

// FullScreen shows lines on the whole terminal in place of its content. The terminal is in raw mode, so that the
// program gets each key at once, including Ctrl-C.
//
// All methods may be called concurrently.
type FullScreen struct {
	in, out *os.File

	mu         sync.Mutex
	savedMode  *term.State // mode of the terminal before Enter; nil outside of Enter and Leave
	drawnLines []string    // lines on the terminal; nil if the content of the terminal is unknown
}

const (
	enterScreen = "\x1b[?1049h" // the alternate screen, which keeps the text of the main screen for Leave
	leaveScreen = "\x1b[?1049l"
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	eraseAll    = "\x1b[2J"
	eraseLine   = "\x1b[2K"

	// resetModes resets the modes that a program in a task can have left set: mouse reports, bracketed paste,
	// application keys, another character set, and a scroll region.
	resetModes = ColourReset + "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b(B\x0f\x1b[r"
)

// NewFullScreen returns a screen on the terminal whose input is in and whose output is out. It does not change the
// terminal.
func NewFullScreen(in, out *os.File) *FullScreen { return &FullScreen{in: in, out: out} }

// Enter puts the terminal into raw mode and shows the alternate screen. The caller must call Leave, even before a panic
// ends the process. A second call has no effect.
func (f *FullScreen) Enter() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.savedMode != nil {
		return nil
	}
	saved, err := term.MakeRaw(int(f.in.Fd()))
	if err != nil {
		return fmt.Errorf("prepare the terminal: %w", err)
	}
	f.savedMode, f.drawnLines = saved, nil
	_, err = f.out.WriteString(enterScreen + resetModes + hideCursor + disableWrap + eraseAll)
	return err
}

// Leave restores the mode and the content of the terminal. A second call has no effect.
func (f *FullScreen) Leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.savedMode == nil {
		return
	}
	// Errors mean that the terminal was closed.
	_, _ = f.out.WriteString(ColourReset + enableWrap + showCursor + leaveScreen)
	_ = term.Restore(int(f.in.Fd()), f.savedMode)
	f.savedMode = nil
}

// Size returns the size of the terminal, or 80 columns and 24 rows if the terminal reports none.
func (f *FullScreen) Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(f.out.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return 80, 24
	}
	return columns, rows
}

// RedrawAllAtNextDraw makes the next call of DrawChangedLines write all lines, for when the content of the terminal is
// unknown.
func (f *FullScreen) RedrawAllAtNextDraw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drawnLines = nil
}

// DrawChangedLines shows one line in each row from the top. It writes, at once, only lines that differ from the drawn
// ones. Before Enter and after Leave it has no effect.
func (f *FullScreen) DrawChangedLines(lines []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.savedMode == nil {
		return nil
	}
	var b bytes.Buffer
	if f.drawnLines == nil {
		b.WriteString(eraseAll)
	}
	for i, line := range lines {
		if f.drawnLines == nil && line == "" || i < len(f.drawnLines) && f.drawnLines[i] == line {
			continue
		}
		fmt.Fprintf(&b, "\x1b[%d;1H%s%s", i+1, eraseLine, line)
	}
	if len(lines) < len(f.drawnLines) {
		fmt.Fprintf(&b, "\x1b[%d;1H\x1b[J", len(lines)+1)
	}
	f.drawnLines = slices.Clone(lines)
	if f.drawnLines == nil {
		f.drawnLines = []string{}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := f.out.Write(b.Bytes())
	return err
}
