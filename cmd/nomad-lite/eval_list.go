package main

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

// newEvalCommand holds the commands about evaluations.
func newEvalCommand(s *streams) *cobra.Command {
	return group("eval", "See what the scheduler has decided, and why",
		newEvalListCommand(s),
		newEvalStatusCommand(s),
		newEvalDeleteCommand(s),
	)
}

type evalListOptions struct {
	client  clientFlags
	format  formatFlags
	page    pageFlags
	job     string
	status  string
	verbose bool
}

func newEvalListCommand(s *streams) *cobra.Command {
	var o evalListOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List evaluations",
		Long:  `List the evaluations that the scheduler has made, the newest first.`,
		Example: `  nomad-lite eval list -job web
  nomad-lite eval list -status blocked`,
		Args:              argCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listEvals(cmd.Context(), o, s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	o.page.register(cmd)
	cmd.Flags().StringVar(&o.job, "job", "", "list only those of the job with this `id`")
	cmd.Flags().StringVar(&o.status, "status", "", "list only those with this `status`: pending, complete, failed, blocked or canceled")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	_ = cmd.RegisterFlagCompletionFunc("job", o.client.completeJobs(""))
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions([]string{"pending", "complete", "failed", "blocked", "canceled"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func listEvals(ctx context.Context, o evalListOptions, s *streams) error {
	c, err := o.client.client()
	if err != nil {
		return err
	}
	q := o.page.query(ctx)
	q.Params = map[string]string{}
	for name, wanted := range map[string]string{"job": o.job, "status": o.status} {
		if wanted != "" {
			q.Params[name] = wanted
		}
	}
	evals, meta, err := c.Evaluations().List(q)
	if err != nil {
		return failed("list evaluations", err)
	}
	return o.format.show(s, evals, func(p *page) {
		t := newTable("ID", "Priority", "Triggered By", "Job ID", "Namespace", "Node ID", "Status", "Placement Failures")
		for _, e := range evals {
			t.row(shortID(e.ID, o.verbose), e.Priority, e.TriggeredBy, e.JobID, e.Namespace, shortID(e.NodeID, o.verbose), statusCell(e.Status), placementFailures(e))
		}
		p.tableOr(t, "No evaluations found")
		p.more(meta)
	})
}

// placementFailures returns the column that shows whether all allocations could be placed.
func placementFailures(e *api.Evaluation) string {
	if e.Status == api.EvalStatusPending || e.Status == api.EvalStatusBlocked {
		return "N/A - In Progress"
	}
	return fmt.Sprint(len(e.FailedTGAllocs) > 0)
}

// evaluations adds the evaluations of a job.
func (p *page) evaluations(evals []*api.Evaluation, verbose bool) {
	t := newTable("ID", "Priority", "Triggered By", "Status", "Placement Failures")
	for _, e := range evals {
		t.row(shortID(e.ID, verbose), e.Priority, e.TriggeredBy, statusCell(e.Status), placementFailures(e))
	}
	p.table(t)
}
