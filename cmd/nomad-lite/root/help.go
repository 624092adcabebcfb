package root

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
)

// printUsage prints the usage, the examples, the subcommands and the flags of a command. The connection flags and the
// flags of all commands come last.
func printUsage(cmd *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if cmd.Runnable() && !cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n  %s", cmd.UseLine())
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n  %s COMMAND", cmd.CommandPath())
	}
	b.WriteByte('\n')
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(&b, "\nAliases:\n  %s\n", cmd.NameAndAliases())
	}
	if cmd.HasExample() {
		fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	}
	rest := &cobra.Group{Title: "Commands:"}
	if len(cmd.Groups()) > 0 {
		rest.Title = "Other commands:"
	}
	for _, group := range append(cmd.Groups(), rest) {
		writeCommandsOfGroup(&b, cmd, group)
	}
	var own, commonFlags pflag.FlagSet
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		_, common := f.Annotations[apiclient.ConnectionFlagAnnotation]
		switch {
		case f.Hidden:
		case common || cmd.InheritedFlags().Lookup(f.Name) != nil:
			commonFlags.AddFlag(f)
		default:
			own.AddFlag(f)
		}
	})
	cmd.InheritedFlags().VisitAll(commonFlags.AddFlag)
	if own.HasFlags() {
		fmt.Fprintf(&b, "\nFlags:\n%s", formatFlagsSingleDash(&own))
	}
	if commonFlags.HasFlags() {
		fmt.Fprintf(&b, "\nCommon flags:\n%s", formatFlagsSingleDash(&commonFlags))
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nRun '%s COMMAND -help' for more about a command.\n", cmd.CommandPath())
	}
	_, err := fmt.Fprint(cmd.OutOrStderr(), b.String())
	return err
}

// writeCommandsOfGroup writes the subcommands of cmd that belong to group. A group with an empty ID holds the
// subcommands without a group.
func writeCommandsOfGroup(b *strings.Builder, cmd *cobra.Command, group *cobra.Group) {
	title := "\n" + group.Title + "\n"
	for _, c := range cmd.Commands() {
		if c.GroupID == group.ID && c.IsAvailableCommand() {
			fmt.Fprintf(b, "%s  %-*s %s\n", title, c.NamePadding(), c.Name(), c.Short)
			title = ""
		}
	}
}

// pflagUsagePattern matches the start of a line of pflag's help text: the shorthand letter, if the flag has one, and
// the name of the flag.
var pflagUsagePattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^  (?:-(\w), |    )--(\S+)`) })

// formatFlagsSingleDash returns pflag's help text of flags, with one dash before each name, as Nomad's users type
// flags.
func formatFlagsSingleDash(flags *pflag.FlagSet) string {
	return pflagUsagePattern().ReplaceAllStringFunc(flags.FlagUsages(), func(start string) string {
		switch part := pflagUsagePattern().FindStringSubmatch(start); part[1] {
		case "", part[2]:
			return "      -" + part[2]
		default:
			return "  -" + part[1] + ", -" + part[2]
		}
	})
}
