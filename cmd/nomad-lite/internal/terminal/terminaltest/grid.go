package terminaltest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// FakeFullScreenTerminal is a fake terminal for programs that draw on the whole screen. It interprets the escape
// sequences that [terminal.FullScreen] and its callers write, and records each other sequence as a fault.
//
// All methods may be called concurrently.
type FakeFullScreenTerminal struct {
	mu                              sync.Mutex
	columns, rows                   int
	cells                           [][]screenCell
	cursorRow, cursorColumn         int
	mainCursorRow, mainCursorColumn int             // cursor of the main screen while the alternate screen is shown
	incompleteInput                 []byte          // start of a sequence or of a character that the next Write completes
	modeOnByNumber                  map[string]bool // number of a private mode -> whether it is on
	currentStyle                    string          // escape sequence of the present colour
	unsafeOutputs                   []string
}

type screenCell struct {
	text  string // a character with its combining marks; "" for the second half of a wide character
	style string
}

// NewFakeFullScreenTerminal returns an empty terminal of this size.
func NewFakeFullScreenTerminal(columns, rows int) *FakeFullScreenTerminal {
	g := &FakeFullScreenTerminal{columns: columns, rows: rows, modeOnByNumber: map[string]bool{"7": true, "25": true}}
	g.eraseScreen()
	return g
}

// Write interprets text and escape sequences, as a terminal does.
func (g *FakeFullScreenTerminal) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := append(g.incompleteInput, p...)
	g.incompleteInput = nil
	for len(rest) > 0 {
		n := 1
		switch c := rest[0]; {
		case c == '\x1b':
			n = terminal.EscapeSequenceLength(rest)
			if !isSequenceComplete(rest[:n]) {
				g.incompleteInput = slices.Clone(rest)
				return len(p), nil
			}
			if n == 2 && strings.ContainsRune("()", rune(rest[1])) && len(rest) > 2 {
				n = 3 // the third byte names a character set
			}
			g.runEscapeSequence(string(rest[:n]))
		case c == '\r':
			g.cursorColumn = 0
		case c == '\n':
			g.cursorRow = min(g.cursorRow+1, g.rows-1)
		case c == '\x0f': // selects the usual character set
		case c < 0x20 || c == 0x7f:
			g.unsafeOutputs = append(g.unsafeOutputs, fmt.Sprintf("control character %q", c))
		default:
			if !utf8.FullRune(rest) {
				g.incompleteInput = slices.Clone(rest)
				return len(p), nil
			}
			var r rune
			r, n = utf8.DecodeRune(rest)
			g.putRune(r)
		}
		rest = rest[n:]
	}
	return len(p), nil
}

func isSequenceComplete(sequence []byte) bool {
	if len(sequence) < 2 {
		return false
	}
	last := sequence[len(sequence)-1]
	return sequence[1] != '[' || len(sequence) > 2 && last >= 0x40 && last <= 0x7e
}

func (g *FakeFullScreenTerminal) runEscapeSequence(sequence string) {
	var row, column int
	switch body := strings.TrimPrefix(sequence, "\x1b["); {
	case body == "2J":
		g.eraseScreen()
	case body == "2K":
		g.cells[g.cursorRow] = blankRow(g.columns)
	case body == "J":
		for y := g.cursorRow; y < g.rows; y++ {
			g.cells[y] = blankRow(g.columns)
		}
	case body == "?1049h" && !g.modeOnByNumber["1049"]:
		g.modeOnByNumber["1049"], g.mainCursorRow, g.mainCursorColumn = true, g.cursorRow, g.cursorColumn
	case body == "?1049l" && g.modeOnByNumber["1049"]:
		g.modeOnByNumber["1049"], g.cursorRow, g.cursorColumn = false, g.mainCursorRow, g.mainCursorColumn
	case body == "r", sequence == "\x1b>", sequence == "\x1b(B":
	case strings.HasPrefix(body, "?") && strings.HasSuffix(body, "h"), strings.HasPrefix(body, "?") && strings.HasSuffix(body, "l"):
		g.modeOnByNumber[body[1:len(body)-1]] = strings.HasSuffix(body, "h")
	case strings.HasSuffix(body, "m"):
		g.currentStyle = sequence
		if sequence == terminal.ColourReset {
			g.currentStyle = ""
		}
	case scanFormat(body, "%d;%dH", &row, &column):
		g.cursorRow, g.cursorColumn = min(max(row-1, 0), g.rows-1), min(max(column-1, 0), g.columns-1)
	case scanFormat(body, "%dG", &column):
		g.cursorColumn = min(max(column-1, 0), g.columns-1)
	default:
		g.unsafeOutputs = append(g.unsafeOutputs, fmt.Sprintf("sequence %q", sequence))
	}
}

// scanFormat reports whether fmt.Sscanf can read all values from text by this format.
func scanFormat(text, format string, scannedValues ...any) bool {
	n, err := fmt.Sscanf(text, format, scannedValues...)
	return err == nil && n == len(scannedValues)
}

func (g *FakeFullScreenTerminal) putRune(r rune) {
	width := terminal.RuneWidth(r)
	switch {
	case width == 0 && g.cursorColumn > 0:
		g.cells[g.cursorRow][g.cursorColumn-1].text += string(r)
		return
	case g.cursorColumn+width > g.columns:
		if g.modeOnByNumber["7"] {
			g.unsafeOutputs = append(g.unsafeOutputs, fmt.Sprintf("row %d is wider than the terminal", g.cursorRow))
		}
		return
	}
	g.cells[g.cursorRow][g.cursorColumn] = screenCell{string(r), g.currentStyle}
	if width == 2 {
		g.cells[g.cursorRow][g.cursorColumn+1] = screenCell{"", g.currentStyle}
	}
	g.cursorColumn += width
}

func (g *FakeFullScreenTerminal) eraseScreen() {
	g.cells = make([][]screenCell, g.rows)
	for y := range g.cells {
		g.cells[y] = blankRow(g.columns)
	}
}

func blankRow(columns int) []screenCell {
	return slices.Repeat([]screenCell{{text: " "}}, columns)
}

// ResizeAndErase changes the size, and erases the terminal.
func (g *FakeFullScreenTerminal) ResizeAndErase(columns, rows int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.columns, g.rows, g.cursorRow, g.cursorColumn = columns, rows, 0, 0
	g.eraseScreen()
}

// String returns the text of all rows, without spaces at their ends.
func (g *FakeFullScreenTerminal) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var b strings.Builder
	for _, cells := range g.cells {
		row := ""
		for _, c := range cells {
			row += c.text
		}
		b.WriteString(strings.TrimRight(row, " ") + "\n")
	}
	return b.String()
}

// StyledTextOfRow returns the text of those cells of a row that were written after escapeSequence, such as "\x1b[7m".
func (g *FakeFullScreenTerminal) StyledTextOfRow(row int, escapeSequence string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	text := ""
	for _, c := range g.cells[row] {
		if c.style == escapeSequence {
			text += c.text
		}
	}
	return strings.TrimRight(text, " ")
}

// IsModeOn reports whether the private mode with this number, such as "1049", is on.
func (g *FakeFullScreenTerminal) IsModeOn(privateModeNumber string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.modeOnByNumber[privateModeNumber]
}

// UnsafeOutputs returns descriptions of the escape sequences and characters that a safe program does not write.
func (g *FakeFullScreenTerminal) UnsafeOutputs() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.unsafeOutputs)
}
