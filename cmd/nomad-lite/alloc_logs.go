package main

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
)

const allocLogsHelp = `Print what a task has written to its standard output, or to its standard error.

The task need not be named if there is only one. With -f and neither -stdout nor
-stderr both are followed; the latter goes to standard error. To see all tasks of
a job at once: nomad-lite logs JOB.

Ctrl-C ends -f. Exit codes: 0, or 1 when there is no such task or it has not
written anything yet.`

const allocLogsExamples = `  nomad-lite alloc logs 8ba85cef                all of its only task
  nomad-lite alloc logs -f 8ba85cef server      both outputs, as they come
  nomad-lite alloc logs -stderr -tail -n 50 8ba85cef server
  nomad-lite alloc logs -job web                of a running allocation of a job`

type allocLogsOptions struct {
	client clientFlags
	alloc  allocFlags
	task   string
	stdout bool
	stderr bool
	follow bool
	tail   tailFlags
}

// tailFlags select how much of the end of an output is shown.
type tailFlags struct {
	tail  bool
	lines int
	bytes int64
}

func (f *tailFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.tail, "tail", false, "show the end only: the last 10 lines, or what -n or -c say")
	cmd.Flags().IntVarP(&f.lines, "n", "n", -1, "with -tail or -f, begin `lines` before the end")
	cmd.Flags().Int64VarP(&f.bytes, "c", "c", -1, "with -tail or -f, begin `bytes` before the end")
	unset(cmd, "n", "c")
	cmd.MarkFlagsMutuallyExclusive("n", "c")
}

// unset removes defaults that stand for no number from the help text.
func unset(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		cmd.Flags().Lookup(name).DefValue = "0"
	}
}

// check rejects contradicting flags, and sets the default number of lines.
func (f *tailFlags) check(cmd *cobra.Command, follow bool) error {
	given := cmd.Flags().Changed("n") || cmd.Flags().Changed("c")
	switch {
	case given && !f.tail && !follow:
		return usageError(cmd, fmt.Errorf("-n and -c need -tail or -f"))
	case cmd.Flags().Changed("n") && f.lines < 0, cmd.Flags().Changed("c") && f.bytes < 0:
		return usageError(cmd, fmt.Errorf("-n and -c take a number that is not negative"))
	case f.tail && !given:
		f.lines = 10
	}
	return nil
}

func newAllocLogsCommand(s *streams) *cobra.Command {
	var o allocLogsOptions
	cmd := &cobra.Command{
		Use:     "logs [flags] ALLOC [TASK]",
		Short:   "Print what a task has written",
		Long:    allocLogsHelp,
		Example: allocLogsExamples,
		Args:    allocThenTask,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := o.tail.check(cmd, o.follow); err != nil {
				return err
			}
			if o.task, err = taskArgument(o.task, args[1:]); err != nil {
				return err
			}
			ctx, stop := untilInterrupted(cmd.Context())
			defer stop()
			return allocLogs(ctx, o, args[0], s)
		},
		ValidArgsFunction: firstArg(allocKind.complete(&o.client)),
	}
	o.client.register(cmd)
	o.alloc.register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to print; may be the last argument as well")
	cmd.Flags().BoolVar(&o.stdout, "stdout", false, "print standard output; the default without -f")
	cmd.Flags().BoolVar(&o.stderr, "stderr", false, "print standard error")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	o.tail.register(cmd)
	return cmd
}

func allocLogs(ctx context.Context, o allocLogsOptions, name string, s *streams) error {
	c, alloc, err := o.alloc.find(ctx, &o.client, name)
	if err != nil {
		return err
	}
	task, err := chooseTask(alloc, o.task)
	if err != nil {
		return err
	}
	outputs := map[string]io.Writer{}
	if o.stdout || !o.stderr {
		outputs[api.FSLogNameStdout] = s.out
	}
	if o.stderr || o.follow && !o.stdout {
		outputs[api.FSLogNameStderr] = s.err
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(outputs))
	for stream, w := range outputs {
		wg.Go(func() {
			r := logRequest{alloc: alloc, task: task, stream: stream, follow: o.follow, newest: true, lines: o.tail.lines, bytes: o.tail.bytes}
			errs <- r.read(ctx, c, func(data []byte) error {
				_, err := w.Write(data)
				return err
			})
		})
	}
	wg.Wait()
	for range outputs {
		if err := <-errs; err != nil {
			return failed(fmt.Sprintf("read the output of task %q of allocation %q", task, short(alloc.ID)), err)
		}
	}
	return nil
}

