package manpages

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
)

const program = "nomad-lite"

// help is the help text of a command, in its sections.
type help struct {
	words       []string // the command line, without the program
	summary     string   // text of the parent's list of commands; "" for the program
	description string
	sections    []section
	children    []help
}

// section is a part of a help text with a title, such as "Flags".
type section struct {
	title string
	lines []string
}

// Generate runs the program at path and returns the manual pages, by file name. All pages have the version and the date.
func Generate(ctx context.Context, path, version string, date time.Time) (map[string][]byte, error) {
	top, err := readHelp(ctx, path, nil, "")
	if err != nil {
		return nil, err
	}
	pages := map[string][]byte{program + ".1": writePage(top, nil, version, date)}
	for _, command := range top.children {
		pages[pageName(command.words)+".1"] = writePage(command, descendants(command), version, date)
	}
	return pages, nil
}

func pageName(words []string) string { return strings.Join(append([]string{program}, words...), "-") }

// descendants returns the subcommands of a command, each before its own subcommands.
func descendants(h help) []help {
	var all []help
	for _, child := range h.children {
		all = append(append(all, child), descendants(child)...)
	}
	return all
}

// readHelp runs the program with -help for a command and all its subcommands.
func readHelp(ctx context.Context, path string, words []string, summary string) (help, error) {
	cmd := exec.CommandContext(ctx, path, append(slices.Clone(words), "-help")...)
	// The texts must not depend on the machine that makes them.
	cmd.Env = []string{"HOME=/nonexistent", "LC_ALL=C", "TZ=UTC"}
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil {
		return help{}, fmt.Errorf("run %s: %w\n%s", strings.Join(cmd.Args, " "), err, stderr.Bytes())
	}
	h, err := parseHelp(out.String())
	if err != nil {
		return help{}, fmt.Errorf("help text of %s: %w", strings.Join(append([]string{program}, words...), " "), err)
	}
	h.words, h.summary = words, summary
	for _, s := range h.sections {
		if !s.listsCommands() {
			continue
		}
		for _, line := range s.lines {
			name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
			child, err := readHelp(ctx, path, append(slices.Clone(words), name), strings.TrimSpace(text))
			if err != nil {
				return help{}, err
			}
			h.children = append(h.children, child)
		}
	}
	return h, nil
}

// knownSections are the titles of the sections of a help text that list no commands.
var knownSections = []string{"Usage", "Aliases", "Examples", "Flags", "Common flags"}

func (s section) listsCommands() bool { return !slices.Contains(knownSections, s.title) }

// titlePattern matches the title of a section, which stands alone in its line.
var titlePattern = regexp.MustCompile(`^([A-Z][A-Za-z ]*):$`)

// parseHelp splits a help text into its description, which ends at the line "Usage:", and its sections.
func parseHelp(text string) (help, error) {
	description, rest, found := strings.Cut("\n"+text, "\nUsage:\n")
	if !found {
		return help{}, fmt.Errorf("no line %q", "Usage:")
	}
	h := help{description: strings.TrimSpace(description)}
	current := &section{title: "Usage"}
	for line := range strings.Lines(rest) {
		line = strings.TrimRight(line, "\n")
		switch match := titlePattern.FindStringSubmatch(line); {
		case match != nil:
			h.sections = append(h.sections, *current)
			current = &section{title: match[1]}
		case strings.HasPrefix(line, "Run '"): // the last line, about the help of subcommands
		case line != "":
			current.lines = append(current.lines, line)
		}
	}
	h.sections = append(h.sections, *current)
	return h, nil
}

// writePage returns the page of a command with its subcommands.
func writePage(top help, subcommands []help, version string, date time.Time) []byte {
	var b bytes.Buffer
	name := pageName(top.words)
	fmt.Fprintf(&b, ".TH %s 1 %s %s %s\n", quote(strings.ToUpper(name)), quote(date.UTC().Format(time.DateOnly)), quote(program+" "+version), quote("Manual of "+program))
	summary := top.summary
	if summary == "" {
		summary, _, _ = strings.Cut(top.description, "\n")
	}
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", escape(name), escape(strings.TrimSuffix(summary, ".")))
	for _, s := range top.sections {
		if s.title == "Usage" {
			b.WriteString(".SH SYNOPSIS\n")
			writeLiteral(&b, s.lines)
		}
	}
	b.WriteString(".SH DESCRIPTION\n")
	writeLiteral(&b, strings.Split(top.description, "\n"))
	for _, s := range top.sections {
		if s.title != "Usage" {
			fmt.Fprintf(&b, ".SH %s\n", quote(strings.ToUpper(s.title)))
			writeSection(&b, s)
		}
	}
	for _, sub := range subcommands {
		fmt.Fprintf(&b, ".SH %s\n", quote(strings.ToUpper(strings.Join(sub.words, " "))))
		writeLiteral(&b, strings.Split(sub.description, "\n"))
		for _, s := range sub.sections {
			fmt.Fprintf(&b, ".SS %s\n", quote(s.title))
			writeSection(&b, s)
		}
	}
	b.WriteString(".SH SEE ALSO\n")
	if len(top.words) > 0 {
		fmt.Fprintf(&b, ".BR %s (1)\n", escape(program))
		return b.Bytes()
	}
	for i, child := range top.children {
		separator := ","
		if i == len(top.children)-1 {
			separator = ""
		}
		fmt.Fprintf(&b, ".BR %s (1)%s\n", escape(pageName(child.words)), separator)
	}
	return b.Bytes()
}

// writeSection writes flags and commands as lists, and all other sections as they are.
func writeSection(b *bytes.Buffer, s section) {
	if s.title == "Usage" || s.title == "Examples" || s.title == "Aliases" {
		writeLiteral(b, s.lines)
		return
	}
	for _, line := range s.lines {
		name, text := splitItem(line)
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", quote(name), escape(text))
	}
}

// splitItem splits a line of a list of flags or commands into the name and the text. At least two spaces are between
// them, or one after the longest name of a list of commands.
func splitItem(line string) (name, text string) {
	line = strings.TrimSpace(line)
	name, text, found := strings.Cut(line, "  ")
	if !found && !strings.HasPrefix(line, "-") {
		name, text, _ = strings.Cut(line, " ")
	}
	return name, strings.TrimSpace(text)
}

// writeLiteral writes lines that keep their breaks and columns, as the help text has them.
func writeLiteral(b *bytes.Buffer, lines []string) {
	b.WriteString(".nf\n")
	for _, line := range lines {
		b.WriteString(escape(line) + "\n")
	}
	b.WriteString(".fi\n")
}

// escape returns text for roff: backslashes, hyphens and non-ASCII characters by their names, and no line that roff reads
// as a request.
func escape(text string) string {
	var b strings.Builder
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		b.WriteString(`\&`)
	}
	for _, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r > unicode.MaxASCII:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// quote returns an argument of a roff request.
func quote(text string) string {
	return `"` + strings.ReplaceAll(escape(text), `"`, `\(dq`) + `"`
}
