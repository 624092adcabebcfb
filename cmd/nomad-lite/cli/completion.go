package cli

import "github.com/spf13/cobra"

// Completer suggests values for an argument; cobra calls it.
type Completer = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// CompleteFirstArg completes the first argument only.
func CompleteFirstArg(complete Completer) Completer {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, toComplete)
	}
}

// CompleteFlag sets the completion of a flag. It panics if the command does not have the
// flag, or has a completion for it.
func CompleteFlag(cmd *cobra.Command, flag string, complete Completer) {
	if err := cmd.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err)
	}
}
