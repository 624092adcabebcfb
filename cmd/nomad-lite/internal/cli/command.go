package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// NewGroupCommand returns a command whose only purpose is to have subcommands.
func NewGroupCommand(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return PrintHelpForMissingSubcommand(cmd)
			}
			return UnknownCommandError(cmd, args[0])
		},
	}
	cmd.AddCommand(children...)
	return cmd
}

// PrintHelpForMissingSubcommand prints the help of a command that has subcommands, for a command line that names
// none of them, and returns an error with the exit code of Nomad's command line.
func PrintHelpForMissingSubcommand(cmd *cobra.Command) error {
	return errors.Join(cmd.Help(), &ExitError{Code: exitCodeForMissingSubcommand(cmd)})
}

func exitCodeForMissingSubcommand(cmd *cobra.Command) int {
	if cmd.HasParent() {
		return 1
	}
	return MissingCommand.Number
}

// UnknownCommandError returns the error for a subcommand of cmd that does not exist, with a suggestion and the exit
// code of Nomad's command line.
func UnknownCommandError(cmd *cobra.Command, name string) error {
	text := fmt.Sprintf("%s: there is no command %q", cmd.CommandPath(), name)
	cmd.SuggestionsMinimumDistance = 2
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		text += fmt.Sprintf("; to run a job file: %s run %s", cmd.Root().Name(), name)
	} else if near := suggestCommands(cmd, name); len(near) > 0 {
		text += fmt.Sprintf("; did you mean %q?", near[0])
	}
	return &ExitError{Code: exitCodeForMissingSubcommand(cmd), Err: fmt.Errorf("%s\nRun '%s -help' for the commands that there are", text, cmd.CommandPath())}
}

// suggestCommands returns the subcommands of cmd with a name similar to name, and the paths of subcommands of these
// that have exactly this name.
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

// FlagError returns the error for an invalid flag, with the path of the command. If the command line also names an
// unknown subcommand, the error is about the subcommand instead.
func FlagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasSubCommands() && len(args) > 0 {
		return UnknownCommandError(cmd, args[0])
	}
	return UsageError(cmd, rewriteErrorWithSingleDash(err))
}

// rewriteErrorWithSingleDash rewrites an error of pflag so that one dash precedes the name of the flag, as Nomad's
// users type flags.
func rewriteErrorWithSingleDash(err error) error {
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

// UsageError adds to an error about flags or arguments the path of the command and a hint at its help.
func UsageError(cmd *cobra.Command, err error) error {
	return fmt.Errorf("%s: %w\nRun '%s -help' for its flags and arguments", cmd.CommandPath(), err, cmd.CommandPath())
}

// RequireArgCount returns a check that the number of arguments is between least and most. A negative most means no
// limit. The error contains argsDescription, which describes the arguments that the command takes.
func RequireArgCount(least, most int, argsDescription string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		return newArgumentError(cmd, args, argsDescription)
	}
}

// NoArgs rejects arguments.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return newArgumentError(cmd, args, "no arguments")
}

func newArgumentError(cmd *cobra.Command, args []string, argsDescription string) error {
	if len(args) == 0 {
		return UsageError(cmd, fmt.Errorf("takes %s", argsDescription))
	}
	return UsageError(cmd, fmt.Errorf("takes %s, and not %q", argsDescription, args))
}

// HideFlagDefaults removes the default values of flags from the help text, such as a -1 that means that the flag is not
// given.
func HideFlagDefaults(cmd *cobra.Command, flags ...string) {
	for _, name := range flags {
		cmd.Flags().Lookup(name).DefValue = "0"
	}
}

// RunsProgramAnnotation marks a command whose second and later arguments are the command line of another program, so
// that flags among these arguments belong to that program.
const RunsProgramAnnotation = "runs a program"

// PassFlagsAfterFirstArg marks cmd with RunsProgramAnnotation, and lets cobra parse no flags after the first argument.
func PassFlagsAfterFirstArg(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().SetInterspersed(false)
	cmd.Annotations = map[string]string{RunsProgramAnnotation: "yes"}
	return cmd
}

// TwoWordsAnnotation annotates a flag whose value is two words of the command line, such as a path and a key.
const TwoWordsAnnotation = "two words"
