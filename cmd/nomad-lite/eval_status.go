package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

type evalStatusOptions struct {
	client  clientFlags
	format  formatFlags
	monitor bool
	verbose bool
}

func newEvalStatusCommand(s *streams) *cobra.Command {
	var o evalStatusOptions
	cmd := &cobra.Command{
		Use:   "status [flags] EVALUATION",
		Short: "Show one evaluation: what was decided, and what could not be placed",
		Long: `Show one evaluation: why the scheduler looked at a job, what it decided, and
what it could not place.

With -monitor it is watched until it is settled, with the deployment that it has
begun. Exit codes then: 0 all is well, 1 the deployment failed, 2 not all could
be placed.`,
		Example: `  nomad-lite eval status 2ae0e6a5
  nomad-lite eval status -monitor 2ae0e6a5`,
		Args:              argCount(1, 1, "one argument: the id of an evaluation, or its beginning"),
		ValidArgsFunction: firstArg(evalKind.complete(&o.client)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return showEval(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.monitor, "monitor", false, "watch until it is settled")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids and times")
	return cmd
}

func showEval(ctx context.Context, o evalStatusOptions, prefix string, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	stub, err := evalKind.find(ctx, c, prefix)
	if err != nil {
		return err
	}
	if o.monitor {
		return newMonitor(s, c, stub.Namespace, o.verbose).evaluation(ctx, stub.ID)
	}
	q := query(ctx, stub.Namespace)
	q.Params = map[string]string{"related": "true"}
	eval, _, err := c.Evaluations().Info(stub.ID, q)
	if err != nil {
		return failed(fmt.Sprintf("read evaluation %q", stub.ID), err)
	}
	if o.format.wanted() {
		return o.format.print(s, eval)
	}
	allocs, _, err := c.Evaluations().Allocations(stub.ID, query(ctx, stub.Namespace))
	if err != nil {
		return failed(fmt.Sprintf("read allocations of evaluation %q", stub.ID), err)
	}
	p := s.page()
	p.evaluation(eval, allocs, o.verbose)
	return s.show(p)
}

// evaluation adds one evaluation and its results.
func (p *page) evaluation(e *api.Evaluation, allocs []*api.AllocationListStub, verbose bool) {
	all := pairs{
		{"ID", shortID(e.ID, verbose)},
		{"Create Time", when(e.CreateTime, verbose)},
		{"Modify Time", when(e.ModifyTime, verbose)},
		{"Status", statusCell(e.Status)},
		{"Status Description", e.StatusDescription},
		{"Type", e.Type},
		{"TriggeredBy", e.TriggeredBy},
		{"Job ID", e.JobID},
		{"Namespace", e.Namespace},
		{"Priority", e.Priority},
		{"Placement Failures", placementFailures(e)},
	}
	for _, part := range [][2]string{
		{"Node ID", e.NodeID}, {"Deployment ID", e.DeploymentID}, {"Previous Eval", e.PreviousEval}, {"Next Eval", e.NextEval}, {"Blocked Eval", e.BlockedEval},
	} {
		if part[1] != "" {
			all = append(all, [2]any{part[0], shortID(part[1], verbose)})
		}
	}
	if !e.WaitUntil.IsZero() {
		all = append(all, [2]any{"Wait Until", e.WaitUntil.Local().Format(time.RFC3339)})
	}
	p.pairs(all)
	p.annotations(e.PlanAnnotations)
	if len(e.FailedTGAllocs) > 0 {
		p.section("Failed Placements")
		p.shortages("", e.FailedTGAllocs)
		if e.BlockedEval != "" {
			p.line("")
			p.line("Evaluation %q waits for room for the rest", shortID(e.BlockedEval, verbose))
		}
	}
	if len(e.RelatedEvals) > 0 {
		p.section("Related Evaluations")
		t := newTable("ID", "Priority", "Triggered By", "Node ID", "Status", "Description")
		for _, r := range e.RelatedEvals {
			t.row(shortID(r.ID, verbose), r.Priority, r.TriggeredBy, shortID(r.NodeID, verbose), statusCell(r.Status), r.StatusDescription)
		}
		p.table(t)
	}
	p.section("Placed Allocations")
	p.allocations(allocs, verbose)
}

// annotations adds the scheduler's planned changes for each group.
func (p *page) annotations(a *api.PlanAnnotations) {
	if a == nil || len(a.DesiredTGUpdates) == 0 {
		return
	}
	p.section("Plan Annotations")
	t := newTable("Task Group", "Ignore", "Place", "Stop", "Migrate", "InPlace", "Destructive", "Canary")
	for _, name := range slices.Sorted(maps.Keys(a.DesiredTGUpdates)) {
		if u := a.DesiredTGUpdates[name]; u != nil {
			t.row(name, u.Ignore, u.Place, u.Stop, u.Migrate, u.InPlaceUpdate, u.DestructiveUpdate, u.Canary)
		}
	}
	p.table(t)
}
