package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
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

// resetModes resets the modes that a program in a task can have left set: colours, mouse reports, bracketed paste,
// application keys, another character set, and a scroll region, whose reset would move the cursor.
const resetModes = terminal.ColourReset + "\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b(B\x0f\x1b7\x1b[r\x1b8"

func errorCell(err error) cell { return cell{terminal.ColourRed, err.Error()} }

func (u *ui) showError(text string) { u.message = cell{terminal.ColourRed, text} }

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
func (u *ui) openLogsPage(r row) tea.Cmd {
	t, ok := u.taskOfRowOrShowError(r)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(u.ctx)
	p := &textPage{title: fmt.Sprintf("Output of task %s of allocation %s", t.name, output.TruncateID(r.alloc.ID)), followsEnd: true, onClose: cancel}
	u.page = p
	alloc := copyAllocForRequests(r.alloc)
	show := func(isStderr bool, data []byte) {
		colour := ""
		if isStderr {
			colour = terminal.ColourRed
		}
		u.send(pageLines{p, colour, strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")})
	}
	showMessage := func(text string) { u.send(pageLines{p, terminal.ColourYellow, []string{text}}) }
	return func() tea.Msg {
		err := u.followTask(ctx, u.client, alloc, t.name, shownLogLines, show, showMessage)
		if err != nil && ctx.Err() == nil {
			showMessage("The output cannot be read: " + err.Error())
		}
		return pageLines{p, terminal.ColourDim, []string{"(no more output)"}}
	}
}

// openTimelinePage opens a page with the timeline of an allocation.
func (u *ui) openTimelinePage(r row) tea.Cmd {
	if r.alloc == nil {
		u.showError("Select an allocation or a task: a job has no time line")
		return nil
	}
	id, namespace, ended := r.alloc.ID, r.alloc.Namespace, r.alloc.isTerminal()
	return func() tea.Msg {
		reply, err := tables.ReadTimeline(u.ctx, u.client, id, namespace)
		if err != nil {
			return errorCell(err)
		}
		text := output.NewPage(&cli.Streams{NoColour: true})
		reply.PrintBars(text, ended, time.Now(), false)
		text.AddLine("")
		reply.Print(text, ended, false)
		return newTextPage("Time line of allocation "+output.TruncateID(id), strings.TrimSpace(text.Text.String()))
	}
}

// openShell runs a shell in a task. The shell controls the terminal until it exits.
func (u *ui) openShell(r row) tea.Cmd {
	t, ok := u.taskOfRowOrShowError(r)
	if !ok {
		return nil
	}
	alloc := copyAllocForRequests(r.alloc)
	operation := fmt.Sprintf("run %s in task %q of allocation %q", shellCommand, t.name, output.TruncateID(alloc.ID))
	return tea.Exec(terminalFunc(func() error {
		fmt.Fprintf(u.streams.Out, "Task %s of allocation %s. To go back: exit, or ~. at the start of a line\n", terminal.SanitizeAndTrimLine(t.name), output.TruncateID(alloc.ID))
		defer io.WriteString(terminal.UnsanitizedStream(u.streams.Out), resetModes) //nolint:errcheck // an error means that the terminal was closed
		flags := execsession.FlagsForUserTerminal()
		return flags.Run(u.ctx, u.streams, operation, func(ctx context.Context, e execsession.Session) (int, error) {
			return u.client.Allocations().Exec(ctx, alloc, t.name, true, []string{shellCommand}, e.Stdin, e.Stdout, e.Stderr, e.TerminalSizes, apiclient.QueryOptions(ctx, alloc.Namespace))
		})
	}), func(err error) tea.Msg {
		exit := new(cli.ExitError)
		switch {
		case err == nil:
			return nil
		case errors.As(err, &exit) && exit.Err == nil:
			return cell{"", fmt.Sprintf("The shell has ended with exit code %d", exit.Code)}
		}
		return errorCell(err)
	})
}

// sendAndReport sends a confirmed request to the agent, and shows the result as a message.
func (u *ui) sendAndReport(c *confirmation) tea.Cmd {
	u.message = cell{"", c.operation + " .."}
	return func() tea.Msg {
		if err := c.send(u.ctx); err != nil {
			return errorCell(apiclient.WrapErrorWithAdvice(c.operation, err))
		}
		return cell{terminal.ColourGreen, c.operation + ": done"}
	}
}

func (u *ui) askAndRestart(r row) {
	if r.alloc == nil {
		u.showError("Select an allocation or a task. To restart a job: nomad-lite job restart " + r.job.id)
		return
	}
	alloc, name := copyAllocForRequests(r.alloc), ""
	operation := "restart allocation " + output.TruncateID(alloc.ID)
	if r.task != nil {
		name = r.task.name
		operation = fmt.Sprintf("restart task %s of allocation %s", name, output.TruncateID(alloc.ID))
	}
	u.question = &confirmation{capitalize(operation) + "?", operation, func(ctx context.Context) error {
		return u.client.Allocations().Restart(alloc, name, apiclient.QueryOptions(ctx, alloc.Namespace))
	}}
}

func (u *ui) askAndStop(r row) {
	switch {
	case r.task != nil:
		u.showError("Select the allocation or the job: a task is stopped with its allocation")
	case r.alloc != nil:
		alloc, batch := copyAllocForRequests(r.alloc), cmp.Or(r.job.jobType, r.alloc.JobType) == api.JobTypeBatch
		operation := "stop allocation " + output.TruncateID(alloc.ID)
		u.question = &confirmation{capitalize(operation) + " of job " + alloc.JobID + "? Another takes its place.", operation, func(ctx context.Context) error {
			q := apiclient.QueryOptions(ctx, alloc.Namespace)
			if batch {
				q.Params = map[string]string{"reschedule": "true"} // without it, the allocation is not replaced
			}
			_, err := u.client.Allocations().Stop(alloc, q)
			return err
		}}
	default:
		key := r.job.jobKey
		operation := "stop job " + key.id
		u.question = &confirmation{capitalize(operation) + " with all its allocations?", operation, func(ctx context.Context) error {
			_, _, err := u.client.Jobs().Deregister(key.id, false, apiclient.WriteOptions(ctx, key.namespace))
			return err
		}}
	}
}

func capitalize(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
