package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/execsession"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/tables"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// shellCommand is the command that the key e runs in a task.
const shellCommand = "/bin/sh"

// shownLogLines is the number of stored lines that the output of a task starts with.
const shownLogLines = 500

func (u *ui) showError(text string) { u.lastLineMessage = cell{terminal.ColourRed, text} }

// taskOfRowOrShowError returns the task of a row, or the only task of an allocation.
func (u *ui) taskOfRowOrShowError(r row) (task, bool) {
	switch {
	case r.task != nil:
		return *r.task, true
	case r.alloc == nil:
		u.showError("Select a task: the row of a job has none of its own")
	case len(r.alloc.tasks) == 1:
		return r.alloc.tasks[0], true
	default:
		u.showError(fmt.Sprintf("Select a task: the allocation has %d", len(r.alloc.tasks)))
	}
	return task{}, false
}

// copyAllocForRequests returns a copy of an allocation that has only the fields that requests to the agent need.
func copyAllocForRequests(a *alloc) *api.Allocation {
	return &api.Allocation{ID: a.ID, NodeID: a.NodeID, Namespace: a.Namespace, TaskGroup: a.TaskGroup, JobID: a.JobID}
}

// openLogsPage opens a page that shows the output of a task until the user leaves the page.
func (u *ui) openLogsPage(ctx context.Context, r row) {
	t, ok := u.taskOfRowOrShowError(r)
	if !ok {
		return
	}
	p := newTextPage(fmt.Sprintf("Output of task %s of allocation %s", t.name, output.TruncateID(r.alloc.ID)))
	p.followsEnd = true
	ctx, cancel := context.WithCancel(ctx)
	p.onClose = cancel
	u.shownTextPage = p
	alloc := copyAllocForRequests(r.alloc)
	show := func(isStderr bool, data []byte) {
		colour := ""
		if isStderr {
			colour = terminal.ColourRed
		}
		lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
		u.callInMainLoop(ctx, func() { p.addSanitizedLines(colour, lines...) })
	}
	showMessage := func(text string) {
		u.callInMainLoop(ctx, func() { p.addSanitizedLines(terminal.ColourYellow, text) })
	}
	u.startGoroutine(func() {
		err := u.followTask(ctx, u.client, alloc, t.name, shownLogLines, show, showMessage)
		if err != nil && ctx.Err() == nil {
			showMessage("The output cannot be read: " + err.Error())
		}
		u.callInMainLoop(ctx, func() { p.addSanitizedLines(terminal.ColourDim, "(no more output)") })
	})
}

// openTimelinePage opens a page with the timeline of an allocation.
func (u *ui) openTimelinePage(ctx context.Context, r row) {
	if r.alloc == nil {
		u.showError("Select an allocation or a task: a job has no time line")
		return
	}
	id, namespace, ended := r.alloc.ID, r.alloc.Namespace, r.alloc.isTerminal()
	u.runThenCallInMainLoop(ctx, func(ctx context.Context) func() {
		reply, err := tables.ReadTimeline(ctx, u.client, id, namespace)
		return func() {
			if err != nil {
				u.showError(err.Error())
				return
			}
			text := output.NewPage(&cli.Streams{NoColour: true})
			reply.PrintBars(text, ended, time.Now(), false)
			text.AddLine("")
			reply.Print(text, ended, false)
			u.shownTextPage = newTextPage("Time line of allocation " + output.TruncateID(id))
			u.shownTextPage.addSanitizedLines("", strings.Split(strings.TrimSpace(text.Text.String()), "\n")...)
		}
	})
}

// openShell runs a shell in a task. The shell controls the terminal until it exits.
func (u *ui) openShell(ctx context.Context, r row) {
	t, ok := u.taskOfRowOrShowError(r)
	if !ok {
		return
	}
	u.keyReader.stopReading()
	u.screen.Leave()
	u.isShellRunning = true
	alloc := copyAllocForRequests(r.alloc)
	what := fmt.Sprintf("run %s in task %q of allocation %q", shellCommand, t.name, output.TruncateID(alloc.ID))
	u.runThenCallInMainLoop(ctx, func(ctx context.Context) func() {
		fmt.Fprintf(u.streams.Out, "Task %s of allocation %s. To go back: exit, or ~. at the start of a line\n", terminal.SanitizeAndTrimLine(t.name), output.TruncateID(alloc.ID))
		flags := execsession.FlagsForUserTerminal()
		err := flags.Run(ctx, u.streams, what, func(ctx context.Context, e execsession.Session) (int, error) {
			return u.client.Allocations().Exec(ctx, alloc, t.name, true, []string{shellCommand}, e.Stdin, e.Stdout, e.Stderr, e.TerminalSizes, apiclient.QueryOptions(ctx, alloc.Namespace))
		})
		return func() { u.resumeAfterShell(err) }
	})
}

func (u *ui) resumeAfterShell(err error) {
	u.isShellRunning = false
	exit := new(cli.ExitError)
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.Err == nil:
		u.lastLineMessage = cell{"", fmt.Sprintf("The shell has ended with exit code %d", exit.Code)}
	default:
		u.showError(err.Error())
	}
	if err := u.enterFullScreenAndReadKeys(); err != nil {
		u.showError(err.Error())
	}
}

// sendInBackgroundAndReport calls send, which sends a request to the agent, in another goroutine, and shows the result
// as a message.
func (u *ui) sendInBackgroundAndReport(ctx context.Context, operation string, send func(context.Context) error) {
	u.lastLineMessage = cell{"", operation + " .."}
	u.runThenCallInMainLoop(ctx, func(ctx context.Context) func() {
		err := send(ctx)
		return func() {
			if err != nil {
				u.showError(apiclient.WrapErrorWithAdvice(operation, err).Error())
				return
			}
			u.lastLineMessage = cell{terminal.ColourGreen, operation + ": done"}
		}
	})
}

func (u *ui) askAndRestart(ctx context.Context, r row) {
	if r.alloc == nil {
		u.showError("Select an allocation or a task. To restart a job: nomad-lite job restart " + r.job.id)
		return
	}
	alloc, name := copyAllocForRequests(r.alloc), ""
	what := "restart allocation " + output.TruncateID(alloc.ID)
	if r.task != nil {
		name = r.task.name
		what = fmt.Sprintf("restart task %s of allocation %s", name, output.TruncateID(alloc.ID))
	}
	u.askYesNo(capitalize(what)+"?", func() {
		u.sendInBackgroundAndReport(ctx, what, func(ctx context.Context) error {
			return u.client.Allocations().Restart(alloc, name, apiclient.QueryOptions(ctx, alloc.Namespace))
		})
	})
}

func (u *ui) askAndStop(ctx context.Context, r row) {
	switch {
	case r.task != nil:
		u.showError("Select the allocation or the job: a task is stopped with its allocation")
	case r.alloc != nil:
		alloc, batch := copyAllocForRequests(r.alloc), cmp.Or(r.job.jobType, r.alloc.JobType) == api.JobTypeBatch
		what := "stop allocation " + output.TruncateID(alloc.ID)
		u.askYesNo(capitalize(what)+" of job "+alloc.JobID+"? Another takes its place.", func() {
			u.sendInBackgroundAndReport(ctx, what, func(ctx context.Context) error {
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
		u.askYesNo(capitalize(what)+" with all its allocations?", func() {
			u.sendInBackgroundAndReport(ctx, what, func(ctx context.Context) error {
				_, _, err := u.client.Jobs().Deregister(key.id, false, apiclient.WriteOptions(ctx, key.namespace))
				return err
			})
		})
	}
}

func capitalize(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
