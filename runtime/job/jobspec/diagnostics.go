package jobspec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hashicorp/hcl/v2"
)

// printOnlyFirstExtra marks a diagnostic, in its Extra field, with the parser step that found it. Nomad prints
// the diagnostics of some steps in a shortened form, and clients show that text.
type printOnlyFirstExtra struct {
	// printPrefix precedes the text.
	printPrefix string
}

// markPrintOnlyFirst marks diagnostics of a step of which NomadErrorText prints only the first diagnostic and the
// number of the other diagnostics.
func markPrintOnlyFirst(diags hcl.Diagnostics, printPrefix string) hcl.Diagnostics {
	mark := &printOnlyFirstExtra{printPrefix: printPrefix}
	for _, diag := range diags {
		diag.Extra = mark
	}
	return diags
}

// NomadErrorText returns the errors in diags as Nomad's API and command line print them: one line for each error. Of
// syntax errors, and of errors in bodies without a schema, it prints only the first and the number of the others. It omits
// warnings.
func NomadErrorText(diags hcl.Diagnostics) string {
	var lines []string
	for i := 0; i < len(diags); {
		mark, short := diags[i].Extra.(*printOnlyFirstExtra)
		n := 1
		for short && i+n < len(diags) && diags[i+n].Extra == any(mark) {
			n++
		}
		line := hcl.Diagnostics(onlyErrors(diags[i : i+n]))
		i += n
		if len(line) == 0 {
			continue
		}
		prefix := ""
		if short {
			prefix = mark.printPrefix
		}
		lines = append(lines, prefix+line.Error())
	}
	return strings.Join(lines, "\n")
}

func onlyErrors(diags hcl.Diagnostics) hcl.Diagnostics {
	var out hcl.Diagnostics
	for _, diag := range diags {
		if diag.Severity == hcl.DiagError {
			out = append(out, diag)
		}
	}
	return out
}

// Err returns the text of the errors in diags as an error, nil if there is none.
func Err(diags hcl.Diagnostics) error {
	if !diags.HasErrors() {
		return nil
	}
	return errors.New(NomadErrorText(diags))
}

const maxShownDiagnostics = 20

// DiagnosticSink is a destination that takes diagnostics as values, not as text.
type DiagnosticSink interface {
	AddDiagnostics(hcl.Diagnostics)
}

// WriteDiagnostics prints each diagnostic for a terminal: the line that Nomad prints, and below it
// the source line with the position marked. sourceByFileName has the source texts, as in
// ParsedFile.SourceTextByFileName. Beyond maxShownDiagnostics diagnostics it prints only the number of the rest. A
// DiagnosticSink gets all of them as values.
func WriteDiagnostics(w io.Writer, diags hcl.Diagnostics, sourceByFileName map[string][]byte) error {
	var b strings.Builder
	all := diags
	diags = slices.DeleteFunc(slices.Clone(all), func(d *hcl.Diagnostic) bool { return isConsequentError(d, all) })
	for i, diag := range diags {
		if undeclared, ok := diag.Extra.(*undeclaredVariableExtra); ok {
			diags[i] = undeclared.terminalDiagnostic(diag.Severity)
		}
		if IsTemplateDirectiveError(diag.Summary) {
			withRemedy := *diag
			withRemedy.Detail += " For the text %{, write %%{, and in the config block of a task, which is evaluated twice, %%%{"
			diags[i] = &withRemedy
		}
	}
	if sink, ok := w.(DiagnosticSink); ok {
		sink.AddDiagnostics(diags)
		return nil
	}
	for i, diag := range diags {
		if i == maxShownDiagnostics {
			fmt.Fprintf(&b, "and %d more\n", len(diags)-i)
			break
		}
		if mark, ok := diag.Extra.(*printOnlyFirstExtra); ok {
			b.WriteString(mark.printPrefix)
		}
		if diag.Severity == hcl.DiagWarning {
			b.WriteString("Warning: ")
		}
		b.WriteString(diagnosticLine(diag))
		b.WriteByte('\n')
		if diag.Subject != nil {
			writeSnippet(&b, sourceByFileName[diag.Subject.Filename], *diag.Subject)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// IsTemplateDirectiveError reports whether the summary of a diagnostic is about a template sequence %{ … }, which can be a text
// that the author of the file has not meant as a template.
func IsTemplateDirectiveError(summary string) bool {
	switch summary {
	case "Invalid template directive", "Invalid template control keyword", "Invalid 'for' directive", "Unexpected end of template":
		return true
	}
	return strings.HasPrefix(summary, "Unexpected ") && strings.HasSuffix(summary, " directive") || strings.HasPrefix(summary, "Extra characters in ")
}

// isConsequentError reports whether a diagnostic follows from another one: it reports that an expression has no value, or
// that a string without a closing quote continues on another line, and another diagnostic has the reason.
func isConsequentError(d *hcl.Diagnostic, all hcl.Diagnostics) bool {
	if d.Subject == nil {
		return false
	}
	noValue, multiLine := strings.HasSuffix(d.Detail, ": value must be known"), d.Summary == multiLineStringSummary
	return slices.ContainsFunc(all, func(why *hcl.Diagnostic) bool {
		if why == d || why.Subject == nil || why.Subject.Filename != d.Subject.Filename {
			return false
		}
		return noValue && d.Subject.ContainsPos(why.Subject.Start) ||
			multiLine && why.Summary == multiLineStringSummary && why.Subject.End.Line == d.Subject.Start.Line
	})
}

// multiLineStringSummary is the summary of the diagnostic that hcl returns for each line end in a quoted
// string.
const multiLineStringSummary = "Invalid multi-line string"

// diagnosticLine formats a diagnostic in Nomad's one line: position, summary, detail. It omits the position
// if the subject is nil, for which Nomad prints "<nil>".
func diagnosticLine(diag *hcl.Diagnostic) string {
	text := diag.Summary
	if diag.Detail != "" {
		text += "; " + diag.Detail
	}
	if diag.Subject == nil {
		return text
	}
	return fmt.Sprintf("%s: %s", diag.Subject, text)
}

// maxSnippet is the length of the longest source line that is printed.
const maxSnippet = 200

func writeSnippet(b *strings.Builder, text []byte, rng hcl.Range) {
	if rng.Start.Line < 1 || rng.Start.Byte > len(text) {
		return
	}
	start := bytes.LastIndexByte(text[:rng.Start.Byte], '\n') + 1
	end := len(text)
	if n := bytes.IndexByte(text[start:], '\n'); n >= 0 {
		end = start + n
	}
	line := string(bytes.TrimRight(text[start:end], "\r"))
	if strings.TrimSpace(line) == "" || len(line) > maxSnippet || !utf8.ValidString(line) {
		return
	}
	before := line[:min(rng.Start.Byte-start, len(line))]
	marked := line[len(before):]
	if rng.End.Byte >= rng.Start.Byte && rng.End.Byte-start < len(line) {
		marked = line[len(before):max(rng.End.Byte-start, len(before))]
	}
	// The indent has the tabs of the source line, so that the marks are below the text.
	indent := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, before)
	number := fmt.Sprintf("%5d", rng.Start.Line)
	fmt.Fprintf(b, "%s | %s\n%s | %s%s\n", number, line, strings.Repeat(" ", len(number)), indent, strings.Repeat("^", max(1, utf8.RuneCountInString(marked))))
}

func errorAt(summary, detail string, rng hcl.Range) *hcl.Diagnostic {
	return &hcl.Diagnostic{Severity: hcl.DiagError, Summary: summary, Detail: detail, Subject: rng.Ptr()}
}
