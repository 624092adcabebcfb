package jobfile

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/hashicorp/hcl/v2"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
)

// printDriverConfigErrors prints errors in config blocks, if there are any.
func (fi *File) printDriverConfigErrors(s *cli.Streams, diags hcl.Diagnostics) error {
	if len(diags) == 0 {
		return nil
	}
	fmt.Fprintln(s.Err, "Driver configuration errors:")
	return jobspec.WriteDiagnostics(s.Err, diags, fi.Parsed.SourceTextByFileName)
}

// configPartPattern matches the name of the attribute or block in an error message of a driver's schema.
var configPartPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?:named|attribute|argument) "([^"]+)"`) })

// newConfigDiagnostic returns a diagnostic for an error in the config block of a task. Its position is
// the attribute that the message names, or else the block.
func (fi *File) newConfigDiagnostic(group, task, message string) *hcl.Diagnostic {
	// Nomad's title of this message is about the JSON form of the block.
	if rest, isUnknown := strings.CutPrefix(message, "Invalid label: "); isUnknown {
		message = "Unsupported argument: " + rest
	}
	path := []string{"group", group, "task", task, "config"}
	diag := fi.NewErrorDiagnostic(path, fmt.Sprintf("Task %q: %s", task, message))
	part := configPartPattern().FindStringSubmatch(message)
	if part == nil || strings.HasPrefix(message, "Missing ") {
		return diag
	}
	if rng, ok := fi.Parsed.FirstRangeNamed(part[1], path...); ok {
		diag.Subject = &rng
	}
	return diag
}
