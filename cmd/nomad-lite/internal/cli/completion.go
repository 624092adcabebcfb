package cli

import "github.com/spf13/cobra"

// Completer suggests values for an argument; cobra calls it.
type Completer = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// CompleteArgsByPosition returns a completer that completes each argument with the completer at its position, and suggests
// nothing for further arguments.
func CompleteArgsByPosition(completers ...Completer) Completer {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(completers) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completers[len(args)](cmd, args, toComplete)
	}
}

// MustSetFlagCompletion sets the completion of a flag. It panics if the command does not have the
// flag, or has a completion for it.
func MustSetFlagCompletion(cmd *cobra.Command, flag string, complete Completer) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err)
	}
}
