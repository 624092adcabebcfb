package alloc

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/streaming"
)

const logsHelp = `Print the standard output or the standard error of a task.

The task need not be named if there is only one. The output goes to standard
output, with -stderr too. With both of -stdout and -stderr, or with -f and
neither, the task's standard error goes to standard error. To see all tasks of a
job at once: nomad-lite logs JOB.

Ctrl-C ends -f. Exit codes: 0, or 1 when there is no such task or it has not
written anything yet.`

const logsExamples = `  nomad-lite alloc logs 8ba85cef                all of its only task
  nomad-lite alloc logs -f 8ba85cef server      both outputs, as they come
  nomad-lite alloc logs -stderr -tail -n 50 8ba85cef server
  nomad-lite alloc logs -job web                of a running allocation of a job`

type logsOptions struct {
	clientFlags apiclient.Flags
	allocFlags  apiclient.AllocFlags
	task        string
	printStdout bool
	printStderr bool
	follow      bool
	tailFlags   tailFlags
}

// tailFlags are the flags -tail, -n and -c, which select how much of the end of an output or file is shown.
type tailFlags struct {
	onlyTail  bool
	lineCount int
	byteCount int64
}

func (f *tailFlags) register(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.onlyTail, "tail", false, "show the end only: the last 10 lines, or what -n or -c say")
	cmd.Flags().IntVarP(&f.lineCount, "n", "n", -1, "with -tail or -f, begin `lines` before the end")
	cmd.Flags().Int64VarP(&f.byteCount, "c", "c", -1, "with -tail or -f, begin `bytes` before the end")
	cli.HideFlagDefaults(cmd, "n", "c")
	cmd.MarkFlagsMutuallyExclusive("n", "c")
}

// validateAndSetDefaultLineCount returns an error for contradictory flags, and sets the default of lineCount for -tail.
func (f *tailFlags) validateAndSetDefaultLineCount(cmd *cobra.Command, follow bool) error {
	given := cmd.Flags().Changed("n") || cmd.Flags().Changed("c")
	switch {
	case given && !f.onlyTail && !follow:
		return cli.UsageError(cmd, fmt.Errorf("-n and -c need -tail or -f"))
	case cmd.Flags().Changed("n") && f.lineCount < 0, cmd.Flags().Changed("c") && f.byteCount < 0:
		return cli.UsageError(cmd, fmt.Errorf("-n and -c take a number that is not negative"))
	case f.onlyTail && !given:
		f.lineCount = 10
	}
	return nil
}

func newLogsCommand(s *cli.Streams) *cobra.Command {
	var o logsOptions
	cmd := &cobra.Command{
		Use:     "logs [flags] ALLOC [TASK]",
		Short:   "Print the logs of a task",
		Long:    logsHelp,
		Example: logsExamples,
		Args:    allocAndTaskArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := o.tailFlags.validateAndSetDefaultLineCount(cmd, o.follow); err != nil {
				return err
			}
			if o.task, err = taskNameFromFlagOrArgs(o.task, args[1:]); err != nil {
				return err
			}
			ctx, stop := cli.ContextUntilInterrupted(cmd.Context())
			defer stop()
			return printTaskLogs(ctx, o, args[0], s)
		},
		ValidArgsFunction: apiclient.CompleteAllocAndTask(&o.clientFlags),
	}
	o.clientFlags.Register(cmd)
	o.allocFlags.Register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to print; may be the last argument as well")
	cli.MustSetFlagCompletion(cmd, "task", apiclient.CompleteTask(&o.clientFlags))
	cmd.Flags().BoolVar(&o.printStdout, "stdout", false, "print standard output; the default without -f")
	cmd.Flags().BoolVar(&o.printStderr, "stderr", false, "print standard error")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what is written from now on")
	o.tailFlags.register(cmd)
	return cmd
}

func printTaskLogs(ctx context.Context, o logsOptions, allocOrJobID string, s *cli.Streams) error {
	c, alloc, err := o.allocFlags.FindAlloc(ctx, &o.clientFlags, allocOrJobID)
	if err != nil {
		return err
	}
	task, err := checkTaskNameOrUseOnlyTask(alloc, o.task)
	if err != nil {
		return err
	}
	outputs := map[string]io.Writer{}
	if o.printStdout || !o.printStderr {
		outputs[api.FSLogNameStdout] = s.Out
	}
	switch {
	case o.printStderr && !o.printStdout:
		outputs[api.FSLogNameStderr] = s.Out
	case o.printStderr, o.follow && !o.printStdout:
		outputs[api.FSLogNameStderr] = s.Err
	}
	var wg sync.WaitGroup
	errs := make(chan error, len(outputs))
	for stream, w := range outputs {
		wg.Go(func() {
			r := streaming.LogRequest{Alloc: alloc, Task: task, Stream: stream, Follow: o.follow, FromNewestFile: true, TailLines: o.tailFlags.lineCount, TailBytes: o.tailFlags.byteCount}
			errs <- r.StreamLog(ctx, c, func(data []byte) error {
				_, err := w.Write(data)
				return err
			})
		})
	}
	wg.Wait()
	for range outputs {
		if err := <-errs; err != nil {
			return apiclient.WrapErrorWithAdvice(fmt.Sprintf("read the output of task %q of allocation %q", task, output.TruncateID(alloc.ID)), err)
		}
	}
	return nil
}
