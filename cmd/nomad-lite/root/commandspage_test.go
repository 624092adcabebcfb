package root

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/docpage"
)

// docs/reference/commands.md is the command tree.
func TestReferenceCommandsPage(t *testing.T) {
	t.Setenv("HOME", "/nonexistent") // no default can depend on the account that runs the test
	docpage.Check(t, "reference/commands.md", formatCommandsPage(newRootCommand(&cli.Streams{})))
}

func formatCommandsPage(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("# Commands\n\n" +
		"This page is generated from the commands of the program (`make reference`). [The command line](cli.md) shows the commands in use, and compares\n" +
		"them with Nomad's. A flag can have one dash or two. A default that is missing is empty, `false` or 0.\n\n")
	b.WriteString("## Exit codes\n\n" + formatExitCodes() + "\n" +
		"The text of each command below has its own meanings. [Jobs](cli.md#jobs) has those of `job run`, `job dispatch` and `job plan`.\n\n")
	b.WriteString("## Flags of each command\n\n" + formatFlags(root.PersistentFlags(), func(*pflag.Flag) bool { return true }) + "\n")
	b.WriteString("## Flags for the connection to an agent\n\nEach command that talks to an agent has these flags:\n\n")
	b.WriteString(formatFlags(findCommand(root, "job status").LocalFlags(), isConnectionFlag))
	for _, cmd := range root.Commands() {
		if !cmd.Hidden {
			writeCommand(&b, cmd)
		}
	}
	return b.String()
}

func isConnectionFlag(f *pflag.Flag) bool {
	_, ok := f.Annotations[apiclient.ConnectionFlagAnnotation]
	return ok
}

// writeCommand writes the sections of a command and of its subcommands.
func writeCommand(b *strings.Builder, cmd *cobra.Command) {
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	fmt.Fprintf(b, "\n## %s\n\n%s.\n", path, cmd.Short)
	if help := strings.TrimSpace(cmd.Long); help != "" && help != cmd.Short {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", help)
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\nCommands: " + formatSubcommands(cmd) + "\n")
	} else {
		fmt.Fprintf(b, "\nUsage: %s\n", docpage.Code(cmd.UseLine()))
	}
	if len(cmd.Aliases) > 0 {
		fmt.Fprintf(b, "\nAliases: %s\n", docpage.Code(cmd.Aliases...))
	}
	if cmd.HasExample() {
		fmt.Fprintf(b, "\n```text\n%s\n```\n", cmd.Example)
	}
	isOwn := func(f *pflag.Flag) bool {
		return !isConnectionFlag(f) && f.Name != "help" && cmd.InheritedFlags().Lookup(f.Name) == nil
	}
	if flags := formatFlags(cmd.LocalFlags(), isOwn); flags != "" {
		b.WriteString("\n" + flags)
	}
	if flags := formatIgnoredFlags(cmd); flags != "" {
		b.WriteString("\nFlags of Nomad without an effect:\n\n" + flags)
	}
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			writeCommand(b, child)
		}
	}
}

func formatSubcommands(cmd *cobra.Command) string {
	var links []string
	for _, child := range cmd.Commands() {
		if !child.Hidden {
			_, path, _ := strings.Cut(child.CommandPath(), " ")
			links = append(links, fmt.Sprintf("[%s](#%s)", child.Name(), strings.ReplaceAll(path, " ", "-")))
		}
	}
	return strings.Join(links, ", ")
}

func formatExitCodes() string {
	table := docpage.NewTable("Code", "Meaning", "Commands")
	table.AddRow("0", "the command succeeded", "all")
	for _, c := range cli.ExitCodes {
		commands := "all"
		if c.Commands != "" {
			commands = docpage.Code(strings.Split(c.Commands, ", ")...)
		}
		table.AddRow(c.Text(), c.Condition, commands)
	}
	return table.String()
}

// formatFlags returns a table of the visible flags for which include returns true.
func formatFlags(flags *pflag.FlagSet, include func(*pflag.Flag) bool) string {
	table := docpage.NewTable("Flag", "Default", "Description")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || !include(f) {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		names := []string{"-" + f.Name}
		if f.Shorthand != "" && f.Shorthand != f.Name {
			names = []string{"-" + f.Shorthand, "-" + f.Name}
		}
		name := docpage.Code(names...)
		if value != "" {
			name += " " + value
		}
		table.AddRow(name, formatDefault(f), usage)
	})
	return table.String()
}

// formatDefault returns the default of a flag, or an empty text for the zero value of its type.
func formatDefault(f *pflag.Flag) string {
	if slices.Contains([]string{"", "false", "0", "0s", "[]"}, f.DefValue) {
		return ""
	}
	return docpage.Code(f.DefValue)
}

// formatIgnoredFlags returns a table of the flags of a command that are accepted for existing scripts only.
func formatIgnoredFlags(cmd *cobra.Command) string {
	table := docpage.NewTable("Flag", "Reason")
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if ignored, ok := f.Value.(*ignoredFlag); ok {
			reason := ignored.reason
			if reason == noIgnoredFlagWarning {
				reason = "the program does by default what the flag requests"
			}
			table.AddRow(docpage.Code("-"+f.Name), reason)
		}
	})
	return table.String()
}
