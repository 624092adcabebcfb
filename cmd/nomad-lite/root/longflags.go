package root

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

// toDoubleDashFlags rewrites Nomad's long flags with one dash (-var, -plugin-dir) to the form with two dashes that
// cobra reads. It joins the two words of a flag with cli.TwoWordsAnnotation. It does not change values of other flags,
// arguments after "--", and, for a command with cli.RunsProgramAnnotation, the arguments from the program on.
func toDoubleDashFlags(root *cobra.Command, args []string) []string {
	cmd := root
	completes := isCompletionRequest(args)
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			return append(out, args[i:]...)
		case arg == "" || arg == "-" || arg[0] != '-':
			child := findSubcommand(cmd, arg)
			if child == nil && cmd.Annotations[cli.RunsProgramAnnotation] != "" {
				return append(out, args[i:]...)
			}
			if child != nil {
				cmd = child
			}
			out = append(out, arg)
			continue
		case isSingleDashLongFlag(cmd, arg), completes && i == len(args)-1 && arg[1] != '-':
			arg = "-" + arg
		}
		out = append(out, arg)
		if f := findFlagWithSeparateValue(cmd, arg); f != nil && i+1 < len(args) {
			i++
			value := args[i]
			if _, twoWords := f.Annotations[cli.TwoWordsAnnotation]; twoWords && i+1 < len(args) && !strings.Contains(value, " ") {
				i++
				value += " " + args[i]
			}
			out = append(out, value)
		}
	}
	return out
}

func findSubcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name || c.HasAlias(name) {
			return c
		}
	}
	return nil
}

// isSingleDashLongFlag reports whether a word with one dash is a long flag such as -var, and neither several shorthands
// such as -it nor a shorthand with its value such as -n5.
func isSingleDashLongFlag(cmd *cobra.Command, arg string) bool {
	if len(arg) < 3 || arg[1] == '-' || strings.ContainsAny(arg[1:2], "0123456789.=") {
		return false
	}
	name, _, _ := strings.Cut(arg[1:], "=")
	if cmd.Flag(name) != nil {
		return true
	}
	for _, letter := range name {
		f := lookupShorthand(cmd, letter)
		if f == nil {
			return true
		}
		if f.NoOptDefVal == "" {
			return false
		}
	}
	return false
}

// findFlagWithSeparateValue returns the flag arg if the next word is its value, or nil.
func findFlagWithSeparateValue(cmd *cobra.Command, arg string) *pflag.Flag {
	var f *pflag.Flag
	if name, long := strings.CutPrefix(arg, "--"); long {
		f = cmd.Flag(name) // nil for --name=value, because no flag is named "name=value"
	} else if len(arg) == 2 {
		f = lookupShorthand(cmd, rune(arg[1]))
	}
	if f == nil || f.NoOptDefVal != "" {
		return nil
	}
	return f
}

func lookupShorthand(cmd *cobra.Command, letter rune) *pflag.Flag {
	if letter > 0x7f {
		return nil
	}
	return cmd.Flags().ShorthandLookup(string(letter))
}
