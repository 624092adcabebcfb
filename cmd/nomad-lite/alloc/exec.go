package alloc

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/execsession"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/output"
)

const execHelp = `Run a command in a running task, with its directory, its environment and the
isolation of its driver.

Flags come before ALLOC; all that follows is the command, with its own flags. A
terminal is used if you have one; leave it out with -t=false.

On a terminal, what you type goes to the command, Ctrl-C too. At the begin of a
line, ~. ends the session.

Exit codes: the exit code of the command; 127 when there is no such command, 126 when it
is not executable; 1 when it could not be run; 128 plus the number of the signal when
a signal ended the session, such as 130 after Ctrl-C without a terminal.`

const execExamples = `  nomad-lite alloc exec 8ba85cef sh              a shell in its only task
  nomad-lite alloc exec -task server 8ba85cef ls -la local
  nomad-lite alloc exec -job web cat /etc/hosts  in an allocation of a job
  echo hello | nomad-lite alloc exec -t=false 8ba85cef cat`

type execOptions struct {
	clientFlags  apiclient.Flags
	allocFlags   apiclient.AllocFlags
	task         string
	sessionFlags execsession.Flags
}

// NewExecCommand returns the command "alloc exec", which is also "exec".
func NewExecCommand(s *cli.Streams) *cobra.Command {
	var o execOptions
	cmd := &cobra.Command{
		Use:     "exec [flags] ALLOC COMMAND [ARGUMENT...]",
		Short:   "Run a command in a task",
		Long:    execHelp,
		Example: execExamples,
		Args:    cli.RequireArgCount(2, -1, "an allocation and a command, such as sh"),
		RunE: func(cmd *cobra.Command, args []string) error {
			command, err := parseExecCommand(cmd, args[1:])
			if err != nil {
				return err
			}
			if err := o.sessionFlags.SetDefaultsAndValidate(cmd, s); err != nil {
				return err
			}
			return execInTask(cmd.Context(), o, args[0], command, s)
		},
		ValidArgsFunction: cli.CompleteArgsByPosition(apiclient.CompleteAlloc(&o.clientFlags)),
	}
	o.clientFlags.Register(cmd)
	o.allocFlags.Register(cmd)
	cmd.Flags().StringVar(&o.task, "task", "", "`task` to run it in; not needed if there is only one")
	cli.MustSetFlagCompletion(cmd, "task", apiclient.CompleteTask(&o.clientFlags))
	o.sessionFlags.Register(cmd)
	return cli.PassFlagsAfterFirstArg(cmd)
}

// parseExecCommand returns the command from the words after the allocation. It skips a "--", which kubectl and
// docker need there, and returns an error if the first word looks like a flag, because no program has such a name.
func parseExecCommand(cmd *cobra.Command, argsAfterAlloc []string) ([]string, error) {
	if argsAfterAlloc[0] == "--" && len(argsAfterAlloc) > 1 {
		argsAfterAlloc = argsAfterAlloc[1:]
	}
	if strings.HasPrefix(argsAfterAlloc[0], "-") {
		return nil, cli.UsageError(cmd, fmt.Errorf("%s: flags come before the allocation, and the command after it: %s [flags] ALLOC COMMAND", argsAfterAlloc[0], cmd.CommandPath()))
	}
	return argsAfterAlloc, nil
}

func execInTask(ctx context.Context, o execOptions, allocOrJobID string, command []string, s *cli.Streams) error {
	c, alloc, err := o.allocFlags.FindAlloc(ctx, &o.clientFlags, allocOrJobID)
	if err != nil {
		return err
	}
	task, err := checkTaskNameOrUseOnlyTask(alloc, o.task)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("run %q in task %q of allocation %q", command[0], task, output.TruncateID(alloc.ID))
	return o.sessionFlags.Run(ctx, s, what, func(ctx context.Context, e execsession.Session) (int, error) {
		return c.Allocations().Exec(ctx, alloc, task, o.sessionFlags.TTY, command, e.Stdin, e.Stdout, e.Stderr, e.TerminalSizes, apiclient.QueryOptions(ctx, alloc.Namespace))
	})
}
