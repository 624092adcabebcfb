package root

import (
	"bytes"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// isCompletion reports whether the command line is a completion request of a shell.
func isCompletion(args []string) bool {
	return len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// unquoteFlagUsages removes the backquotes from the descriptions of flags. Help finds the name
// of a value by them; a shell would show them.
func unquoteFlagUsages(cmd *cobra.Command) {
	unquote := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	cmd.Flags().VisitAll(unquote)
	cmd.PersistentFlags().VisitAll(unquote)
	for _, child := range cmd.Commands() {
		unquoteFlagUsages(child)
	}
}

// singleDashFlagWriter writes the flags that cobra suggests to a shell with one dash instead of
// two, because the user has typed one.
type singleDashFlagWriter struct{ io.Writer }

func (d singleDashFlagWriter) Write(line []byte) (int, error) {
	if !bytes.HasPrefix(line, []byte("--")) {
		return d.Writer.Write(line)
	}
	n, err := d.Writer.Write(line[1:])
	return n + 1, err
}

// isSingleDashCompletion reports whether the user completes a flag that starts with a single dash.
func isSingleDashCompletion(args []string) bool {
	if len(args) < 2 || !isCompletion(args) {
		return false
	}
	last := args[len(args)-1]
	return len(last) > 1 && last[0] == '-' && last[1] != '-'
}
