package root

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/ui"
)

// uiFlags are the commands with the flag -ui, each with the web page that the flag opens if the command shows no single
// object. The command "status" is not among them, because it passes its own flag on to one of these commands.
var uiFlags = []struct{ command, listPage string }{
	{"job run", ""},
	{"job dispatch", ""},
	{"job status", "jobs"},
	{"alloc status", "allocations"},
	{"node status", "clients"},
	{"eval list", "evaluations"},
	{"eval status", ""},
	{"deployment status", "jobs"},
	{"var get", ""},
	{"var list", "variables"},
	{"var put", ""},
	{"server members", "servers"},
}

// addUIFlags adds the flag -ui to the commands below root.
func addUIFlags(root *cobra.Command, s *cli.Streams) {
	for _, f := range uiFlags {
		cmd, rest, err := root.Find(strings.Fields(f.command))
		if err != nil || len(rest) > 0 {
			panic(fmt.Sprintf("flag -ui of %q: there is no such command", f.command))
		}
		ui.AddUIFlag(cmd, f.listPage, s)
	}
}
