package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// matchingLine is a line of a job's output that the agent has found.
type matchingLine struct {
	Time                      int64 // milliseconds since 1970
	AllocID, AllocName, JobID string
	Task, Stream, Text        string
}

// grepMessage is a message of the agent during a search.
type grepMessage struct {
	Lines []matchingLine
	Error string // why the search has ended
}

// searchParams returns the parameters of a search for the lines that -grep selects.
func (p *logPrinter) searchParams() url.Values {
	o := p.options
	params := url.Values{"regexp": {o.grep}, "task": {o.task}, "group": {o.group}}
	if o.selectStdout != o.selectStderr {
		params.Set("type", map[bool]string{true: api.FSLogNameStdout, false: api.FSLogNameStderr}[o.selectStdout])
	}
	switch {
	case o.tailLines >= 0:
		params.Set("reverse", "true")
		params.Set("lines", strconv.Itoa(o.tailLines))
	case !p.since.IsZero():
		params.Set("from", strconv.FormatInt(p.since.UnixMilli(), 10))
	}
	if o.follow {
		params.Set("follow", "true")
	}
	return params
}

// printMatchingLines prints the lines of a job that -grep selects. The agent searches the whole output.
func (p *logPrinter) printMatchingLines(ctx context.Context, job *api.Job) error {
	id := pointer.Value(job.ID)
	body, err := p.client.Raw().Response("/v1/job/"+url.PathEscape(id)+"/logs?"+p.searchParams().Encode(), apiclient.QueryOptions(ctx, pointer.Value(job.Namespace)))
	if apiclient.IsNotFound(err) {
		return fmt.Errorf("search the output of job %q: the agent does not search output: it is of Nomad, or of an earlier version", id)
	}
	if err != nil {
		return apiclient.WrapErrorWithAdvice(fmt.Sprintf("search the output of job %q", id), err)
	}
	defer body.Close()
	views := map[string]*taskview.Task{} // allocation id + task name -> task
	show := func(l matchingLine) {
		view := views[l.AllocID+l.Task]
		if view == nil {
			stub := &api.AllocationListStub{ID: l.AllocID, Name: l.AllocName, JobID: l.JobID, Namespace: pointer.Value(job.Namespace)}
			view = &taskview.Task{Label: p.taskLabel(ctx, stub, l.Task), ColourEscape: taskview.TaskColours[len(views)%len(taskview.TaskColours)]}
			views[l.AllocID+l.Task] = view
		}
		p.taskView.PrintTaskOutput(view, l.Stream == api.FSLogNameStderr, p.appendFormattedLine(nil, time.UnixMilli(l.Time), []byte(l.Text)))
	}
	var newestFirst []matchingLine
	for d := json.NewDecoder(body); ; {
		var m grepMessage
		err := d.Decode(&m)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, io.EOF):
			for _, l := range slices.Backward(newestFirst) {
				show(l)
			}
			return nil
		case err == nil && m.Error != "":
			err = errors.New(m.Error)
		}
		if err != nil {
			return fmt.Errorf("search the output of job %q: %w", id, err)
		}
		if p.options.tailLines >= 0 {
			newestFirst = append(newestFirst, m.Lines...)
			continue
		}
		for _, l := range m.Lines {
			show(l)
		}
	}
}
