package pages

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// hostileText is a name or a value that a page must show as text.
const hostileText = `<img src=x onerror=alert(1)> "'& ` + "\u202e\x1b[31m"

// TestUINodePages opens the pages about the agent and its objects in tabs of one browser.
func TestUINodePages(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	volumeDir := t.TempDir()
	s := systemtest.StartTestAgent(t, false, fmt.Sprintf("client { host_volume \"shared\" { path = %q } }\n", volumeDir))
	b := systemtest.OpenSharedBrowser(t)
	group := api.NewTaskGroup("g", 1)
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	group.AddTask(systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript, func(task *api.Task) {
		task.Services = []*api.Service{{
			Name: "db", Provider: "nomad", PortLabel: "http", Tags: []string{hostileText},
			Checks: []api.ServiceCheck{{Name: "port", Type: "http", Path: "/", Interval: 2 * time.Second, Timeout: time.Second}},
		}}
	}))
	s.RunGroupUntilStatus("web", "service", "running", group)

	t.Run("node", func(t *testing.T) { testNodePage(t, s, b.ForSubtest(t)) })
	t.Run("plugins", func(t *testing.T) { testPluginPage(t, s, b.ForSubtest(t)) })
	t.Run("volumes", func(t *testing.T) { testVolumePages(t, s, b.ForSubtest(t), volumeDir) })
	t.Run("services", func(t *testing.T) { testServicePages(t, s, b.ForSubtest(t)) })
	t.Run("variables", func(t *testing.T) { testVariablePages(t, s, b.ForSubtest(t)) })
	t.Run("events", func(t *testing.T) { testEventPage(t, s, b.ForSubtest(t)) })
}

func testNodePage(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser) {
	p := b.OpenTab(s.Address, "/ui/clients")
	p.WaitText("td", "raw_exec")
	p.WaitText("td", "web")
	p.WaitText("td", "% of the machine")
	p.WaitFor(`[...document.querySelectorAll(".chart-line")].filter((l) => l.getAttribute("d")?.includes("L")).length >= 2`)
	p.ScreenshotIfEnabled("node")

	p.Click("Attributes")
	p.WaitFor(`[...document.querySelectorAll("details")].at(-1).open`)
	systemtest.Eval[chromedp.Void](p, `{ scrollTo(0, 200); document.querySelectorAll(".scroll")[0].focus() }`)
	p.Click("Make ineligible")
	p.WaitText("dialog", "Further ones wait")
	p.ScreenshotIfEnabled("node-dialog")
	p.Click("Cancel")
	p.WaitFor(`!document.querySelector("dialog")`)
	p.Click("Make ineligible")
	p.WaitFor(`document.querySelector("dialog")`)
	p.Click("Make ineligible")
	p.WaitText(".badge", "ineligible")
	if !systemtest.Eval[bool](p, `[...document.querySelectorAll("details")].at(-1).open`) {
		t.Error("the attributes have closed when the page was redrawn")
	}
	if node := s.ReadNode(); node.SchedulingEligibility != "ineligible" {
		t.Errorf("the node is %s", node.SchedulingEligibility)
	}

	p.Click("Drain")
	p.EnterText("#drain-minutes", "90")
	p.RunSteps("select that system jobs continue", chromedp.Click(chromedp.CSS("dialog input[type=checkbox]")))
	p.Click("Drain")
	p.WaitText("dt", "Last drain")
	if drain := s.ReadNode().LastDrain; drain == nil {
		t.Error("the node was not drained")
	}
	s.WaitUntil("the drain is complete", func() (string, bool) {
		n := s.ReadNode()
		return fmt.Sprint(n.DrainStrategy), n.DrainStrategy == nil
	})
	p.Click("Make eligible")
	p.WaitFor(`document.querySelector("dialog")`)
	p.Click("Make eligible")
	p.WaitText(".badge", "eligible")
	p.OpenPath("/ui/clients/00000000-0000-0000-0000-000000000000")
	p.WaitText("main", "This agent has no such node.")
	p.OpenPath("/ui/topology")
	p.WaitText("td", "raw_exec")
}

func testPluginPage(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser) {
	p := b.OpenTab(s.Address, "/ui/plugins")
	p.WaitText("summary", "raw_exec")
	p.Click("raw_exec")
	p.WaitText("td", "StartTask")
	p.WaitText("td", "signals are sent to the driver")
	p.ScreenshotIfEnabled("plugins")
	pid := systemtest.Eval[int](p, `Number(/pid (\d+)/.exec(document.querySelector("details[open] summary").textContent)[1])`)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill plugin %d: %v", pid, err)
	}
	p.WaitText("summary", "1 restart")
	p.WaitText("details[open] dd", "was killed by signal 9")
	p.WaitFor(fmt.Sprintf(`!document.querySelector("details[open] summary").textContent.includes("pid %d,")`, pid))
	p.ScreenshotIfEnabled("plugins-restarted")
}

