package systemtest

import "testing"

func TestUIJobList(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)
	p := b.openTab(s.address, "/ui/")
	p.waitText("main", "No jobs.")
	s.run("web", "service", "running", newShellTask("main", sleepForeverScript))
	p.waitText("td", "web")
	p.screenshot("jobs")
	p.press("/")
	p.enter("dialog input", "we")
	p.waitText("dialog a", "web")
	p.press("\r")
	p.waitFor(`location.pathname === "/ui/jobs/web@default"`)
}
