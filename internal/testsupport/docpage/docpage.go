package docpage

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/golden"
)

// A generated part of a page is between these two lines.
const (
	beginMarker = "<!-- begin of the generated part -->\n"
	endMarker   = "<!-- end of the generated part -->\n"
)

// Check fails the test unless a page of docs has the given text. The path is relative to docs. make reference writes the page.
func Check(t testing.TB, path, text string) {
	t.Helper()
	golden.CheckReference(t, filepath.Join(Dir(t), path), text)
}

// CheckPart does the same for the generated part of a page that is otherwise written by hand.
func CheckPart(t testing.TB, path, part string) {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(Dir(t), path))
	if err != nil {
		t.Fatal(err)
	}
	text, ok := replacePart(string(page), part)
	if !ok {
		t.Fatalf("docs/%s does not have the two lines %q and %q", path, beginMarker, endMarker)
	}
	Check(t, path, text)
}

// replacePart returns the page with another generated part. It returns false if the page has not exactly one generated part.
func replacePart(page, part string) (text string, ok bool) {
	if strings.Count(page, beginMarker) != 1 || strings.Count(page, endMarker) != 1 {
		return "", false
	}
	before, rest, _ := strings.Cut(page, beginMarker)
	_, after, ok := strings.Cut(rest, endMarker)
	return before + beginMarker + part + endMarker + after, ok
}

// Dir returns the directory docs of the module that contains the working directory.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		docs := filepath.Join(dir, "docs")
		if _, err := os.Stat(filepath.Join(docs, "promises")); err == nil {
			return docs
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no directory above the working directory has docs/promises")
		}
		dir = filepath.Dir(dir)
	}
}

// Table is a table in Markdown.
type Table struct{ text strings.Builder }

// NewTable returns a table without rows.
func NewTable(titles ...string) *Table {
	t := &Table{}
	t.AddRow(titles...)
	t.text.WriteString(strings.Repeat("| --- ", len(titles)) + "|\n")
	return t
}

// AddRow adds a row of Markdown. In a cell, a line break becomes a space, and a vertical bar is escaped, and so is "<" outside of
// code, because it would start an HTML element.
func (t *Table) AddRow(cells ...string) {
	for _, cell := range cells {
		cell = strings.ReplaceAll(escapeElements(strings.Join(strings.Fields(cell), " ")), "|", `\|`)
		if cell != "" {
			cell += " "
		}
		t.text.WriteString("| " + cell)
	}
	t.text.WriteString("|\n")
}

// backquotes matches the start or the end of code. Both have the same number of backquotes.
var backquotes = regexp.MustCompile("`+")

// escapeElements escapes each "<" outside of code.
func escapeElements(text string) string {
	var out strings.Builder
	codeQuotes, end := "", 0 // codeQuotes is the start of the code that contains end, or empty
	copyUntil := func(to int) {
		part := text[end:to]
		if codeQuotes == "" {
			part = strings.ReplaceAll(part, "<", "&lt;")
		}
		out.WriteString(part)
		end = to
	}
	for _, span := range backquotes.FindAllStringIndex(text, -1) {
		copyUntil(span[0])
		switch quotes := text[span[0]:span[1]]; codeQuotes {
		case "":
			codeQuotes = quotes
		case quotes:
			codeQuotes = ""
		}
		out.WriteString(text[span[0]:span[1]])
		end = span[1]
	}
	copyUntil(len(text))
	return out.String()
}

// String returns the table in Markdown, or an empty text if it has no rows.
func (t *Table) String() string {
	if strings.Count(t.text.String(), "\n") == 2 {
		return ""
	}
	return t.text.String()
}

// Code returns texts as code, with a space between them. It omits empty texts.
func Code(texts ...string) string {
	var all []string
	for _, text := range texts {
		switch {
		case text == "":
		case strings.Contains(text, "`"):
			all = append(all, "`` "+text+" ``")
		default:
			all = append(all, "`"+text+"`")
		}
	}
	return strings.Join(all, " ")
}
