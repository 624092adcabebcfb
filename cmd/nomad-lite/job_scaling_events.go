package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

type jobScalingEventsOptions struct {
	client  clientFlags
	format  formatFlags
	verbose bool
}

func newJobScalingEventsCommand(s *streams) *cobra.Command {
	var o jobScalingEventsOptions
	cmd := &cobra.Command{
		Use:               "scaling-events [flags] JOB",
		Short:             "List how the groups of a job were scaled",
		Long:              `List how the groups of a job were scaled, and by whom, the newest first.`,
		Example:           `  nomad-lite job scaling-events web`,
		Args:              oneJob,
		ValidArgsFunction: firstArg(o.client.completeJobs("")),
		RunE: func(cmd *cobra.Command, args []string) error {
			return listScalingEvents(cmd.Context(), o, args[0], s)
		},
	}
	o.client.register(cmd)
	o.format.register(cmd)
	cmd.Flags().BoolVar(&o.verbose, "verbose", false, "print whole ids, and all that was said")
	return cmd
}

// scalingEvent is one scaling of a group.
type scalingEvent struct {
	TaskGroup string
	api.ScalingEvent
}

func listScalingEvents(ctx context.Context, o jobScalingEventsOptions, prefix string, s *streams) error {
	c, id, namespace, err := o.client.findJob(ctx, prefix, "")
	if err != nil {
		return err
	}
	state, _, err := c.Jobs().ScaleStatus(id, query(ctx, namespace))
	if err != nil {
		return failed(fmt.Sprintf("read scale of job %q", id), err)
	}
	events := []*scalingEvent{}
	for _, group := range slices.Sorted(maps.Keys(state.TaskGroups)) {
		for _, e := range state.TaskGroups[group].Events {
			events = append(events, &scalingEvent{group, e})
		}
	}
	slices.SortStableFunc(events, func(a, b *scalingEvent) int { return cmp.Compare(b.Time, a.Time) })
	return o.format.show(s, events, func(p *page) {
		t := newTable("Task Group", "Count", "PrevCount", "Error", "Message", "Eval ID", "Date")
		for _, e := range events {
			count := "<unchanged>"
			if e.Count != nil {
				count = fmt.Sprint(*e.Count)
			}
			t.row(e.TaskGroup, count, e.PreviousCount, e.Error, e.Message, shortID(valueOf(e.EvalID), o.verbose), date(int64(e.Time)))
		}
		p.tableOr(t, "No events found")
	})
}
