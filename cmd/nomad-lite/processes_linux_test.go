package main

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/nomad-lite/nomad-lite/builtin/sandbox/stage"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/agent"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/builtins"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs/collectorwire"
)

// docs/explanation/processes.md has a row for each process that is this program, and no other row.
func TestProcessesAreDocumented(t *testing.T) {
	commands := map[string]bool{
		"nomad-lite agent":                                true,
		"nomad-lite " + keeperwire.CommandName:            true,
		"nomad-lite " + collectorwire.CommandName:         true,
		"nomad-lite " + agent.JobParserCommand:            true,
		"nomad-lite " + builtins.ArtifactDownloadCommand:  true,
		"nomad-lite " + builtins.TemplateEvaluatorCommand: true,
		"nomad-lite " + builtins.TemplateLauncherCommand:  true,
		stage.ProcessName:                                 true,
	}
	for _, name := range builtins.Names() {
		commands["nomad-lite plugin serve "+name] = true
	}
	text, err := os.ReadFile("../../docs/explanation/processes.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(nomad-lite[^`]*)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, row[1])
	}
	slices.Sort(documented)
	if want := slices.Sorted(maps.Keys(commands)); !slices.Equal(documented, want) {
		t.Errorf("rows: %q\nwant:  %q", documented, want)
	}
}
