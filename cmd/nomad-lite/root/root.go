package root

import (
	"context"
	"errors"
	"slices"
	"strings"
	_ "time/tzdata" // embeds the time zones of periodic jobs, for machines without zone files

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/acl"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agentinfo"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/alloc"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/completion"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/deployment"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/eval"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/event"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/format"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/importjob"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/job"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/logs"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/namespace"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/node"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/operator"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/scaling"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/server"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/service"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/status"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/system"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/top"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/ui"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/variable"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/version"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/volume"
)

// newRootCommand returns the command "nomad-lite" with all commands below it.
func newRootCommand(s *cli.Streams) *cobra.Command {
	root := newRootWithoutCommands(s)
	addAllCommands(root, s)
	return root
}

// newRootWithAgentCommand returns the command "nomad-lite" with a single command below it, if args call "agent" or "run", and nil
// otherwise: the other commands with their flags take 2 ms of a start, and 1 MB of a process that runs for long.
func newRootWithAgentCommand(args []string, s *cli.Streams) *cobra.Command {
	i := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") || arg == "--" }) // no flag of root has a separate value
	if i < 0 {
		return nil
	}
	command := newAgentCommandOrNil(args[i], s)
	if command == nil {
		return nil
	}
	root := newRootWithoutCommands(s)
	root.AddCommand(command)
	addIgnoredFlags(root, command.Name(), s)
	return root
}

func newRootWithoutCommands(s *cli.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "nomad-lite",
		Short: "Run Nomad job files on one machine",
		Long: `nomad-lite runs Nomad job files on one machine, from one binary, without servers.

  nomad-lite run web.nomad.hcl      run a job here, until it ends or you press Ctrl-C
  nomad-lite agent                  keep jobs running; 'job run' gives it some
  nomad-lite job validate FILE      say what is wrong with a job file
  nomad-lite plugin new driver X    begin a task driver of your own

The commands are Nomad's, and work with a Nomad cluster too: -address, or
NOMAD_ADDR. A flag may have one dash, as Nomad's have, or two.

To complete commands, flags and ids in a shell: nomad-lite completion install`,
		Version:       version.String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.PrintHelpForMissingSubcommand(cmd)
			}
			return cli.UnknownCommandError(cmd, args[0])
		},
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetVersionTemplate("nomad-lite {{.Version}}\n")
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetUsageFunc(printUsage)
	root.PersistentFlags().BoolVar(&s.NoColour, "no-color", false, "print no colours (NO_COLOR, NOMAD_CLI_NO_COLOR)")
	root.PersistentFlags().BoolVar(&s.ForceColour, "force-color", false, "print colours also when the output is no terminal (NOMAD_CLI_FORCE_COLOR)")
	return root
}

func addAllCommands(root *cobra.Command, s *cli.Streams) {
	machine := newLinuxOnlyCommands(s)
	jobs, operators := job.NewCommand(s, logs.FollowJob), operator.NewCommand(s)
	jobs.AddCommand(machine.jobSubcommands...)
	operators.AddCommand(machine.state, operator.NewSnapshotCommand(s, machine.snapshotSubcommands...))
	addCommandGroup(root, "Job files",
		machine.run,
		job.NewInitCommand(s),
		machine.validate,
		format.NewCommand(s),
		importjob.NewCommand(s),
	)
	addCommandGroup(root, "Jobs on an agent",
		jobs,
		status.NewCommand(),
		job.NewPlanCommand(s),
		job.NewStopCommand(s),
		job.NewStartCommand(s),
		job.NewInspectCommand(s),
		job.NewActionCommand(s),
		top.NewCommand(s, logs.FollowTask),
		logs.NewCommand(s),
		alloc.NewCommand(s),
		alloc.NewExecCommand(s),
		alloc.NewFSCommand(s),
		deployment.NewCommand(s),
		eval.NewCommand(s),
		service.NewCommand(s),
		variable.NewCommand(s),
		namespace.NewCommand(s),
		acl.NewCommand(s),
		scaling.NewCommand(s),
		event.NewCommand(s),
		ui.NewCommand(s),
	)
	addCommandGroup(root, "The agent and its machine",
		machine.agent,
		agentinfo.NewCommand(s),
		agentinfo.NewMonitorCommand(s),
		machine.config,
		node.NewCommand(s),
		server.NewCommand(s),
		system.NewCommand(),
		operators,
		volume.NewCommand(s),
		machine.plugin,
	)
	root.AddCommand(version.NewCommand(s), completion.NewCommand(s))
	root.AddCommand(newUnsupportedCommands()...)
	addUIFlags(root, s)
	addIgnoredFlags(root, "", s)
}

// addCommandGroup adds commands to root, under a title in the help text.
func addCommandGroup(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title + ":"})
	for _, cmd := range commands {
		cmd.GroupID = title
		root.AddCommand(cmd)
	}
}

// Execute runs one command line and returns its exit code.
func Execute(args []string, s *cli.Streams) int {
	if serve := findHelperProcessMain(args, s); serve != nil {
		return printErrorAndGetExitCode(serve(), s)
	}
	safe := *s
	s = &safe
	s.Out, s.Err = terminal.SanitizeIfTerminal(s.Out), terminal.SanitizeIfTerminal(s.Err) // they sanitize all text that agents and tasks have written
	s.CommandLineArgs = args
	root := newRootWithAgentCommand(args, s)
	if root == nil {
		root = newRootCommand(s)
	}
	root.SetArgs(toDoubleDashFlags(root, args))
	if isCompletionRequest(args) {
		removeBackquotesFromFlagUsages(root)
	}
	if isCompletionOfSingleDashWord(args) {
		root.SetOut(singleDashFlagWriter{s.Out})
	}
	return printErrorAndGetExitCode(root.ExecuteContext(context.Background()), s)
}

// printErrorAndGetExitCode returns the exit code for the error of a command. It prints the error unless the command has
// already printed the reason.
func printErrorAndGetExitCode(err error, s *cli.Streams) int {
	if err == nil {
		return 0
	}
	code := 1
	if exit := new(cli.ExitError); errors.As(err, &exit) {
		code, err = exit.Code, exit.Err
	}
	if err != nil {
		s.Err.Write(terminal.SanitizeText([]byte(err.Error()+"\n"), false)) //nolint:errcheck // an error of standard error cannot be reported
	}
	return code
}
