package faults

import (
	"testing"

	execdriver "github.com/nomad-lite/nomad-lite/builtin/exec"
	"github.com/nomad-lite/nomad-lite/builtin/rawexec"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
)

// TestShortTasks is TestInterruptedStarts with batch tasks of 20 ms. Most of the tasks whose plugin is killed during their start
// have ended when the next plugin process runs, so that nothing but their exit status is left of them.
//
//	make test-short-tasks
func TestShortTasks(t *testing.T) {
	t.Parallel()
	kinds := shortTaskKinds()
	if endurance.CurrentMode() != endurance.Sample {
		kinds = append(kinds, startKind{driver: "script", process: "script-driver", count: 10, install: installExampleDriver, config: map[string]any{"script": shortScript}})
	}
	testInterruptedStarts(t, kinds, true)
}

// shortScript is startScript for a task of 20 ms.
const shortScript = `
record=$NOMAD_ALLOC_DIR/data/record
echo start >>$record
sleep 0.02
echo end >>$record
exit $(((NOMAD_ALLOC_INDEX + SHIFT) % 7))
`

// shortTaskKinds are drivers that are made with package sdk, and need nothing but the machine.
func shortTaskKinds() []startKind {
	config := map[string]any{"command": "/bin/sh", "args": []string{"-c", shortScript}}
	return []startKind{
		{driver: rawexec.Name, process: "plugin", count: 60, config: config},
		{driver: execdriver.Name, process: systemtest.OnDemandPluginKind, count: 20, config: config},
		{driver: "external_exec", process: "exec-driver", count: 10, install: installTestDriver("exec-driver", "", "  config {\n    enabled = true\n  }\n"), config: config},
	}
}
