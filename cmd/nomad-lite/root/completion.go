package root

import (
	"bytes"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// isCompletionRequest reports whether the command line is the hidden command by which a shell requests completions.
func isCompletionRequest(args []string) bool {
	return len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// removeBackquotesFromFlagUsages removes the backquotes from the descriptions of all flags. The help text finds the
// name of a flag's value by the backquotes, but a shell would print them.
func removeBackquotesFromFlagUsages(cmd *cobra.Command) {
	unquote := func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) }
	cmd.Flags().VisitAll(unquote)
	cmd.PersistentFlags().VisitAll(unquote)
	for _, child := range cmd.Commands() {
		removeBackquotesFromFlagUsages(child)
	}
}

// singleDashFlagWriter writes the completions of flags, which cobra suggests with two dashes, with one dash, for a user
// who has typed one.
type singleDashFlagWriter struct{ io.Writer }

func (d singleDashFlagWriter) Write(line []byte) (int, error) {
	if !bytes.HasPrefix(line, []byte("--")) {
		return d.Writer.Write(line)
	}
	n, err := d.Writer.Write(line[1:])
	return n + 1, err
}

// isCompletionOfSingleDashWord reports whether the shell requests completions for a word that starts with a single dash
// and a letter.
func isCompletionOfSingleDashWord(args []string) bool {
	if len(args) < 2 || !isCompletionRequest(args) {
		return false
	}
	last := args[len(args)-1]
	return len(last) > 1 && last[0] == '-' && last[1] != '-'
}
