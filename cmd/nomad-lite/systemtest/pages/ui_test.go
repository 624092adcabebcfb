package pages

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

func TestUIJobList(t *testing.T) {
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	p := b.OpenTab(s.Address, "/ui/")
	p.WaitText("main", "No jobs.")
	s.RunJobUntilStatus("web", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	p.WaitText("td", "web")
	p.ScreenshotIfEnabled("jobs")
	p.PressKeys("/")
	p.EnterText("dialog input", "we")
	p.WaitText("dialog a", "web")
	p.PressKeys("\r")
	p.WaitFor(`location.pathname === "/ui/jobs/web@default"`)
}
