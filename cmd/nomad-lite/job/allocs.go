package job

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskreason"
)

type allocsOptions struct {
	clientFlags              apiclient.Flags
	formatFlags              output.FormatFlags
	includeEarlierSameIDJobs bool
	verbose                  bool
}

func newAllocsCommand(s *cli.Streams) *cobra.Command {
	var o allocsOptions
	cmd := &cobra.Command{
		Use:   "allocs [flags] JOB",
		Short: "List the allocations of a job",
		Long: `List the allocations of a job, the newest first.

Allocations of an earlier job with the same name are listed only with -all.`,
		Example: `  nomad-lite job allocs web
  nomad-lite job allocs -t '{{range .}}{{println .ID .ClientStatus}}{{end}}' web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listJobAllocs(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.includeEarlierSameIDJobs, "all", false, "list also the allocations of an earlier job with this id")
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids and times")
	return cmd
}

func listJobAllocs(ctx context.Context, o allocsOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	allocs, _, err := c.Jobs().Allocations(id, o.includeEarlierSameIDJobs, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("list allocations of job %q", id), err)
	}
	return o.formatFlags.PrintValueOrPage(s, allocs, func(p *output.Page) {
		tables.PrintAllocations(p, allocs, o.verbose)
		job, _, err := c.Jobs().Info(id, apiclient.QueryOptions(ctx, namespace))
		if err != nil {
			job = nil // the job can be purged; its allocations are still listed
		}
		if evals, _, err := c.Jobs().Evaluations(id, apiclient.QueryOptions(ctx, namespace)); err == nil { // without evaluations, the page has only the list
			taskreason.PrintPlacementFailure(ctx, p, c, job, evals)
		}
		taskreason.PrintTasksNotRunningAndChecks(ctx, p, c, job, allocs, time.Now(), o.verbose)
	})
}
