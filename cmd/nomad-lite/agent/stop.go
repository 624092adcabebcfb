package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/datadir"
	"github.com/nomad-lite/nomad-lite/internal/shellquote"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
)

const stopHelp = `Shut down the agent of a data directory, and list the processes that have exited.

Without DATA-DIR it is the default one: /var/lib/nomad-lite for root, else
$XDG_STATE_HOME/nomad-lite. Tasks that run continue, together with the keeper, the
log collector and the plugins, which the command lists.

With -all the command kills these processes too, including processes that do not
respond, and an agent that does not shut down in time. Processes of tasks are found by
their cgroup, root directory, session and environment. Tasks end as in a power failure,
without kill_signal and kill_timeout, and their jobs stay: the next agent starts them
again. To stop them in order, run 'nomad-lite job stop' for each job before. A container
or virtual machine that another program runs for a task, such as the Docker engine, is
left to the next agent, and its allocation is printed. What is mounted in the directories
of all other allocations is unmounted, so that DATA-DIR can be removed. If DATA-DIR was removed, or its
file system was unmounted, the command finds the processes that its keeper still has, by
the path that the directory had; an agent that still runs must be stopped before. In a copy of a data directory, the
tasks of the original are not killed. After Ctrl-C, processes that the command has not
killed continue.

A service manager may start the agent again: under systemd, stop the unit first.
The command is run by the user of the agent.

Exit codes: 0, or 1 when something could not be ended.`

type stopOptions struct {
	killAll         bool
	shutdownTimeout time.Duration
}

// manyProcesses is the number of processes above which their end takes long enough for a line of progress.
const manyProcesses = 100

// newStopCommand returns the command "agent stop".
func newStopCommand(s *cli.Streams) *cobra.Command {
	var o stopOptions
	cmd := &cobra.Command{
		Use:   "stop [flags] [DATA-DIR]",
		Short: "Shut down an agent, or kill all processes of a data directory",
		Long:  stopHelp,
		Example: `  nomad-lite agent stop                       tasks continue
  nomad-lite agent stop -all /srv/nomad-lite  tasks, plugins and helpers are killed`,
		Args: cli.RequireArgCount(0, 1, "at most one data directory"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return stopAgent(cmd.Context(), args[0], o, s)
			}
			dir, err := datadir.Default()
			if err != nil {
				return err
			}
			return stopAgent(cmd.Context(), dir, o, s)
		},
	}
	cmd.Flags().BoolVar(&o.killAll, "all", false, "also kill tasks, plugins, log collector and keeper")
	cmd.Flags().DurationVar(&o.shutdownTimeout, "timeout", 30*time.Second, "`duration` that the agent has to shut down")
	return cmd
}

func stopAgent(ctx context.Context, dataDir string, o stopOptions, s *cli.Streams) error {
	// The default action of a signal would end the command while it has stopped processes by SIGSTOP.
	ctx, release := cli.ContextUntilInterrupted(ctx)
	defer release()
	ended := 0
	remaining, err := datadirectory.Stop(ctx, dataDir, datadirectory.StopOptions{
		KillAllProcesses:     o.killAll,
		AgentShutdownTimeout: o.shutdownTimeout,
		OnProcessEnd: func(p datadirectory.Process) {
			ended++
			how := "shut down"
			if p.Killed {
				how = "killed"
			}
			fmt.Fprintf(s.Out, "%s (pid %d): %s\n", p.Name, p.PID, how)
		},
		OnKill: func(count int) {
			if count >= manyProcesses {
				fmt.Fprintf(s.Err, "Killing %d processes.\n", count)
			}
		},
		IsHostProcessDriver: agentconfig.IsHostProcessDriver,
		DecodeTaskProcess:   agentconfig.TaskProcessFromDriverState,
	})
	if errors.Is(err, datadirectory.ErrNotShutDown) {
		return fmt.Errorf("%w\nIt may still stop tasks. To kill it and all other processes of the data directory: nomad-lite agent stop -all %s", err, shellquote.Quote(dataDir))
	}
	if err != nil {
		return err
	}
	if ended == 0 && len(remaining.Processes) == 0 {
		fmt.Fprintf(s.Out, "No process runs for %s.\n", dataDir)
	}
	if remaining.TasksOwnerDir != "" {
		fmt.Fprintf(s.Out, "%s is a copy: its tasks belong to %s.\n", dataDir, remaining.TasksOwnerDir)
	}
	printRemainingProcesses(remaining, dataDir, o, s)
	return nil
}

// printRemainingProcesses prints the processes that still run after the stop and, with -all, the allocations that may
// still have a container or virtual machine.
func printRemainingProcesses(r *datadirectory.RemainingAfterStop, dataDir string, o stopOptions, s *cli.Streams) {
	var names []string
	tasks := 0
	for _, p := range r.Processes {
		if p.AllocID != "" {
			tasks++
			continue
		}
		names = append(names, fmt.Sprintf("%s (pid %d)", p.Name, p.PID))
	}
	if tasks > 0 {
		names = append(names, fmt.Sprintf("processes of tasks (%d)", tasks))
	}
	if len(names) > 0 {
		fmt.Fprintf(s.Out, "Still running: %s.\nTo end them too: nomad-lite agent stop -all %s\n", strings.Join(names, ", "), shellquote.Quote(dataDir))
	}
	if !o.killAll {
		return
	}
	for _, id := range r.AllocIDsWithoutProcess {
		fmt.Fprintf(s.Out, "Allocation %.8s had no process here: a container or virtual machine of it may still run.\n", id)
	}
}
