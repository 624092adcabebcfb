package job

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

type scalingEventsOptions struct {
	clientFlags apiclient.Flags
	formatFlags output.FormatFlags
	verbose     bool
}

func newScalingEventsCommand(s *cli.Streams) *cobra.Command {
	var o scalingEventsOptions
	cmd := &cobra.Command{
		Use:               "scaling-events [flags] JOB",
		Short:             "List the scaling events of a job",
		Long:              `List the scaling events of the groups of a job with their causes, the newest first.`,
		Example:           `  nomad-lite job scaling-events web`,
		Args:              apiclient.RequireOneJobArg,
		ValidArgsFunction: cli.CompleteArgsByPosition(o.clientFlags.CompleteJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listScalingEvents(cmd.Context(), o, args[0], s)
		},
	}
	o.clientFlags.Register(cmd)
	o.formatFlags.Register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids, and all that was said")
	return cmd
}

// scalingEvent is a scaling event and the task group that was scaled.
type scalingEvent struct {
	TaskGroup string
	api.ScalingEvent
}

func listScalingEvents(ctx context.Context, o scalingEventsOptions, jobIDPrefix string, s *cli.Streams) error {
	c, id, namespace, err := o.clientFlags.FindJob(ctx, jobIDPrefix, "")
	if err != nil {
		return err
	}
	state, _, err := c.Jobs().ScaleStatus(id, apiclient.QueryOptions(ctx, namespace))
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read scale of job %q", id), err)
	}
	events := []*scalingEvent{}
	for _, group := range slices.Sorted(maps.Keys(state.TaskGroups)) {
		for _, e := range state.TaskGroups[group].Events {
			events = append(events, &scalingEvent{group, e})
		}
	}
	slices.SortStableFunc(events, func(a, b *scalingEvent) int { return cmp.Compare(b.Time, a.Time) })
	return o.formatFlags.PrintValueOrPage(s, events, func(p *output.Page) {
		t := output.NewTable("Task Group", "Count", "PrevCount", "Error", "Message", "Eval ID", "Date")
		for _, e := range events {
			count := "<unchanged>"
			if e.Count != nil {
				count = fmt.Sprint(*e.Count)
			}
			t.AddRow(e.TaskGroup, count, e.PreviousCount, e.Error, e.Message, output.ShortIDUnlessVerbose(pointer.Value(e.EvalID), o.verbose), output.FormatDate(int64(e.Time)))
		}
		p.AddTableOrMessage(t, "No events found")
	})
}
