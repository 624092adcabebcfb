package job

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/monitor"
)

type scaleOptions struct {
	clientFlags            apiclient.Flags
	monitorFlags           monitor.Flags
	requiredJobModifyIndex uint64
}

func newScaleCommand(s *cli.Streams) *cobra.Command {
	var o scaleOptions
	cmd := &cobra.Command{
		Use:   "scale [flags] JOB [GROUP] COUNT",
		Short: "Change the count of a task group",
		Long: `Change the count of a task group. The group can be omitted if the job has only
one.

Exit codes: as for 'job run'.`,
		Example: `  nomad-lite job scale web 3
  nomad-lite job scale -detach web frontend 0`,
		Args:              cli.RequireArgCount(2, 3, "two or three arguments: the id of a job, the name of a group if it has several, and a count"),
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			count, err := strconv.ParseInt(args[len(args)-1], 10, 32)
			if err != nil || count < 0 {
				return cli.UsageError(cmd, fmt.Errorf("the count is %q, which is not a number from 0 on", args[len(args)-1]))
			}
			group := ""
			if len(args) == 3 {
				group = args[1]
			}
			return scaleJob(cmd.Context(), o, args[0], group, count, s)
		},
	}
	o.clientFlags.Register(cmd)
	o.monitorFlags.Register(cmd)
	cmd.Flags().Uint64Var(&o.requiredJobModifyIndex, "check-index", 0, "change nothing unless the modify `index` of the job is this one")
	return cmd
}

func scaleJob(ctx context.Context, o scaleOptions, jobIDPrefix, group string, count int64, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	state, _, err := c.Jobs().ScaleStatus(id, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read scale of job %q", id), err)
	}
	groups := slices.Sorted(maps.Keys(state.TaskGroups))
	switch {
	case group == "" && len(groups) == 1:
		group = groups[0]
	case group == "":
		return fmt.Errorf("job %q has several groups: %s\nName one: nomad-lite job scale %s %s %d", id, strings.Join(groups, ", "), id, firstNameOrEmpty(groups), count)
	case !slices.Contains(groups, group):
		//lint:ignore ST1005 the text is Nomad's
		return fmt.Errorf("Group %s not found within job %q; it has %s", group, id, strings.Join(groups, ", "))
	}
	out, _, err := c.Jobs().ScaleWithRequest(id, &api.ScalingRequest{
		Count:          &count,
		Target:         map[string]string{"Job": id, "Group": group},
		Message:        "submitted using the Nomad CLI",
		JobModifyIndex: o.requiredJobModifyIndex,
	}, apiclient.WriteOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("scale group %q of job %q", group, id), err)
	}
	jobfile.PrintAPIWarnings(s.Out, out.Warnings)
	if o.monitorFlags.Detach {
		fmt.Fprintln(s.Out, "Job scale successful")
	}
	return o.monitorFlags.WatchEvaluationOrPrintID(ctx, s, c, namespace, out.EvalID)
}

func firstNameOrEmpty(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}
