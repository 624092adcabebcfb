package root

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/cli"
)

// toLongFlags turns Nomad's single-dash long flags (-var, -plugin-dir) into the double-dash
// form that cobra reads. It does not change the value of a flag, arguments after "--", and,
// for a command that runs another program, the arguments after the first.
func toLongFlags(root *cobra.Command, args []string) []string {
	cmd := root
	completes := isCompletion(args)
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
		case isLongFlag(cmd, arg), completes && i == len(args)-1 && arg[1] != '-':
			arg = "-" + arg
		}
		out = append(out, arg)
		if i+1 < len(args) && flagTakesValue(cmd, arg) {
			i++
			out = append(out, args[i])
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

// isLongFlag reports whether a word with one dash is a long flag (-var), and neither several short
// flags (-it) nor a short flag with its value (-n5).
func isLongFlag(cmd *cobra.Command, arg string) bool {
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

// flagTakesValue reports whether a flag takes the next word of the command line as its value.
func flagTakesValue(cmd *cobra.Command, arg string) bool {
	var f *pflag.Flag
	if name, long := strings.CutPrefix(arg, "--"); long {
		f = cmd.Flag(name) // nil for --name=value
	} else if len(arg) == 2 {
		f = lookupShorthand(cmd, rune(arg[1]))
	}
	return f != nil && f.NoOptDefVal == ""
}

func lookupShorthand(cmd *cobra.Command, letter rune) *pflag.Flag {
	if letter > 0x7f {
		return nil
	}
	return cmd.Flags().ShorthandLookup(string(letter))
}
