package eval

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

type listOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	pageFlags   apiclient.PageFlags
	job         string
	status      string
	verbose     bool
}

func newListCommand(s *cli.Streams) *cobra.Command {
	var o listOptions
	cmd := &cobra.Command{
		Use:   "list [flags]",
		Short: "List evaluations",
		Long:  `List the evaluations of the scheduler, the newest first.`,
		Example: `  nomad-lite eval list -job web
  nomad-lite eval list -status blocked`,
		Args:              cli.RequireArgCount(0, 0, "no arguments"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listEvals(cmd.Context(), o, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	o.pageFlags.Register(cmd)
	cmd.Flags().StringVar(&o.job, "job", "", "list only evaluations of the job with this `id`")
	cmd.Flags().StringVar(&o.status, "status", "", "list only those with this `status`: pending, complete, failed, blocked or canceled")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids")
	cli.MustSetFlagCompletion(cmd, "job", o.clientFlags.CompleteJobs(""))
	cli.MustSetFlagCompletion(cmd, "status", cobra.FixedCompletions([]string{"pending", "complete", "failed", "blocked", "canceled"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func listEvals(ctx context.Context, o listOptions, s *cli.Streams) error {
	c, err := o.clientFlags.Client()
	if err != nil {
		return err
	}
	q := o.pageFlags.QueryOptions(ctx)
	q.Params = map[string]string{}
	for name, wanted := range map[string]string{"job": o.job, "status": o.status} {
		if wanted != "" {
			q.Params[name] = wanted
		}
	}
	evals, meta, err := c.Evaluations().List(q)
	if err != nil {
		return apiclient.WrapErrorWithAdvice("list evaluations", err)
	}
	return o.formatFlags.PrintValueOrPage(s, evals, func(p *output.Page) {
		t := output.NewTable("ID", "Priority", "Triggered By", "Job ID", "Namespace", "Node ID", "Status", "Placement Failures")
		for _, e := range evals {
			t.AddRow(output.ShortIDUnlessVerbose(e.ID, o.verbose), e.Priority, e.TriggeredBy, e.JobID, e.Namespace, output.ShortIDUnlessVerbose(e.NodeID, o.verbose), output.StatusCell(e.Status), apiclient.PlacementFailureCell(e))
		}
		p.AddTableOrMessage(t, "No evals found")
		p.AddNextPageHint(meta)
	})
}
