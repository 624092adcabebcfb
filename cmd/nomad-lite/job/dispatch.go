package job

import (
	"context"
	"fmt"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

type dispatchOptions struct {
	clientFlags      apiclient.Flags
	monitorFlags     monitor.Flags
	waitFlags        monitor.WaitFlags
	metaAssignments  []string
	idempotencyToken string
	idPrefixTemplate string
	priority         int
}

func newDispatchCommand(s *cli.Streams, printLogs monitor.FollowLogsFunc) *cobra.Command {
	var o dispatchOptions
	cmd := &cobra.Command{
		Use:   "dispatch [flags] JOB [FILE]",
		Short: "Dispatch a parameterized job",
		Long: `Dispatch an instance of a parameterized job, with metadata and, from a file or from
standard input (-), a payload.

It is a job of its own: its id is printed, and 'job status' of the parameterized
job lists it. With -wait the command ends when the instance has ended, and -logs shows
what its tasks write.

Exit codes: as for 'job run', also with -wait.`,
		Example: `  nomad-lite job dispatch -meta input=a.mp4 -detach encode
  nomad-lite job dispatch -wait -logs -meta input=a.mp4 encode
  echo hello | nomad-lite job dispatch mail -`,
		Args:              cli.RequireArgCount(1, 2, "the id of a parameterized job, and perhaps a file or - for the payload"),
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs(apiclient.ParameterizedJobsFilter), cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.waitFlags.CheckCombination(o.monitorFlags.Detach); err != nil {
				return cli.UsageError(cmd, err)
			}
			meta, err := cli.ParseKeyValues(o.metaAssignments)
			if err != nil {
				return cli.UsageError(cmd, fmt.Errorf("-meta %w", err))
			}
			return dispatchJob(cmd.Context(), o, args, meta, s, printLogs)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	o.waitFlags.Register(cmd)
	cmd.Flags().StringArrayVar(&o.metaAssignments, "meta", nil, "metadata of the instance, as `name=value`; may be repeated")
	cmd.Flags().StringVar(&o.idempotencyToken, "idempotency-token", "", "dispatch nothing if an instance with this `token` exists, running or ended")
	cmd.Flags().StringVar(&o.idPrefixTemplate, "id-prefix-template", "", "`text` to put into the id of the instance")
	cmd.Flags().IntVar(&o.priority, "priority", 0, "`priority` of the instance (default: the priority of the job)")
	return cmd
}

func dispatchJob(ctx context.Context, o dispatchOptions, jobAndPayloadArgs []string, meta map[string]string, s *cli.Streams, printLogs monitor.FollowLogsFunc) error {
	var payload []byte
	var err error
	if len(jobAndPayloadArgs) == 2 {
		if payload, err = s.ReadFileOrStdin(jobAndPayloadArgs[1]); err != nil {
			return err
		}
	}
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobAndPayloadArgs[0], apiclient.ParameterizedJobsFilter)
	if err != nil {
		return err
	}
	w := apiclient.WriteOptions(ctx, namespace)
	w.IdempotencyToken = o.idempotencyToken
	out, _, err := c.Jobs().DispatchOpts(&api.DispatchOptions{
		JobID: id, Meta: meta, Payload: payload, IdPrefixTemplate: o.idPrefixTemplate, Priority: o.priority,
	}, w)
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("dispatch job %q", id), err)
	}
	cli.SetPageForUIFlag(ctx, cli.JobWebPagePath(out.DispatchedJobID, namespace))
	p := output.NewPage(s)
	all := output.Pairs{{"Dispatched Job ID", out.DispatchedJobID}}
	if out.EvalID != "" {
		all = append(all, [2]any{"Evaluation ID", output.ShortIDUnlessVerbose(out.EvalID, o.monitorFlags.Verbose)})
	}
	p.AddPairs(all)
	if err := output.PrintPage(s, p); err != nil || o.monitorFlags.Detach {
		return err
	}
	if o.waitFlags.UntilEnded {
		return o.waitFlags.WaitUntilJobEnded(ctx, monitor.New(s, c, namespace, o.monitorFlags.Verbose), out.DispatchedJobID, out.EvalID, printLogs)
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, namespace, out.EvalID)
}
