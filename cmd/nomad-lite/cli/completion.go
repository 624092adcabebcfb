package cli

import "github.com/spf13/cobra"

// Completer suggests values for an argument; cobra calls it.
type Completer = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective)

// FirstArg completes the first argument only.
func FirstArg(complete Completer) Completer {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}
