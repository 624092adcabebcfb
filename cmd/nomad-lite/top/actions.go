package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/execsession"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// shellCommand is the command that the key e runs in a task.
const shellCommand = "/bin/sh"

// shownLogLines is the number of stored lines with which the output of a task starts.
const shownLogLines = 500

func (u *ui) fail(text string) { u.message = cell{terminal.ColourRed, text} }

// selectTask returns the task of a row, or the only task of an allocation.
func (u *ui) selectTask(r row) (task, bool) {
	switch {
	case r.task != nil:
		return *r.task, true
	case r.alloc == nil:
		u.fail("Select a task: the row of a job has none of its own")
	case len(r.alloc.tasks) == 1:
		return r.alloc.tasks[0], true
	default:
		u.fail(fmt.Sprintf("Select a task: the allocation has %d", len(r.alloc.tasks)))
	}
	return task{}, false
}

// requestAlloc returns the part of an allocation that requests need.
func requestAlloc(a *alloc) *api.Allocation {
	return &api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace, TaskGroup: a.TaskGroup, JobID: a.JobID}
}

// openLogs shows the output of a task until the user leaves the page.
func (u *ui) openLogs(ctx context.Context, r row) {
	t, ok := u.selectTask(r)
	if !ok {
		return
	}
	p := newPage(fmt.Sprintf("Output of task %s of allocation %s", t.name, output.TruncateID(r.alloc.ID)))
	p.follow = true
	ctx, cancel := context.WithCancel(ctx)
	p.close = cancel
	u.page = p
	alloc := requestAlloc(r.alloc)
	var streams sync.WaitGroup
	for stream, colour := range map[string]string{api.FSLogNameStdout: "", api.FSLogNameStderr: terminal.ColourRed} {
		streams.Add(1)
		u.goSafely(func() {
			defer streams.Done()
			request := streaming.LogRequest{Alloc: alloc, Task: t.name, Stream: stream, Follow: true, TailLines: shownLogLines, TailBytes: -1}
			u.followLog(ctx, p, request, colour)
		})
	}
	u.goSafely(func() {
		streams.Wait()
		if ctx.Err() == nil {
			u.call(ctx, func() { p.add(terminal.ColourDim, "(no more output)") })
		}
	})
}

func (u *ui) followLog(ctx context.Context, p *page, request streaming.LogRequest, colour string) {
	var buffer taskview.LineBuffer
	show := func(data []byte) {
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		u.call(ctx, func() { p.add(colour, lines...) })
	}
	err := request.StreamLog(ctx, u.client, func(data []byte) error {
		buffer.Add(data, show)
		return ctx.Err()
	})
	if ctx.Err() != nil {
		return
	}
	buffer.Flush(show)
	if err != nil {
		u.call(ctx, func() {
			p.add(terminal.ColourYellow, "The output cannot be read: "+apiclient.WrapError(request.Stream, err).Error())
		})
	}
}

// openTimeline shows the time line of an allocation.
func (u *ui) openTimeline(ctx context.Context, r row) {
	if r.alloc == nil {
		u.fail("Select an allocation or a task: a job has no time line")
		return
	}
	id, namespace, ended := r.alloc.ID, r.alloc.Namespace, r.alloc.terminal()
	u.background(ctx, func(ctx context.Context) func() {
		reply, err := tables.ReadTimeline(ctx, u.client, id, namespace)
		return func() {
			if err != nil {
				u.fail(err.Error())
				return
			}
			text := output.NewPage(&cli.Streams{NoColour: true})
			reply.Print(text, ended, false)
			u.page = newPage("Time line of allocation " + output.TruncateID(id))
			u.page.add("", strings.Split(strings.TrimSpace(text.Text.String()), "\n")...)
		}
	})
}

