package pages

import (
	"testing"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

func TestUIJobList(t *testing.T) {
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenBrowser(t)
	p := b.OpenTab(s.Address, "/ui/")
	p.WaitText("main", "No jobs.")
	s.RunJob("web", "service", "running", systemtest.NewShellTask("main", systemtest.SleepForeverScript))
	p.WaitText("td", "web")
	p.Screenshot("jobs")
	p.PressKeys("/")
	p.EnterText("dialog input", "we")
	p.WaitText("dialog a", "web")
	p.PressKeys("\r")
	p.WaitFor(`location.pathname === "/ui/jobs/web@default"`)
}
