package pages

import (
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/slowtest"
)

// TestUIEdges shows pages in situations that are rare: a lost connection, wrong addresses, long names, a slow agent. The
// subtests share an agent and a browser, and each has jobs of its own.
func TestUIEdges(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	for _, test := range []struct {
		name string
		run  func(*uiJobsTest)
	}{
		{"views open after the agent was away", (*uiJobsTest).viewsAfterLostConnection},
		{"reload requests data only", (*uiJobsTest).reload},
		{"terminal opens after its files did not load", (*uiJobsTest).terminalFiles},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			agent := *s
			agent.T = t
			test.run(&uiJobsTest{TestAgent: &agent, t: t, browser: b.ForSubtest(t)})
		})
	}
}

func (u *uiJobsTest) viewsAfterLostConnection() {
	n := newUnreliableNetwork(u.t, u.Address)
	p := u.browser.OpenTab(n.address, "/ui/jobs")
	p.WaitText("h1", "Jobs")
	p.AllowError("net::ERR")
	n.setCut(true)
	views := []string{"Services", "Node", "Plugins", "Variables", "Volumes", "Evaluations", "Events", "Allocations", "Token"}
	for _, title := range views {
		p.Click(title)
	}
	p.WaitFor(`!document.querySelector("#connection").hidden`)
	n.setCut(false)
	for _, title := range views {
		p.Click(title)
		heading := title
		if title == "Node" {
			heading = u.ReadNode().Name
		}
		p.WaitText("h1", heading)
	}
	p.WaitFor(`document.querySelector("#connection").hidden`)
	p.PressKeys("/")
	p.WaitFor(`document.activeElement.closest("dialog.search")`)
}

func (u *uiJobsTest) reload() {
	p := u.open("/ui/jobs?text=none")
	p.WaitText("main > p", "No job")
	p.RunSteps("reload", chromedp.Reload())
	p.WaitText("main > p", "No job")
	transferred := `performance.getEntriesByType("resource").filter((e) => e.transferSize > 0).map((e) => new URL(e.name).pathname)`
	p.WaitFor(transferred + `.includes("/v1/jobs")`)
	if files := systemtest.Eval[[]string](p, transferred+`.filter((path) => !path.startsWith("/v1/"))`); len(files) > 0 {
		u.t.Errorf("a reload requests %q", files)
	}
}

func (u *uiJobsTest) terminalFiles() {
	alloc := u.RunJobUntilStatus("shell", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	p := u.open("/ui/allocations/" + alloc.ID)
	block := func(patterns ...*network.BlockPattern) {
		if _, err := chromedp.Call(p.Ctx, network.SetBlockedURLs, network.SetBlockedURLsParams{URLPatterns: patterns}); err != nil {
			u.t.Fatal(err)
		}
	}
	p.AllowError("net::ERR_BLOCKED_BY_CLIENT")
	block(&network.BlockPattern{URLPattern: "*://*:*/*xterm.js*", Block: true})
	p.Click("Terminal")
	p.WaitText("[role=alert]", "The agent does not answer.")
	block()
	p.WaitText("[role=status]", "Connected: /bin/sh")
}
