package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// streams are the standard streams of a command: data goes to out, all other text to err.
type streams struct {
	in  io.Reader
	out io.Writer
	err io.Writer

	noColour, forceColour bool
}

// exitError ends the command with an exit code of its own. A nil err prints nothing,
// because the command has already printed the reason.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func newRootCommand(s *streams) *cobra.Command {
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

To complete commands, flags and ids in a shell: nomad-lite completion --help`,
		Version:       buildVersion(),
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetVersionTemplate("nomad-lite {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetUsageFunc(usage)
	root.PersistentFlags().BoolVar(&s.noColour, "no-color", false, "print no colours (NO_COLOR, NOMAD_CLI_NO_COLOR)")
	root.PersistentFlags().BoolVar(&s.forceColour, "force-color", false, "print colours also when the output is no terminal (NOMAD_CLI_FORCE_COLOR)")
	section(root, "Job files",
		newRunCommand(s),
		newJobInitCommand(s),
		newJobValidateCommand(s),
		newFmtCommand(s),
	)
	section(root, "Jobs on an agent",
		newJobCommand(s),
		newStatusCommand(),
		newJobPlanCommand(s),
		newJobStopCommand(s),
		newJobInspectCommand(s),
		newLogsCommand(s),
		newAllocCommand(s),
		newDeploymentCommand(s),
		newEvalCommand(s),
		newServiceCommand(s),
		newVarCommand(s),
		newNamespaceCommand(s),
		newScalingCommand(s),
		newEventCommand(s),
		newUICommand(s),
	)
	section(root, "The agent and its machine",
		newAgentCommand(s),
		newAgentInfoCommand(s),
		newAgentMonitorCommand(s),
		newNodeCommand(s),
		newServerCommand(s),
		newSystemCommand(s),
		newOperatorCommand(s),
		newVolumeCommand(s),
		newPluginCommand(s),
	)
	root.AddCommand(newVersionCommand(s))
	root.AddCommand(clusterOnly()...)
	addIdleFlags(root, s)
	return root
}

// section adds commands under one title of the help.
func section(root *cobra.Command, title string, commands ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: title, Title: title + ":"})
	for _, cmd := range commands {
		cmd.GroupID = title
		root.AddCommand(cmd)
	}
}

// group returns a command that only has subcommands.
func group(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
	cmd.AddCommand(children...)
	return cmd
}

func unknownCommand(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("%s: there is no command %q", cmd.CommandPath(), name)
	cmd.SuggestionsMinimumDistance = 2
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		text += fmt.Sprintf("; to run a job file: %s run %s", cmd.Root().Name(), name)
	} else if near := suggestions(cmd, name); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return fmt.Errorf("%s\nRun '%s --help' for the commands that there are", text, cmd.CommandPath())
}

// suggestions returns commands with a similar name, and commands with the same name below
// another command.
func suggestions(cmd *cobra.Command, name string) []string {
	near := cmd.SuggestionsFor(name)
	for _, child := range cmd.Commands() {
		for _, c := range child.Commands() {
			if c.Name() == name {
				near = append(near, child.Name()+" "+name)
			}
		}
	}
	return near
}

// flagError names the command that does not take the flag. For a command that does not
// exist, it reports that instead.
func flagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	return usageError(cmd, err)
}

// argCount checks the number of arguments. A negative most means no limit.
func argCount(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		return wrongArguments(cmd, args, what)
	}
}

func wrongArguments(cmd *cobra.Command, args []string, what string) error {
	if len(args) == 0 {
		return usageError(cmd, fmt.Errorf("takes %s", what))
	}
	return usageError(cmd, fmt.Errorf("takes %s, and not %q", what, args))
}

// usageError is the error of an invalid command line.
func usageError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%s: %w\nRun '%s --help' for its flags and arguments", cmd.CommandPath(), err, cmd.CommandPath())
}

// noArguments rejects arguments.
func noArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return wrongArguments(cmd, args, "no arguments")
}

// execute runs one command line and returns its exit code.
func execute(args []string, s *streams) int {
	if serve := helper(args, s); serve != nil {
		return exitCode(serve(), s)
	}
	root := newRootCommand(s)
	root.SetArgs(longFlags(root, args))
	if isCompletion(args) {
		unquoteFlags(root)
	}
	if begunWithOneDash(args) {
		root.SetOut(dashes{s.out})
	}
	return exitCode(root.ExecuteContext(context.Background()), s)
}

// exitCode prints an error, unless the command has printed it, and returns the exit code.
func exitCode(err error, s *streams) int {
	if err == nil {
		return 0
	}
	code := 1
	if exit := new(exitError); errors.As(err, &exit) {
		code, err = exit.code, exit.err
	}
	if err != nil {
		s.err.Write(printable([]byte(err.Error()+"\n"), false)) //nolint:errcheck // an error of standard error cannot be reported
	}
	return code
}