// logRequest is a request for a part of one output stream of a task.
type logRequest struct {
	alloc  *api.Allocation // only the ids are used
	task   string
	stream string
	follow bool
	newest bool            // following starts at the newest file
	lines  int             // lines from the end; negative means all
	bytes  int64           // bytes from the end; negative means all
	over   <-chan struct{} // closed when the task writes no more; can be nil
}

// longLine is the assumed length of a line, in bytes, in requests for the last lines. It is
// the value of Nomad's command line.
const longLine = 120

// read passes the output to each until the output ends. The end of ctx is not an error.
func (r logRequest) read(ctx context.Context, c *api.Client, each func([]byte) error) error {
	switch {
	case !r.follow && (r.lines == 0 || r.bytes == 0):
		return nil
	case r.bytes >= 0:
		return r.open(ctx, c, api.OriginEnd, r.bytes, frameReader{each: each})
	case r.follow && (r.lines >= 0 || r.over != nil):
		return r.untilOver(ctx, c, each)
	case r.lines >= 0:
		return r.lastLines(ctx, c, each)
	case r.follow && r.newest:
		return r.open(ctx, c, api.OriginEnd, 0, frameReader{each: each})
	}
	return r.open(ctx, c, api.OriginStart, 0, frameReader{each: each})
}

// untilOver follows the output until the task writes no more, and then requests the missing
// rest: a busy machine can deliver the end late, or no output at all.
func (r logRequest) untilOver(ctx context.Context, c *api.Client, each func([]byte) error) error {
	over := r.over
	var come int64
	count := func(data []byte) error {
		come += int64(len(data))
		return each(data)
	}
	followed := !closed(over)
	if followed {
		var err error
		if r.lines >= 0 {
			t := &tail{lines: r.lines, most: r.lines * longLine, out: count}
			err = r.open(ctx, c, api.OriginEnd, int64(t.most), frameReader{each: t.add, quiet: t.release, over: over})
		} else {
			err = r.open(ctx, c, api.OriginStart, 0, frameReader{each: count, over: over})
		}
		if err != nil || !closed(over) {
			return err
		}
	}
	r.follow, r.over = false, nil
	var err error
	switch {
	case r.lines < 0:
		err = r.open(ctx, c, api.OriginStart, come, frameReader{each: each})
	case come == 0: // otherwise the offset of the received output is unknown
		err = r.read(ctx, c, each)
	}
	if followed && unknown(err) {
		return nil // the file is gone by now
	}
	return err
}

// lastLines requests more and more of the end, until there are enough lines.
func (r logRequest) lastLines(ctx context.Context, c *api.Client, each func([]byte) error) error {
	for size := int64(r.lines) * longLine; ; size *= 8 {
		var text []byte
		err := r.open(ctx, c, api.OriginEnd, size, frameReader{each: func(data []byte) error {
			text = append(text, data...)
			return nil
		}})
		if err != nil {
			return err
		}
		if end := lastLines(text, r.lines); len(end) < len(text) || int64(len(text)) < size {
			return each(end)
		}
	}
}

func (r logRequest) open(ctx context.Context, c *api.Client, origin string, offset int64, reader frameReader) error {
	ctx, cancel := context.WithCancel(ctx) // the client's goroutine runs until ctx ends
	defer cancel()
	frames, errs := c.AllocFS().Logs(r.alloc, r.follow, r.task, r.stream, origin, offset, ctx.Done(), query(ctx, r.alloc.Namespace))
	return reader.read(ctx, frames, errs)
}
