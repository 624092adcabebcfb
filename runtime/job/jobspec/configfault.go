package jobspec

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// ConfigFault is an error in the config block of a task, found with the schema of its driver. Text is composed by package block.
type ConfigFault struct{ Group, Task, Text string }

// configPartPattern matches the name of the attribute or block in an error message of a driver's schema.
var configPartPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:named|attribute|argument) "([^"]+)"`) })

// ConfigFaultDiagnostic returns a diagnostic for an error in a config block. Its position is the attribute or block that has the
// error, or else the config block. It has no position if f has no source text.
func (f *ParsedFile) ConfigFaultDiagnostic(fault ConfigFault) *hcl.Diagnostic {
	text := fault.Text
	// Nomad's title of this message is about the JSON form of the block.
	if rest, isUnknown := strings.CutPrefix(text, "Invalid label: "); isUnknown {
		text = "Unsupported argument: " + rest
	}
	path := []string{"group", fault.Group, "task", fault.Task, "config"}
	diag := &hcl.Diagnostic{Severity: hcl.DiagError, Summary: fmt.Sprintf("Task %q: %s", fault.Task, text)}
	rng, hasRange := f.InnermostRange(path...)
	if summary, _, _ := strings.Cut(text, ": "); IsTemplateDirectiveError(summary) {
		escaped := "%%%{" // the job file is evaluated first, and the config block when the task starts
		if !hasRange {
			escaped = "%%{"
		}
		diag.Summary += " A config block is evaluated when the task starts: for the text %{, write " + escaped
		rng = f.firstRangeWithDirective(fault, path, rng)
	} else if part := configPartPattern().FindStringSubmatch(text); part != nil && !strings.HasPrefix(text, "Missing ") {
		rng, hasRange = f.FirstRangeNamed(part[1], path...)
	}
	if hasRange {
		diag.Subject = &rng
	}
	return diag
}

// ConfigFaultsText returns a line for each error, as NomadErrorText does for other errors.
func (f *ParsedFile) ConfigFaultsText(faults []ConfigFault) string {
	lines := make([]string, len(faults))
	for i, fault := range faults {
		lines[i] = diagnosticLine(f.ConfigFaultDiagnostic(fault))
	}
	return strings.Join(lines, "\n")
}

// firstRangeWithDirective returns the range of the first argument or block of a config block that has a template sequence %{ … }, or
// block if there is none.
func (f *ParsedFile) firstRangeWithDirective(fault ConfigFault, path []string, block hcl.Range) hcl.Range {
	first, found := block, false
	for name, value := range f.taskConfig(fault.Group, fault.Task) {
		if !strings.Contains(strings.ReplaceAll(fmt.Sprint(value), "%%{", ""), "%{") {
			continue
		}
		if rng, ok := f.FirstRangeNamed(name, path...); ok && (!found || rng.Start.Byte < first.Start.Byte) {
			first, found = rng, true
		}
	}
	return first
}

func (f *ParsedFile) taskConfig(group, task string) map[string]any {
	if f.Job == nil {
		return nil
	}
	for _, g := range f.Job.TaskGroups {
		for _, t := range g.Tasks {
			if pointer.Value(g.Name) == group && t.Name == task {
				return t.Config
			}
		}
	}
	return nil
}
