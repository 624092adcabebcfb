package root

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

func TestAgentHasNoOtherCommands(t *testing.T) {
	for _, test := range []struct {
		line string
		want string // the only command; empty means all commands
	}{
		{"agent --dev", "agent"},
		{"agent -h", "agent"},
		{"agent stop -all", "agent"},
		{"--no-color agent", "agent"},
		{"-no-color=false agent", "agent"},
		{"run web.nomad.hcl", "run"},
		{"job run web.nomad.hcl", ""},
		{"status", ""},
		{"help agent", ""},
		{"__complete agent ", ""},
		{"-- agent", ""},
		{"--no-color", ""},
		{"", ""},
	} {
		root := newRootWithAgentCommand(strings.Fields(test.line), &cli.Streams{})
		switch {
		case test.want == "" && root != nil:
			t.Errorf("%q: %d commands, want all", test.line, len(root.Commands()))
		case test.want != "" && (root == nil || len(root.Commands()) != 1 || root.Commands()[0].Name() != test.want):
			t.Errorf("%q: want only the command %s", test.line, test.want)
		}
	}
}

// A command without the others below root has the flags and the help text that it has among them.
func TestAgentCommandIsTheSameWithoutOthers(t *testing.T) {
	all := newRootCommand(&cli.Streams{})
	for _, line := range []string{"agent", "agent stop", "run"} {
		args := strings.Fields(line)
		alone, _, err := newRootWithAgentCommand(args, &cli.Streams{}).Find(args)
		if err != nil {
			t.Fatal(err)
		}
		among, _, err := all.Find(args)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := flagLines(alone), flagLines(among); !slices.Equal(got, want) {
			t.Errorf("%s: flags %q, want %q", line, got, want)
		}
		if got, want := helpText(t, alone), helpText(t, among); got != want {
			t.Errorf("%s: help text\n%s\nwant\n%s", line, got, want)
		}
	}
}

// flagLines returns the flags of a command, hidden and inherited ones too.
func flagLines(cmd *cobra.Command) (lines []string) {
	add := func(f *pflag.Flag) {
		lines = append(lines, strings.Join([]string{f.Name, f.Shorthand, f.Usage, f.DefValue, f.NoOptDefVal}, "|"))
	}
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	return lines
}

func helpText(t *testing.T, cmd *cobra.Command) string {
	var text strings.Builder
	cmd.SetOut(&text)
	cmd.InitDefaultHelpFlag()
	if err := cmd.Help(); err != nil {
		t.Fatal(err)
	}
	return text.String()
}
