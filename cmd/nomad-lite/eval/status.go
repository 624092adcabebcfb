package eval

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
)

type statusOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	monitor     bool
	verbose     bool
}

func newStatusCommand(s *cli.Streams) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status [flags] EVALUATION",
		Short: "Show an evaluation and its placement failures",
		Long: `Show one evaluation: its trigger, its result and its placement failures.

With -monitor it is watched until it is settled, with the deployment that it has
begun. Exit codes then: 0 all is well, 1 the deployment failed, 2 not all could
be placed.`,
		Example: `  nomad-lite eval status 2ae0e6a5
  nomad-lite eval status -monitor 2ae0e6a5`,
		Args:              cli.RequireArgCount(1, 1, "one argument: the id of an evaluation, or its beginning"),
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteID(&o.clientFlags, &apiclient.EvaluationLookup)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showEval(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.monitor, "monitor", false, "watch until it is settled")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids and times")
	return cmd
}

func showEval(ctx context.Context, o statusOptions, evalIDPrefix string, s *cli.Streams) error {
	c, stub, err := apiclient.ConnectAndFind(ctx, &o.clientFlags, &apiclient.EvaluationLookup, evalIDPrefix)
	if err != nil {
		return err
	}
	cli.SetPageForUIFlag(ctx, "evaluations/"+stub.ID)
	if o.monitor {
		return monitor.New(s, c, stub.Namespace, o.verbose).WatchEvaluationAndDeployment(ctx, stub.ID)
	}
	q := apiclient.QueryOptions(ctx, stub.Namespace)
	q.Params = map[string]string{"related": "true"}
	eval, _, err := c.Evaluations().Info(stub.ID, q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read evaluation %q", stub.ID), err)
	}
	if o.formatFlags.IsSet() {
		return o.formatFlags.Print(s, eval)
	}
	allocs, _, err := c.Evaluations().Allocations(stub.ID, apiclient.QueryOptions(ctx, stub.Namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read allocations of evaluation %q", stub.ID), err)
	}
	p := output.NewPage(s)
	printEvaluation(p, eval, allocs, o.verbose)
	return output.PrintPage(s, p)
}

// printEvaluation adds one evaluation, the allocations that it placed, and its placement failures to the page.
func printEvaluation(p *output.Page, e *api.Evaluation, allocs []*api.AllocationListStub, verbose bool) {
	subject := [2]any{"Job ID", e.JobID}
	if e.JobID == "" && e.NodeID != "" {
		subject = [2]any{"Node ID", output.ShortIDUnlessVerbose(e.NodeID, verbose)}
	}
	all := output.Pairs{
		{"ID", output.ShortIDUnlessVerbose(e.ID, verbose)},
		{"Create Time", output.FormatAgeUnlessVerbose(e.CreateTime, verbose)},
		{"Modify Time", output.FormatAgeUnlessVerbose(e.ModifyTime, verbose)},
		{"Status", output.StatusCell(e.Status)},
		{"Status Description", e.StatusDescription},
		{"Type", e.Type},
		{"TriggeredBy", e.TriggeredBy},
		subject,
		{"Namespace", e.Namespace},
		{"Priority", e.Priority},
		{"Placement Failures", apiclient.PlacementFailureCell(e)},
	}
	for _, part := range [][2]string{
		{"Previous Eval", e.PreviousEval}, {"Next Eval", e.NextEval}, {"Blocked Eval", e.BlockedEval}, {"Deployment ID", e.DeploymentID},
	} {
		if part[1] != "" {
			all = append(all, [2]any{part[0], output.ShortIDUnlessVerbose(part[1], verbose)})
		}
	}
	if !e.WaitUntil.IsZero() {
		all = append(all, [2]any{"Wait Until", e.WaitUntil.Local().Format(time.RFC3339)})
	}
	p.AddPairs(all)
	if len(e.RelatedEvals) > 0 {
		p.AddSectionTitle("Related Evaluations")
		t := output.NewTable("ID", "Priority", "Triggered By", "Node ID", "Status", "Description")
		for _, r := range e.RelatedEvals {
			t.AddRow(output.ShortIDUnlessVerbose(r.ID, verbose), r.Priority, r.TriggeredBy, output.ShortIDUnlessVerbose(r.NodeID, verbose), output.StatusCell(r.Status), r.StatusDescription)
		}
		p.AddTable(t)
	}
	printPlanAnnotations(p, e.PlanAnnotations, verbose)
	if len(allocs) > 0 {
		p.AddSectionTitle("Placed Allocations")
		tables.AllocationTable{Verbose: verbose}.Print(p, allocs)
	}
	if len(e.FailedTGAllocs) > 0 {
		p.AddSectionTitle("Failed Placements")
		tables.PrintPlacementFailures(p, "", e.FailedTGAllocs, nil)
		if e.BlockedEval != "" {
			p.AddLine("")
			p.AddLine("Evaluation %q waiting for additional capacity to place remainder", output.ShortIDUnlessVerbose(e.BlockedEval, verbose))
		}
	}
}

// printPlanAnnotations adds a table to the page, with the number of allocations that the scheduler has planned to place,
// stop and so on, for each group.
func printPlanAnnotations(p *output.Page, a *api.PlanAnnotations, verbose bool) {
	if a == nil || len(a.DesiredTGUpdates) == 0 {
		return
	}
	p.AddSectionTitle("Plan Annotations")
	t := output.NewTable("Task Group", "Ignore", "Place", "Stop", "InPlace", "Destructive")
	if verbose {
		t.Titles = append(t.Titles, "Migrate", "Canary", "Preemptions", "Reschedule Now", "Reschedule Later", "Disconnect", "Reconnect")
	}
	for _, name := range slices.Sorted(maps.Keys(a.DesiredTGUpdates)) {
		u := a.DesiredTGUpdates[name]
		if u == nil {
			continue
		}
		row := []any{name, u.Ignore, u.Place, u.Stop, u.InPlaceUpdate, u.DestructiveUpdate}
		if verbose {
			row = append(row, u.Migrate, u.Canary, u.Preemptions, u.RescheduleNow, u.RescheduleLater, u.Disconnect, u.Reconnect)
		}
		t.AddRow(row...)
	}
	p.AddTable(t)
}
