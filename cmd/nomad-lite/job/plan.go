package job

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/runtime/explain/reason"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const planHelp = `Show the changes that 'job run' would make now, and whether the node has enough
resources. The plan changes nothing.

At the end stands the index of the job that the plan was made for: given to
'job run -check-index', nothing is run if the job has changed since.

Exit codes: 0 nothing would be placed or stopped, 1 something would, 255 the
plan could not be made.`

type planOptions struct {
	jobFileFlags   jobfile.Flags
	clientFlags    apiclient.Flags
	formatFlags    output.FormatFlags
	showDiff       bool
	verbose        bool
	policyOverride bool
}

// NewPlanCommand returns the command "plan".
func NewPlanCommand(s *cli.Streams) *cobra.Command {
	var o planOptions
	cmd := &cobra.Command{
		Use:   "plan [flags] FILE",
		Short: "Show the changes that a job file would make",
		Long:  planHelp,
		Example: `  nomad-lite job plan web.nomad.hcl
  nomad-lite job plan -var image=web:2 -verbose web.nomad.hcl`,
		Args: func(cmd *cobra.Command, args []string) error {
			return withPlanExitCode(jobfile.RequireOneFileArg(cmd, args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			changes, err := printJobPlan(cmd.Context(), o, args[0], s)
			if err != nil {
				return withPlanExitCode(err)
			}
			if changes {
				return &cli.ExitError{Code: cli.PlanHasChanges.Number}
			}
			return nil
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return withPlanExitCode(cli.FlagError(cmd, err)) })
	o.jobFileFlags.Register(cmd)
	o.clientFlags.Register(cmd)
	o.formatFlags.RegisterTemplateFlag(cmd)
	cmd.Flags().BoolVar(&o.formatFlags.JSON, "json-output", false, "print the plan as the API gives it")
	cmd.Flags().BoolVar(&o.showDiff, "diff", true, "show what is different")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "show all of what is new or gone")
	cmd.Flags().BoolVar(&o.policyOverride, "policy-override", false, "override soft policies, where there are any")
	return cmd
}

// withPlanExitCode returns an error with the exit code [cli.PlanFailed], or nil for nil.
func withPlanExitCode(err error) error {
	var exitErr *cli.ExitError
	if errors.As(err, &exitErr) {
		err = exitErr.Err
	} else if err == nil {
		return nil
	}
	return &cli.ExitError{Code: cli.PlanFailed.Number, Err: err}
}

// printJobPlan prints the plan of a job file, and reports whether running the job would place or stop an allocation.
func printJobPlan(ctx context.Context, o planOptions, pathOrURL string, s *cli.Streams) (hasChanges bool, err error) {
	file, err := o.jobFileFlags.Read(s, pathOrURL, cli.PlanFailed)
	if err != nil {
		return false, err
	}
	c, err := o.clientFlags.Client()
	if err != nil {
		return false, err
	}
	if good, err := file.CheckUnknownPortLabels(s); err != nil || !good {
		return false, errors.Join(&cli.ExitError{Code: cli.PlanFailed.Number}, err)
	}
	o.clientFlags.UseJobRegion(c, file.Job)
	if good, err := file.CheckDriverConfigs(ctx, c, s); err != nil || !good {
		return false, errors.Join(&cli.ExitError{Code: cli.PlanFailed.Number}, err)
	}
	plan, _, err := c.Jobs().PlanOpts(file.Job, &api.PlanOptions{Diff: o.showDiff, PolicyOverride: o.policyOverride}, apiclient.WriteOptions(ctx, pointer.Value(file.Job.Namespace)))
	if err != nil {
		return false, file.AddSourceLinesToError(apiclient.WrapErrorWithAdvice("plan job "+pathOrURL, err))
	}
	model.Canonicalize(file.Job)
	var node *api.Node // the only node; set if a group cannot be placed
	if len(plan.FailedTGAllocs) > 0 && !apiclient.ServersDecide(c) {
		node = apiclient.FindOnlyNode(ctx, c)
		if node != nil {
			features := jobfile.NodeFeaturesOf(node)
			if err := file.PrintRefusals(s, fmt.Sprintf("Node %q does not satisfy:", node.Name), features.UnmetRequirements(file.Job)); err != nil {
				return false, err
			}
		}
	}
	if o.formatFlags.IsSet() {
		return planPlacesOrStopsAllocs(plan), o.formatFlags.Print(s, plan)
	}
	p := output.NewPage(s)
	if o.showDiff && plan.Diff != nil {
		diffPage{p, o.verbose}.writeJob(plan.Diff)
		p.AddLine("")
	}
	if gates := model.DescribeExtendedStartOrder(file.Job); gates != "" {
		p.AddSanitizedLines(gates)
		p.AddLine("")
	}
	printSchedulerDryRun(p, plan, reason.MissingDriverReasonsByGroup(node, file.Job))
	if plan.Warnings != "" {
		p.AddLine("")
		p.AddLine("%s", output.ColouredCell{ColourEscape: terminal.ColourYellow, Text: "Job Warnings:"})
		p.AddSanitizedLines(jobfile.FormatAPIWarnings(plan.Warnings))
	}
	p.AddLine("")
	p.AddLine("Job Modify Index: %d", plan.JobModifyIndex)
	p.AddLine("To run the job only if it has not changed since this plan:")
	p.AddLine("")
	p.AddLine("  nomad-lite job run -check-index %d %s", plan.JobModifyIndex, strings.Join(append(formatJobFileFlagArgs(&o.jobFileFlags), pathOrURL), " "))
	return planPlacesOrStopsAllocs(plan), output.PrintPage(s, p)
}

// printSchedulerDryRun adds the result of the scheduler's plan to the page: whether all groups can be placed, the next
// launch, and preempted allocations. missingDriverReasonsByGroup has the drivers that the node does not have, by group.
func printSchedulerDryRun(p *output.Page, plan *api.JobPlanResponse, missingDriverReasonsByGroup map[string][]string) {
	p.AddLine("%s", output.ColouredCell{ColourEscape: terminal.ColourBold, Text: "Scheduler dry-run:"})
	if len(plan.FailedTGAllocs) == 0 {
		p.AddLine("%s", output.ColouredCell{ColourEscape: terminal.ColourGreen, Text: "- All tasks successfully allocated."})
	} else {
		p.AddLine("%s", output.ColouredCell{ColourEscape: terminal.ColourYellow, Text: "- WARNING: Failed to place all allocations."})
		tables.PrintPlacementFailures(p, "  ", plan.FailedTGAllocs, missingDriverReasonsByGroup)
	}
	for _, e := range plan.CreatedEvals {
		if e != nil && e.TriggeredBy == "rolling-update" {
			p.AddLine("- Rolling update, next evaluation will be in %s.", e.Wait)
		}
	}
	if next := plan.NextPeriodicLaunch; !next.IsZero() {
		p.AddLine("- If submitted now, next periodic launch would be at %s (%s).", next.Local().Format(time.RFC3339), output.FormatRelativeTime(time.Since(next)))
	}
	if a := plan.Annotations; a != nil && len(a.PreemptedAllocs) > 0 {
		p.AddSectionTitle("Preempted Allocations")
		t := output.NewTable("Alloc ID", "Job ID", "Task Group")
		for _, preempted := range a.PreemptedAllocs {
			if preempted == nil { // a hostile or broken server
				continue
			}
			t.AddRow(output.ShortIDUnlessVerbose(preempted.ID, false), preempted.JobID, preempted.TaskGroup)
		}
		p.AddTable(t)
	}
}

func planPlacesOrStopsAllocs(plan *api.JobPlanResponse) bool {
	if plan.Annotations == nil || plan.Diff != nil && plan.Diff.Type == diffNone {
		return false
	}
	return slices.ContainsFunc(slices.Collect(maps.Values(plan.Annotations.DesiredTGUpdates)), func(u *api.DesiredUpdates) bool {
		return u != nil && u.Stop+u.Place+u.Migrate+u.DestructiveUpdate+u.Canary > 0
	})
}

// formatJobFileFlagArgs returns the flags of a job file as quoted arguments of a command line.
func formatJobFileFlagArgs(f *jobfile.Flags) []string {
	var flagArgs []string
	if f.FileIsJSON {
		flagArgs = append(flagArgs, "-json")
	}
	if !f.HCL2Strict {
		flagArgs = append(flagArgs, "-hcl2-strict=false")
	}
	for _, v := range f.Vars {
		flagArgs = append(flagArgs, "-var", shellquote.QuoteIfNeeded(v))
	}
	for _, v := range f.VarFiles {
		flagArgs = append(flagArgs, "-var-file", shellquote.QuoteIfNeeded(v))
	}
	for _, v := range f.AllowedFiles {
		flagArgs = append(flagArgs, "-allow-file", shellquote.QuoteIfNeeded(v))
	}
	return flagArgs
}