// openShell runs a shell in a task. The shell has the terminal until it exits.
func (u *ui) openShell(ctx context.Context, r row) {
	t, ok := u.selectTask(r)
	if !ok {
		return
	}
	u.keys.stop()
	u.screen.Leave()
	u.running = true
	alloc := requestAlloc(r.alloc)
	what := fmt.Sprintf("run %s in task %q of allocation %q", shellCommand, t.name, output.TruncateID(alloc.ID))
	u.background(ctx, func(ctx context.Context) func() {
		fmt.Fprintf(u.streams.Out, "Task %s of allocation %s. To go back: exit, or ~. at the start of a line\n", terminal.SingleLine(t.name), output.TruncateID(alloc.ID))
		flags := execsession.TerminalFlags()
		err := flags.Run(ctx, u.streams, what, func(ctx context.Context, e execsession.Session) (int, error) {
			return u.client.Allocations().Exec(ctx, alloc, t.name, true, []string{shellCommand}, e.Stdin, e.Stdout, e.Stderr, e.TerminalSizes, apiclient.QueryOptions(ctx, alloc.Namespace))
		})
		return func() { u.returnFromShell(err) }
	})
}

func (u *ui) returnFromShell(err error) {
	u.running = false
	exit := new(cli.ExitError)
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.Err == nil:
		u.message = cell{"", fmt.Sprintf("The shell has ended with exit code %d", exit.Code)}
	default:
		u.fail(err.Error())
	}
	if err := u.takeTerminal(); err != nil {
		u.fail(err.Error())
	}
}

// request runs a request to the agent, and shows a message afterwards.
func (u *ui) request(ctx context.Context, what string, send func(context.Context) error) {
	u.message = cell{"", what + " .."}
	u.background(ctx, func(ctx context.Context) func() {
		err := send(ctx)
		return func() {
			if err != nil {
				u.fail(apiclient.WrapError(what, err).Error())
				return
			}
			u.message = cell{terminal.ColourGreen, what + ": done"}
		}
	})
}

func (u *ui) askRestart(ctx context.Context, r row) {
	if r.alloc == nil {
		u.fail("Select an allocation or a task. To restart a job: nomad-lite job restart " + r.job.id)
		return
	}
	alloc, name := requestAlloc(r.alloc), ""
	what := "restart allocation " + output.TruncateID(alloc.ID)
	if r.task != nil {
		name = r.task.name
		what = fmt.Sprintf("restart task %s of allocation %s", name, output.TruncateID(alloc.ID))
	}
	u.confirm(upperFirst(what)+"?", func() {
		u.request(ctx, what, func(ctx context.Context) error {
			return u.client.Allocations().Restart(alloc, name, apiclient.QueryOptions(ctx, alloc.Namespace))
		})
	})
}

func (u *ui) askStop(ctx context.Context, r row) {
	switch {
	case r.task != nil:
		u.fail("Select the allocation or the job: a task is stopped with its allocation")
	case r.alloc != nil:
		alloc, batch := requestAlloc(r.alloc), cmp.Or(r.job.kind, r.alloc.JobType) == api.JobTypeBatch
		what := "stop allocation " + output.TruncateID(alloc.ID)
		u.confirm(upperFirst(what)+" of job "+alloc.JobID+"? Another takes its place.", func() {
			u.request(ctx, what, func(ctx context.Context) error {
				q := apiclient.QueryOptions(ctx, alloc.Namespace)
				if batch {
					q.Params = map[string]string{"reschedule": "true"} // without it, the allocation is not replaced
				}
				_, err := u.client.Allocations().Stop(alloc, q)
				return err
			})
		})
	default:
		key := r.job.jobKey
		what := "stop job " + key.id
		u.confirm(upperFirst(what)+" with all its allocations?", func() {
			u.request(ctx, what, func(ctx context.Context) error {
				_, _, err := u.client.Jobs().Deregister(key.id, false, apiclient.WriteOptions(ctx, key.namespace))
				return err
			})
		})
	}
}

func upperFirst(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
