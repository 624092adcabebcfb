package tables

import (
	"fmt"
	"strings"

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

// WarnOfConditions prints the conditions of an agent to standard error, each with its remedy and its commands, so that the standard
// output stays as programs expect it.
func WarnOfConditions(s *cli.Streams, found []apiclient.Condition) {
	for _, c := range found {
		fmt.Fprint(s.Err, conditionText(c)+"\n")
	}
}

// PrintConditions adds the conditions of an agent to a page, or nothing if there are none.
func PrintConditions(p *output.Page, found []apiclient.Condition) {
	if len(found) == 0 {
		return
	}
	p.AddSectionTitle("Conditions")
	for _, c := range found {
		p.AddSanitizedLines(conditionText(c))
	}
}

// conditionText returns lines: what is wrong and for how long, what helps, and the commands.
func conditionText(c apiclient.Condition) string {
	label := "Warning"
	if c.Severity == "error" {
		label = "Error"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s.\n  Since %s. %s.\n", label, terminal.SanitizeToOneLine(c.Summary), output.FormatTimestamp(c.Since), terminal.SanitizeToOneLine(c.Remedy))
	for _, command := range c.Commands {
		fmt.Fprintf(&b, "    %s\n", terminal.SanitizeToOneLine(command))
	}
	return b.String()
}
