package terminal

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/term"
)

// FullScreen shows lines on the whole terminal, in place of the text that is there. The terminal is in raw
// mode, in which each key reaches the program at once, Ctrl-C too.
//
// All methods may be called concurrently.
type FullScreen struct {
	in, out *os.File

	mu    sync.Mutex
	saved *term.State // mode of the terminal before Enter; nil outside of Enter and Leave
	drawn []string    // lines on the terminal; nil if the content of the terminal is unknown
}

const (
	enterScreen = "\x1b[?1049h" // the alternate screen: Leave brings the former text back
	leaveScreen = "\x1b[?1049l"
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	eraseAll    = "\x1b[2J"
	eraseLine   = "\x1b[2K"

	// resetModes resets the modes that a program in a task can have left on: reports of the mouse and of
	// pastes, keys of the application, another character set, and a region for scrolling.
	resetModes = ColourReset + "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b(B\x0f\x1b[r"
)

// NewFullScreen returns a screen on a terminal, whose input and output can be two files. It does not change
// the terminal.
func NewFullScreen(in, out *os.File) *FullScreen { return &FullScreen{in: in, out: out} }

// Enter takes over the terminal. The caller must call Leave, also before a panic ends the process. A second
// call has no effect.
func (f *FullScreen) Enter() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.saved != nil {
		return nil
	}
	saved, err := term.MakeRaw(int(f.in.Fd()))
	if err != nil {
		return fmt.Errorf("prepare the terminal: %w", err)
	}
	f.saved, f.drawn = saved, nil
	_, err = f.out.WriteString(enterScreen + resetModes + hideCursor + disableWrap + eraseAll)
	return err
}

// Leave restores the terminal. A second call has no effect.
func (f *FullScreen) Leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.saved == nil {
		return
	}
	// Errors mean that the terminal was closed.
	_, _ = f.out.WriteString(ColourReset + enableWrap + showCursor + leaveScreen)
	_ = term.Restore(int(f.in.Fd()), f.saved)
	f.saved = nil
}

// Size returns the size of the terminal, or 80 columns and 24 rows if it has none.
func (f *FullScreen) Size() (columns, rows int) {
	columns, rows, err := term.GetSize(int(f.out.Fd()))
	if err != nil || columns <= 0 || rows <= 0 {
		return 80, 24
	}
	return columns, rows
}

// Redraw makes the next call of Draw write all lines, because the content of the terminal is unknown.
func (f *FullScreen) Redraw() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drawn = nil
}

// Draw shows one line per row from the top. It writes only lines that have changed, in a single write. Outside
// of Enter and Leave it has no effect.
func (f *FullScreen) Draw(lines []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.saved == nil {
		return nil
	}
	var b bytes.Buffer
	if f.drawn == nil {
		b.WriteString(eraseAll)
	}
	for i, line := range lines {
		if f.drawn == nil && line == "" || i < len(f.drawn) && f.drawn[i] == line {
			continue
		}
		fmt.Fprintf(&b, "\x1b[%d;1H%s%s", i+1, eraseLine, line)
	}
	if len(lines) < len(f.drawn) {
		fmt.Fprintf(&b, "\x1b[%d;1H\x1b[J", len(lines)+1)
	}
	f.drawn = slices.Clone(lines)
	if f.drawn == nil {
		f.drawn = []string{}
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := f.out.Write(b.Bytes())
	return err
}
