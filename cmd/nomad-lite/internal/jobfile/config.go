package jobfile

import (
	"fmt"

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

// newConfigDiagnostic returns a diagnostic for an error in the config block of a task.
func (fi *File) newConfigDiagnostic(group, task, message string) *hcl.Diagnostic {
	diag := fi.Parsed.ConfigFaultDiagnostic(jobspec.ConfigFault{Group: group, Task: task, Text: message})
	if diag.Subject == nil {
		return fi.NewErrorDiagnostic([]string{"group", group, "task", task, "config"}, diag.Summary)
	}
	return diag
}
