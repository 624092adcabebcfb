package tables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/internal/duration"
)

// AllocTransitions is the reply of /v1/allocation/ID/transitions.
type AllocTransitions struct {
	AllocID           string
	TransitionsByTask map[string][]TaskTransition
}

// TaskTransition is the end of one step of a task and the beginning of the next one.
type TaskTransition struct {
	Time               time.Time
	Step, Result, Next string
}

// noStep is the Next of the last transition of a task, which has ended.
const noStep = "no step"

// ReadTransitions requests the last transitions of the tasks of an allocation from an agent of nomad-lite.
func ReadTransitions(ctx context.Context, c *api.Client, allocID, namespace string) (*AllocTransitions, error) {
	var reply AllocTransitions
	if _, err := c.Raw().Query("/v1/allocation/"+allocID+"/transitions", &reply, apiclient.QueryOptions(ctx, namespace)); err != nil {
		return nil, apiclient.WrapErrorWithAdvice(fmt.Sprintf("read the transitions of allocation %q, which only agents of nomad-lite have", output.TruncateID(allocID)), err)
	}
	return &reply, nil
}

// Print adds a table of the transitions of each task, and the step that each task executes now, unless the task has ended.
func (a *AllocTransitions) Print(p *output.Page, verbose bool) {
	p.AddLine("Last transitions of allocation %s", output.ShortIDUnlessVerbose(a.AllocID, verbose))
	for _, task := range slices.Sorted(maps.Keys(a.TransitionsByTask)) {
		list := a.TransitionsByTask[task]
		p.AddLine("")
		if len(list) == 0 {
			p.AddLine("Task %q has not begun", task)
			continue
		}
		if last := list[len(list)-1]; last.Next == noStep {
			p.AddLine("Task %q has ended", task)
		} else {
			p.AddLine("Task %q, now: %s", task, last.Next)
		}
		t := output.NewTable("Time", "Took", "Step", "Result", "Next Step")
		for i, tr := range list {
			took := noText
			if i > 0 {
				took = duration.Format(tr.Time.Sub(list[i-1].Time))
			}
			t.AddRow(tr.Time.Format(time.RFC3339Nano), took, tr.Step, tr.Result, tr.Next)
		}
		p.AddTable(t)
	}
}
