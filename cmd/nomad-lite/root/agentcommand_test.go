package root

import (
	"strings"
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
)

func TestAgentDropsOtherCommands(t *testing.T) {
	for _, test := range []struct {
		line string
		want string // the only command that stays; empty means that all stay
	}{
		{"agent --dev", "agent"},
		{"--no-color agent", "agent"},
		{"run web.nomad.hcl", "run"},
		{"job run web.nomad.hcl", ""},
		{"status", ""},
		{"help agent", ""},
		{"__complete agent ", ""},
		{"", ""},
	} {
		root := newRootCommand(&cli.Streams{})
		before := len(root.Commands())
		removeCommandsBesideAgent(root, strings.Fields(test.line))
		left := root.Commands()
		switch {
		case test.want == "" && len(left) != before:
			t.Errorf("%q: %d of %d commands stay", test.line, len(left), before)
		case test.want != "" && (len(left) != 1 || left[0].Name() != test.want):
			t.Errorf("%q: %d commands stay, want only %s", test.line, len(left), test.want)
		}
	}
}
