package systemtest

import (
	"testing"

	"github.com/hashicorp/nomad/api"
)

// TestUIWalks answers four questions as docs/ui-walks.md describes: from the list of jobs, with clicks on visible
// links and buttons. The document has the screenshots of the test.
func TestUIWalks(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)

	shop := s.run("shop", "service", "running",
		newShellTask("migrate", "while :; do echo 'waiting for the database at 10.0.0.5:5432'; sleep 1; done", inPrestart),
		newShellTask("web", sleepForeverScript))
	report := s.run("report", "service", "running", newShellTask("main", "echo ready; "+sleepForeverScript, slowHook("sleep 1.5")))
	imported := s.run("import", "batch", "failed", newShellTask("main", "echo 'reading orders.csv'; echo 'line 4711: no such customer: 0815' >&2; exit 3", withoutRestart))
	first := newUIJob("api", 1)
	first.TaskGroups[0].Tasks[0].Env = map[string]string{"LOG_LEVEL": "info", "WORKERS": "4"}
	second := newUIJob("api", 1)
	second.TaskGroups[0].Tasks[0].Env = map[string]string{"LOG_LEVEL": "debug", "WORKERS": "4"}
	for _, job := range []*api.Job{first, second} {
		if _, _, err := s.Jobs().Register(job, nil); err != nil {
			t.Fatal(err)
		}
		s.waitAlloc("api", "running")
	}

	p := b.openTab(s.address, "/ui/")
	p.waitText("td", "shop")

	p.click("shop")
	p.click(shop.ID[:8])
	p.click("Time line")
	p.waitText(".situation li", "web pending: waits for the task migrate for")
	p.click("Show")
	p.waitText(".span-output", "waiting for the database at 10.0.0.5:5432")
	p.screenshot("ui-not-started")

	p.click("Jobs")
	p.click("report")
	p.click(report.ID[:8])
	p.click("Time line")
	p.waitText(".situation li", "Its start took ")
	p.waitText(".situation li button", "script (prestart)")
	p.click("script (prestart)")
	p.waitText(".span-details dd", "prestart")
	p.screenshot("ui-slow-hook")

	p.click("Jobs")
	p.click("api")
	p.click("Versions")
	p.waitText(".diff", `Env[LOG_LEVEL]: "info" → "debug"`)
	p.screenshot("ui-versions")

	p.click("Jobs")
	p.click("import")
	p.click(imported.ID[:8])
	p.waitText("td", "failed (exit status 3)")
	p.click("main")
	p.waitText("pre", "line 4711: no such customer: 0815")
	p.screenshot("ui-crash")
}