func testVolumePages(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser, dir string) {
	p := b.OpenTab(s.Address, "/ui/storage")
	p.WaitText("td", "shared")
	p.WaitText("td", dir)
	created, _, err := s.HostVolumes().Register(&api.HostVolumeRegisterRequest{Volume: &api.HostVolume{
		Name: "data", NodeID: s.NodeID, HostPath: t.TempDir(),
		RequestedCapabilities: []*api.HostVolumeCapability{{AttachmentMode: "file-system", AccessMode: "single-node-writer"}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Click("data")
	p.WaitText("dd", "single-node-writer")
	p.WaitText("main", "No allocation uses this volume.")
	p.ScreenshotIfEnabled("volume")
	p.AllowError("status of 404") // the page can learn of the deletion before it is left
	p.Click("Delete")
	p.WaitText("dialog", "stay on the disk")
	p.Click("Delete")
	p.WaitFor(`location.pathname === "/ui/storage"`)
	p.WaitText("main", "No volumes.")
	if _, _, err := s.HostVolumes().Get(created.Volume.ID, nil); err == nil {
		t.Error("the volume was not deleted")
	}
}

func testServicePages(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser) {
	p := b.OpenTab(s.Address, "/ui/services")
	p.Click("db")
	p.WaitFor(`location.pathname === "/ui/services/db"`)
	p.WaitText("td", s.WaitRunningAllocID("web")[:8])
	p.WaitText("td", `<img src=x onerror=alert(1)>`)
	p.WaitText("td .status-failing", "failing")
	p.Click("failing")
	p.WaitText("td details[open] pre", "refused")
	p.ScreenshotIfEnabled("service")
}

func testVariablePages(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser) {
	p := b.OpenTab(s.Address, "/ui/variables")
	p.WaitText("main", "No variables.")
	p.Click("New variable")
	p.EnterText("#variable-path", "app/db")
	p.EnterText(".item input", "password")
	p.EnterText(".item textarea", "hunter2")
	p.Click("Save")
	p.WaitText("td", "••••")
	p.WaitFor(`location.pathname === "/ui/variables/var/app/db@default"`)
	if systemtest.Eval[bool](p, `document.documentElement.outerHTML.includes("hunter2")`) {
		t.Error("the masked value is on the page")
	}
	p.Click("Reveal password")
	p.WaitText("td", "hunter2")
	p.ScreenshotIfEnabled("variable")

	p.Click("Edit")
	p.EnterText(".item textarea", "changed")
	if _, _, err := s.Variables().Update(&api.Variable{Path: "app/db", Items: api.VariableItems{"password": "other", hostileText: hostileText}}, nil); err != nil {
		t.Fatal(err)
	}
	p.AllowError("status of 409")
	p.Click("Save")
	p.WaitText(".error", "changed in the meantime")
	p.WaitText(".error", "password")
	p.ScreenshotIfEnabled("variable-conflict")
	p.Click("Edit the stored variable")
	p.WaitFor(`document.querySelectorAll(".item").length === 2`)
	p.EnterText(".item:nth-child(2) textarea", "mine")
	if _, _, err := s.Variables().Update(&api.Variable{Path: "app/db", Items: api.VariableItems{"password": "third", hostileText: hostileText}}, nil); err != nil {
		t.Fatal(err)
	}
	p.Click("Save")
	p.WaitText(".error", "These items differ from yours: password.")
	p.Click("Save over it")
	p.WaitText("td", `<img src=x onerror=alert(1)>`)
	p.Click("Reveal all")
	p.WaitText("td pre", `<img src=x onerror=alert(1)>`)
	p.WaitText("td pre", "mine")
	p.Click("Edit")
	p.WaitFor(`document.querySelectorAll(".item").length === 2`)
	p.Click("Remove the item password")
	p.Click("Save")
	p.WaitText("td", "••••")
	p.WaitFor(`!document.querySelector("main").textContent.includes("password")`)
	variable, _, err := s.Variables().Read("app/db", nil)
	if err != nil || len(variable.Items) != 1 || variable.Items[hostileText] != hostileText {
		t.Errorf("the variable is %v, %v", variable, err)
	}
	p.AllowError("status of 404")
	p.Click("Delete")
	p.WaitText("dialog", "Its items are lost")
	p.Click("Delete")
	p.WaitText("main", "No variables.")
	p.OpenPath("/ui/variables/var/none/here@default")
	p.WaitText("main", "This page cannot be shown")
}

func testEventPage(t *testing.T, s *systemtest.TestAgent, b *systemtest.Browser) {
	p := b.OpenTab(s.Address, "/ui/events")
	p.WaitText("td", " is ready") // the agent keeps recent events
	s.RunJobUntilStatus("ev", "batch", "complete", systemtest.NewRawExecShellTask("main", "exit 0"))
	p.WaitText("td", "Job ev was submitted as version 0")
	p.WaitText("td a", "ev")
	p.ScreenshotIfEnabled("events")
	p.Click("Pause")
	p.WaitText("main", "Paused.")
	rows := systemtest.Eval[int](p, `document.querySelectorAll("tbody tr").length`)
	s.RunJobUntilStatus("later", "batch", "complete", systemtest.NewRawExecShellTask("main", "exit 0"))
	p.WaitFor(`/Paused\. [1-9]/.test(document.querySelector("[role=status]:not([hidden])").textContent)`)
	if now := systemtest.Eval[int](p, `document.querySelectorAll("tbody tr").length`); now != rows {
		t.Errorf("%d rows while paused, before %d", now, rows)
	}
	p.Click("Continue")
	p.WaitText("td a", "later")
	p.SelectOption("#topic", "Node")
	p.Click("Clear")
	p.WaitFor(`document.querySelectorAll("tbody tr").length === 0`)
	s.RunJobUntilStatus("third", "batch", "complete", systemtest.NewRawExecShellTask("main", "exit 0"))
	for _, eligible := range []bool{false, true} {
		if _, err := s.Nodes().ToggleEligibility(s.NodeID, eligible, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.WaitText("tbody", " is ineligible")
	if strings.Contains(p.Text(), "third") {
		t.Error("an event of another topic is shown")
	}
}
