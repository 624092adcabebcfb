package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewGroupCommand returns a command that only has subcommands.
func NewGroupCommand(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return MissingCommandError(cmd)
			}
			return UnknownCommandError(cmd, args[0])
		},
	}
	cmd.AddCommand(children...)
	return cmd
}

// MissingCommandError prints the help of a command that has subcommands, for a command line that names
// none of them, and returns an error with the exit code of Nomad's command line.
func MissingCommandError(cmd *cobra.Command) error {
	return errors.Join(cmd.Help(), &ExitError{Code: missingCommandExitCode(cmd)})
}

func missingCommandExitCode(cmd *cobra.Command) int {
	if cmd.HasParent() {
		return 1
	}
	return 127
}

// UnknownCommandError returns the error for a command that does not exist, with a suggestion and the
// exit code of Nomad's command line.
func UnknownCommandError(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("%s: there is no command %q", cmd.CommandPath(), name)
	cmd.SuggestionsMinimumDistance = 2
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		text += fmt.Sprintf("; to run a job file: %s run %s", cmd.Root().Name(), name)
	} else if near := suggestCommands(cmd, name); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return &ExitError{missingCommandExitCode(cmd), fmt.Errorf("%s\nRun '%s -help' for the commands that there are", text, cmd.CommandPath())}
}

// suggestCommands returns commands with a similar name, and commands with the same name below
// another command.
func suggestCommands(cmd *cobra.Command, name string) []string {
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

// FlagError returns the error for an unknown flag, with the name of the command. If the subcommand
// is unknown as well, the error names the subcommand instead.
func FlagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return UnknownCommandError(cmd, args[0])
	}
	return UsageError(cmd, withSingleDash(err))
}

// withSingleDash returns an error of pflag with one dash before the name of the flag, as users of Nomad
// type it.
func withSingleDash(err error) error {
	var unknown *pflag.NotExistError
	var noValue *pflag.ValueRequiredError
	var invalidValue *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		return fmt.Errorf("unknown flag: -%s", unknown.GetSpecifiedName())
	case errors.As(err, &noValue):
		return fmt.Errorf("flag needs a value: -%s", noValue.GetFlag().Name)
	case errors.As(err, &invalidValue):
		return fmt.Errorf("invalid value %q of -%s: %w", invalidValue.GetValue(), invalidValue.GetFlag().Name, invalidValue.Unwrap())
	}
	return err
}

// UsageError is the error of an invalid command line.
func UsageError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%s: %w\nRun '%s -help' for its flags and arguments", cmd.CommandPath(), err, cmd.CommandPath())
}

// RequireArgCount returns a check that the number of arguments is between least and most. A
// negative most means no limit.
func RequireArgCount(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		return argumentError(cmd, args, what)
	}
}

// NoArgs rejects arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return argumentError(cmd, args, "no arguments")
}

func argumentError(cmd *cobra.Command, args []string, what string) error {
	if len(args) == 0 {
		return UsageError(cmd, fmt.Errorf("takes %s", what))
	}
	return UsageError(cmd, fmt.Errorf("takes %s, and not %q", what, args))
}

// HideFlagDefaults removes the defaults of flags from the help text, such as the -1 of a flag that is
// not given.
func HideFlagDefaults(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		cmd.Flags().Lookup(name).DefValue = "0"
	}
}

// RunsProgramAnnotation marks a command whose arguments after the first are the command line of a
// program: the flags among them belong to the program.
const RunsProgramAnnotation = "runs a program"

// MarkRunsProgram marks a command with RunsProgramAnnotation.
func MarkRunsProgram(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().SetInterspersed(false)
	cmd.Annotations = map[string]string{RunsProgramAnnotation: "yes"}
	return cmd
}

// TwoWordsAnnotation annotates a flag whose value is two words of the command line, such as a path and
// an item.
const TwoWordsAnnotation = "two words"
