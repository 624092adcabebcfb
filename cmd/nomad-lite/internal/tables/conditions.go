package tables

import (
	"fmt"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// ConditionColour returns the escape sequence of the colour of a condition.
func ConditionColour(c apiclient.Condition) string {
	if c.Severity == "error" {
		return terminal.ColourRed
	}
	return terminal.ColourYellow
}

// WarnOfConditions prints the conditions of an agent to standard error, one per line, so that the standard output stays as programs expect
// it.
func WarnOfConditions(s *cli.Streams, found []apiclient.Condition) {
	for _, c := range found {
		label := "Warning: "
		if c.Severity == "error" {
			label = "Error: "
		}
		fmt.Fprintln(s.Err, label+terminal.SanitizeToOneLine(c.Sentence()))
	}
}

// PrintConditions adds a table of the conditions of an agent to a page, or nothing if there are none.
func PrintConditions(p *output.Page, found []apiclient.Condition) {
	if len(found) == 0 {
		return
	}
	p.AddSectionTitle("Conditions")
	t := output.NewTable("Since", "Severity", "Condition")
	for _, c := range found {
		t.AddRow(output.FormatTimestamp(c.Since), output.ColouredCell{ColourEscape: ConditionColour(c), Text: c.Severity}, c.Sentence())
	}
	p.AddTableOrMessage(t, "")
}
