package pages

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// walkJobs are the allocations of jobs about which the walks ask.
type walkJobs struct{ shop, report, imported *api.Allocation }

// startWalkJobs starts the jobs, and a job "api" with two versions.
func startWalkJobs(t *testing.T, s *systemtest.TestAgent) walkJobs {
	t.Helper()
	shop := s.RunJobUntilStatus("shop", "service", "running",
		systemtest.NewRawExecShellTask("migrate", "while :; do echo 'waiting for the database at 10.0.0.5:5432'; sleep 1; done", systemtest.AsPrestartTask),
		systemtest.NewRawExecShellTask("web", systemtest.SleepForeverScript))
	report := s.RunJobUntilStatus("report", "service", "running", systemtest.NewRawExecShellTask("main", "echo ready; "+systemtest.SleepForeverScript, slowHook("sleep 1.5")))
	imported := s.RunJobUntilStatus("import", "batch", "failed", systemtest.NewRawExecShellTask("main", "echo 'reading orders.csv'; echo 'line 4711: no such customer: 0815' >&2; exit 3", systemtest.WithoutRestart))
	first := newUIJob("api", 1)
	first.TaskGroups[0].Tasks[0].Env = map[string]string{"LOG_LEVEL": "info", "WORKERS": "4"}
	second := newUIJob("api", 1)
	second.TaskGroups[0].Tasks[0].Env = map[string]string{"LOG_LEVEL": "debug", "WORKERS": "4"}
	for _, job := range []*api.Job{first, second} {
		if _, _, err := s.Jobs().Register(job, nil); err != nil {
			t.Fatal(err)
		}
		s.WaitAllocStatus("api", "running")
	}
	return walkJobs{shop, report, imported}
}

// TestUIWalks answers four questions as docs/how-to/ui-walks.md describes: from the list of jobs, with clicks on visible
// links and buttons. The document has the screenshots of the test.
func TestUIWalks(t *testing.T) {
	slowtest.Skip(t, "opens pages that other tests check")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)

	jobs := startWalkJobs(t, s)
	p := b.OpenTab(s.Address, "/ui/")
	p.WaitText("td", "shop")

	p.Click("shop")
	p.Click(jobs.shop.ID[:8])
	p.Click("Time line")
	p.WaitText(".situation li", `web pending: waits for task "migrate" to end for `)
	p.WaitText(".span-output", "waiting for the database at 10.0.0.5:5432")
	p.ScreenshotIfEnabled("ui-not-started")

	p.Click("Jobs")
	p.Click("report")
	p.Click(jobs.report.ID[:8])
	p.Click("Time line")
	p.WaitText(".problem", "main: slowest step: prestart hook script (")
	p.WaitText(".span-details dd", "prestart")
	p.WaitFor(`document.querySelector(".span-details").checkVisibility()`)
	p.ScreenshotIfEnabled("ui-slow-hook")

	p.Click("Jobs")
	p.Click("api")
	p.Click("Versions")
	p.WaitText(".diff", `Env[LOG_LEVEL]: "info" → "debug"`)
	p.ScreenshotIfEnabled("ui-versions")

	p.Click("Jobs")
	p.Click("import")
	p.Click(jobs.imported.ID[:8])
	p.WaitText("td", "failed (exit status 3)")
	p.Click("main")
	p.WaitText("pre", "line 4711: no such customer: 0815")
	p.ScreenshotIfEnabled("ui-crash")
}
