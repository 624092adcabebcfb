package output

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
)

// Page is the output of a command for a person. Text from an agent is added as cells, which remove control sequences of
// terminals.
type Page struct {
	Text            strings.Builder
	useColours      bool
	commandLineArgs []string // arguments of the program, for AddNextPageHint
}

// NewPage returns an empty page for the standard output of a command.
func NewPage(s *cli.Streams) *Page {
	return &Page{useColours: s.SupportsColours(s.Out), commandLineArgs: s.CommandLineArgs}
}

// PrintPage writes the page to standard output.
func PrintPage(s *cli.Streams, p *Page) error {
	_, err := io.WriteString(s.Out, p.Text.String())
	return err
}

// FormatCell returns a value as one line of text without control sequences, in the colour of the cell.
func (p *Page) FormatCell(value any) string {
	colour := ""
	switch c := value.(type) {
	case blankCell:
		return ""
	case ColouredCell:
		colour, value = c.ColourEscape, c.Text
	}
	text := terminal.SanitizeAndTrimLine(fmt.Sprint(value))
	if text == "" {
		return EmptyCell
	}
	return p.Colourize(colour, text)
}

// Colourize returns the text in the colour, or the plain text if the page has no colours.
func (p *Page) Colourize(colourEscape, text string) string {
	if colourEscape == "" || !p.useColours {
		return text
	}
	return colourEscape + text + terminal.ColourReset
}

// AddLine adds a formatted line. FormatCell formats those arguments that are strings, errors, cells or have a String
// method.
func (p *Page) AddLine(format string, args ...any) {
	for i, arg := range args {
		switch arg.(type) {
		case string, ColouredCell, fmt.Stringer, error:
			args[i] = p.FormatCell(arg)
		}
	}
	fmt.Fprintf(&p.Text, format+"\n", args...)
}

// AddSectionTitle adds a title in bold. An empty line separates it from the text above.
func (p *Page) AddSectionTitle(title string) {
	if p.Text.Len() > 0 {
		p.Text.WriteByte('\n')
	}
	p.Text.WriteString(p.Colourize(terminal.ColourBold, title) + "\n")
}

// Table is a table of cells in aligned columns. Without Titles it has no head.
type Table struct {
	Titles []string
	Rows   [][]any
}

// NewTable returns an empty table with these column titles.
func NewTable(titles ...string) *Table { return &Table{Titles: titles} }

// AddRow adds a row.
func (t *Table) AddRow(cells ...any) { t.Rows = append(t.Rows, cells) }

// Pairs are rows of a name and a value, which are aligned at the equals sign between them.
type Pairs [][2]any

// AddTable adds a table. Its columns are as wide as their widest cells.
func (p *Page) AddTable(t *Table) { p.writeTable("", t) }

// writeTable adds a table with a prefix on each line.
func (p *Page) writeTable(indent string, t *Table) {
	rows := make([][]string, 0, len(t.Rows)+1)
	if t.Titles != nil {
		head := make([]string, len(t.Titles))
		for i, title := range t.Titles {
			head[i] = p.Colourize(terminal.ColourBold, title)
		}
		rows = append(rows, head)
	}
	for _, row := range t.Rows {
		cells := make([]string, len(row))
		for i, value := range row {
			cells[i] = p.FormatCell(value)
		}
		rows = append(rows, cells)
	}
	p.writeAlignedRows(indent, "  ", rows)
}

// AddPairs adds rows of the form "name = value".
func (p *Page) AddPairs(all Pairs) { p.AddPairsWithSeparator(" = ", all) }

// AddPairsWithSeparator adds rows of a name and a value with separator between them.
func (p *Page) AddPairsWithSeparator(separator string, all Pairs) {
	rows := make([][]string, len(all))
	for i, pair := range all {
		rows[i] = []string{p.Colourize(terminal.ColourBold, fmt.Sprint(pair[0])), p.FormatCell(pair[1])}
	}
	p.writeAlignedRows("", separator, rows)
}

func (p *Page) writeAlignedRows(indent, columnSeparator string, rows [][]string) {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], terminal.DisplayWidth(cell))
		}
	}
	for _, row := range rows {
		p.Text.WriteString(indent)
		for i, cell := range row {
			p.Text.WriteString(cell)
			if i < len(row)-1 {
				p.Text.WriteString(strings.Repeat(" ", widths[i]-terminal.DisplayWidth(cell)) + columnSeparator)
			}
		}
		p.Text.WriteByte('\n')
	}
}

// AddTableOrMessage adds a table, or the given message if the table is empty.
func (p *Page) AddTableOrMessage(t *Table, emptyMessage string) {
	if len(t.Rows) == 0 {
		p.AddLine("%s", emptyMessage)
		return
	}
	p.AddTable(t)
}

// SortedPairs returns the keys and values of a map, sorted by key.
func SortedPairs(m map[string]string) Pairs {
	var all Pairs
	for _, name := range slices.Sorted(maps.Keys(m)) {
		all = append(all, [2]any{name, m[name]})
	}
	return all
}

// AddSanitizedLines adds a text of several lines from an agent, without control sequences.
func (p *Page) AddSanitizedLines(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		p.Text.WriteString(strings.TrimRight(string(terminal.SanitizeText([]byte(line), false)), "\n") + "\n")
	}
}

// AddIndented calls add, and puts indent before each line that add writes, except for empty lines.
func (p *Page) AddIndented(indent string, add func(*Page)) {
	inner := &Page{useColours: p.useColours}
	add(inner)
	for line := range strings.Lines(inner.Text.String()) {
		if line != "\n" {
			line = indent + line
		}
		_, _ = io.WriteString(&p.Text, line) // a strings.Builder returns no error
	}
}

// AddNextPageHint adds the command line that shows the next page of a list, if the list has one.
func (p *Page) AddNextPageHint(meta *api.QueryMeta) {
	if meta != nil && meta.NextToken != "" {
		p.AddLine("")
		p.AddLine("Results have been paginated. To get the next page run:")
		p.AddLine("")
		p.AddLine("%s", formatNextPageCommand(p.commandLineArgs, meta.NextToken))
	}
}

// formatNextPageCommand returns the command line with these arguments, in which pageToken replaces the page token.
func formatNextPageCommand(args []string, pageToken string) string {
	words := []string{"nomad-lite"}
	for i := 0; i < len(args); i++ {
		name, _, hasValue := strings.Cut(strings.TrimLeft(args[i], "-"), "=")
		switch {
		case args[i] == name || name != "page-token":
			words = append(words, shellquote.QuoteIfNeeded(args[i]))
		case !hasValue:
			i++ // the value of -page-token
		}
	}
	return strings.Join(append(words, "-page-token", pageToken), " ")
}

// AddTimedHeading adds a line with the present time and "==>", under which a monitor adds lines by AddTimedDetailLine.
func (p *Page) AddTimedHeading(format string, args ...any) {
	p.AddLine("==> "+time.Now().Format(time.RFC3339)+": "+format, args...)
}

// AddTimedDetailLine adds an indented line with the present time, below an AddTimedHeading line.
func (p *Page) AddTimedDetailLine(format string, args ...any) {
	p.AddLine("    "+time.Now().Format(time.RFC3339)+": "+format, args...)
}
