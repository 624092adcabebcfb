package jobfile

import (
	"context"
	"fmt"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// CanonicalizeAndCheckAdmission canonicalizes the job, and returns whether and why a node rejects it.
func (fi *File) CanonicalizeAndCheckAdmission(ctx context.Context, node admission.Node, flags admission.CheckOptions) admission.CheckResult {
	model.Canonicalize(fi.Job)
	return admission.Check(ctx, fi.Job, node, flags)
}

// faultsFoundByAnyAgent returns the errors that an agent with only the default namespace can find in the canonical job.
func (fi *File) faultsFoundByAnyAgent() []*model.JobFault {
	return model.LeafFaults(admission.ValidationError(fi.Job, admission.Node{Namespaces: []*api.Namespace{}}))
}

// IsValid reports whether the canonical job is valid for an agent that has its namespace.
func (fi *File) IsValid() bool { return admission.ValidationError(fi.Job, admission.Node{}) == nil }

// refusalHeading is printed above refusals, by commands and in an agent's errors.
const refusalHeading = "This job cannot run here:"

// PrintAdmissionAnswer prints the faults, the refusals and the config errors of an admission answer, with their
// positions in the file. It prints headingForNodeRefusals above the refusals that depend on the node. It returns true
// if the job can run.
func (fi *File) PrintAdmissionAnswer(s *cli.Streams, headingForNodeRefusals string, a *admission.CheckResult) (canRun bool, err error) {
	if a.ValidationErr != nil {
		fmt.Fprintln(s.Err, "Job validation errors:")
		faults := model.LeafFaults(a.ValidationErr)
		diags := make(hcl.Diagnostics, 0, len(faults))
		for _, fault := range faults {
			diags = append(diags, fi.NewErrorDiagnostic(fault.Path, fault.Text+fault.Hint()))
		}
		if err := fi.SortAndPrintDiagnostics(s, diags); err != nil {
			return false, err
		}
	}
	var warnings hcl.Diagnostics
	for _, r := range a.RefusalsWithEffect(admission.Warns) {
		diag := fi.NewWarningDiagnostic(r.Path, r.WarningText())
		diag.Extra = printedRefusalID(r.Kind.ID)
		warnings = append(warnings, diag)
	}
	if err := fi.SortAndPrintDiagnostics(s, warnings); err != nil {
		return false, err
	}
	var parts, requirements []admission.Refusal
	for _, r := range a.RefusalsWithEffect(admission.Rejects) {
		if r.Kind.Scope == admission.OnNode {
			requirements = append(requirements, r)
		} else {
			parts = append(parts, r)
		}
	}
	if err := fi.PrintRefusals(s, refusalHeading, parts); err != nil {
		return false, err
	}
	var configDiags hcl.Diagnostics
	for _, f := range a.ConfigFaults {
		configDiags = append(configDiags, fi.newConfigDiagnostic(f.Group, f.Task, f.Text))
	}
	if err := fi.printDriverConfigErrors(s, configDiags); err != nil {
		return false, err
	}
	return !a.IsRejected() && len(configDiags) == 0, fi.PrintRefusals(s, headingForNodeRefusals, requirements)
}

// PrintRefusals prints refusals under a heading, with their positions in the file. It prints nothing if there are none.
func (fi *File) PrintRefusals(s *cli.Streams, heading string, refusals []admission.Refusal) error {
	if len(refusals) == 0 {
		return nil
	}
	fmt.Fprintln(s.Err, heading)
	diags := make(hcl.Diagnostics, 0, len(refusals))
	for _, r := range refusals {
		diag := fi.NewErrorDiagnostic(r.Path, r.Text)
		diag.Extra = printedRefusalID(r.Kind.ID)
		diags = append(diags, diag)
	}
	return fi.SortAndPrintDiagnostics(s, diags)
}

// printedRefusalID is the id of the refusal that a diagnostic prints.
type printedRefusalID string

// CheckUnknownPortLabels prints the mistakes that Nomad's API accepts and Nomad's command line rejects. It is for
// commands that leave all other checks to an agent. The job need not be canonical. It returns true if there are no such
// mistakes.
func (fi *File) CheckUnknownPortLabels(s *cli.Streams) (noErrors bool, err error) {
	refusals := admission.RefuseUnknownPortLabels(fi.Job)
	return len(refusals) == 0, fi.PrintRefusals(s, refusalHeading, refusals)
}

// WarnOfPartsIgnoredByRun prints a warning for each attribute or block of the job that `nomad-lite run` ignores.
func (fi *File) WarnOfPartsIgnoredByRun(s *cli.Streams, a *admission.CheckResult) error {
	var diags hcl.Diagnostics
	for _, fault := range a.IgnoredParts {
		diags = append(diags, fi.NewWarningDiagnostic(fault.Path, fault.Text))
	}
	return jobspec.WriteDiagnostics(s.Err, diags, fi.Parsed.SourceTextByFileName)
}

// SortAndPrintDiagnostics sorts diagnostics by their position in the file, and prints them.
func (fi *File) SortAndPrintDiagnostics(s *cli.Streams, diags hcl.Diagnostics) error {
	sortByPosition(diags)
	return jobspec.WriteDiagnostics(s.Err, diags, fi.Parsed.SourceTextByFileName)
}

// HeadingForUnplacedGroups returns the heading above the list of groups that do not fit on this machine.
func (fi *File) HeadingForUnplacedGroups() string {
	return fmt.Sprintf("job %q does not fit on this machine; change the named parts, or run it on another machine:", *fi.Job.ID)
}
