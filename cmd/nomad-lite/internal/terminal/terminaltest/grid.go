package terminaltest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// Grid is a fake terminal for programs that draw on the whole screen. It interprets the sequences that
// [terminal.FullScreen] and its callers write, and reports each other sequence as a fault.
//
// All methods may be called concurrently.
type Grid struct {
	mu            sync.Mutex
	columns, rows int
	cells         [][]gridCell
	y, x          int
	mainY, mainX  int             // cursor of the main screen while the alternate screen is shown
	partial       []byte          // start of a sequence or of a character
	modes         map[string]bool // modes that were switched on or off, by number
	attributes    string          // sequence of the present colour
	faults        []string
}

type gridCell struct {
	text  string // a character with its combining marks; "" for the second half of a wide character
	style string
}

// NewGrid returns an empty terminal of this size.
func NewGrid(columns, rows int) *Grid {
	g := &Grid{columns: columns, rows: rows, modes: map[string]bool{"7": true, "25": true}}
	g.erase()
	return g
}

// Write interprets text and escape sequences.
func (g *Grid) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := append(g.partial, p...)
	g.partial = nil
	for len(rest) > 0 {
		n := 1
		switch c := rest[0]; {
		case c == '\x1b':
			n = terminal.EscapeSequenceLength(rest)
			if !isComplete(rest[:n]) {
				g.partial = slices.Clone(rest)
				return len(p), nil
			}
			if n == 2 && strings.ContainsRune("()", rune(rest[1])) && len(rest) > 2 {
				n = 3 // the name of a character set
			}
			g.run(string(rest[:n]))
		case c == '\r':
			g.x = 0
		case c == '\n':
			g.y = min(g.y+1, g.rows-1)
		case c == '\x0f': // the usual character set
		case c < 0x20 || c == 0x7f:
			g.faults = append(g.faults, fmt.Sprintf("control character %q", c))
		default:
			if !utf8.FullRune(rest) {
				g.partial = slices.Clone(rest)
				return len(p), nil
			}
			var r rune
			r, n = utf8.DecodeRune(rest)
			g.put(r)
		}
		rest = rest[n:]
	}
	return len(p), nil
}

func isComplete(sequence []byte) bool {
	if len(sequence) < 2 {
		return false
	}
	last := sequence[len(sequence)-1]
	return sequence[1] != '[' || len(sequence) > 2 && last >= 0x40 && last <= 0x7e
}

func (g *Grid) run(sequence string) {
	var row, column int
	switch body := strings.TrimPrefix(sequence, "\x1b["); {
	case body == "2J":
		g.erase()
	case body == "2K":
		g.cells[g.y] = blankRow(g.columns)
	case body == "J":
		for y := g.y; y < g.rows; y++ {
			g.cells[y] = blankRow(g.columns)
		}
	case body == "?1049h" && !g.modes["1049"]:
		g.modes["1049"], g.mainY, g.mainX = true, g.y, g.x
	case body == "?1049l" && g.modes["1049"]:
		g.modes["1049"], g.y, g.x = false, g.mainY, g.mainX
	case body == "r", sequence == "\x1b>", sequence == "\x1b(B":
	case strings.HasPrefix(body, "?") && strings.HasSuffix(body, "h"), strings.HasPrefix(body, "?") && strings.HasSuffix(body, "l"):
		g.modes[body[1:len(body)-1]] = strings.HasSuffix(body, "h")
	case strings.HasSuffix(body, "m"):
		g.attributes = sequence
		if sequence == terminal.ColourReset {
			g.attributes = ""
		}
	case scans(body, "%d;%dH", &row, &column):
		g.y, g.x = min(max(row-1, 0), g.rows-1), min(max(column-1, 0), g.columns-1)
	case scans(body, "%dG", &column):
		g.x = min(max(column-1, 0), g.columns-1)
	default:
		g.faults = append(g.faults, fmt.Sprintf("sequence %q", sequence))
	}
}

// scans reports whether a text has exactly this form.
func scans(text, format string, values ...any) bool {
	n, err := fmt.Sscanf(text, format, values...)
	return err == nil && n == len(values)
}

func (g *Grid) put(r rune) {
	width := terminal.RuneWidth(r)
	switch {
	case width == 0 && g.x > 0:
		g.cells[g.y][g.x-1].text += string(r)
		return
	case g.x+width > g.columns:
		if g.modes["7"] {
			g.faults = append(g.faults, fmt.Sprintf("row %d is wider than the terminal", g.y))
		}
		return
	}
	g.cells[g.y][g.x] = gridCell{string(r), g.attributes}
	if width == 2 {
		g.cells[g.y][g.x+1] = gridCell{"", g.attributes}
	}
	g.x += width
}

func (g *Grid) erase() {
	g.cells = make([][]gridCell, g.rows)
	for y := range g.cells {
		g.cells[y] = blankRow(g.columns)
	}
}

func blankRow(columns int) []gridCell {
	return slices.Repeat([]gridCell{{text: " "}}, columns)
}

// Resize changes the size, and erases the terminal.
func (g *Grid) Resize(columns, rows int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.columns, g.rows, g.y, g.x = columns, rows, 0, 0
	g.erase()
}

// String returns the text of all rows, without spaces at their ends.
func (g *Grid) String() string {
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

// StyledRow returns the text of the cells of a row that have an attribute, such as "\x1b[7m".
func (g *Grid) StyledRow(row int, attribute string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	text := ""
	for _, c := range g.cells[row] {
		if c.style == attribute {
			text += c.text
		}
	}
	return strings.TrimRight(text, " ")
}

// Mode reports whether a private mode, such as "1049", is on.
func (g *Grid) Mode(number string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.modes[number]
}

// Faults returns the sequences and characters that a safe program does not write.
func (g *Grid) Faults() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.faults)
}
