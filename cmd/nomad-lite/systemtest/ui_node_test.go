package systemtest

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"
)

// hostileText is a name or a value that a page must show as text.
const hostileText = `<img src=x onerror=alert(1)> "'& ` + "\u202e\x1b[31m"

// TestUINodePages opens the pages about the agent and its objects in tabs of one browser.
func TestUINodePages(t *testing.T) {
	t.Parallel()
	volumeDir := t.TempDir()
	s := startTestAgent(t, false, fmt.Sprintf("client { host_volume \"shared\" { path = %q } }\n", volumeDir))
	b := startBrowser(t)
	group := api.NewTaskGroup("g", 1)
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	group.AddTask(newShellTask("main", sleepForeverScript, func(task *api.Task) {
		task.Services = []*api.Service{{
			Name: "db", Provider: "nomad", PortLabel: "http", Tags: []string{hostileText},
			Checks: []api.ServiceCheck{{Name: "port", Type: "http", Path: "/", Interval: 2 * time.Second, Timeout: time.Second}},
		}}
	}))
	s.runGroup("web", "service", "running", group)

	t.Run("node", func(t *testing.T) { testNodePage(t, s, &browser{t, b.ctx}) })
	t.Run("plugins", func(t *testing.T) { testPluginPage(t, s, &browser{t, b.ctx}) })
	t.Run("volumes", func(t *testing.T) { testVolumePages(t, s, &browser{t, b.ctx}, volumeDir) })
	t.Run("services", func(t *testing.T) { testServicePages(t, s, &browser{t, b.ctx}) })
	t.Run("variables", func(t *testing.T) { testVariablePages(t, s, &browser{t, b.ctx}) })
	t.Run("events", func(t *testing.T) { testEventPage(t, s, &browser{t, b.ctx}) })
}

func testNodePage(t *testing.T, s *testAgent, b *browser) {
	p := b.openTab(s.address, "/ui/clients")
	p.waitText("td", "raw_exec")
	p.waitText("td", "web")
	p.waitText("td", "% of the machine")
	p.waitFor(`[...document.querySelectorAll(".chart-line")].filter((l) => l.getAttribute("d")?.includes("L")).length === 2`)
	p.screenshot("node")

	p.click("Attributes")
	p.waitFor(`[...document.querySelectorAll("details")].at(-1).open`)
	eval[chromedp.Void](p, `{ scrollTo(0, 200); document.querySelectorAll(".scroll")[0].focus() }`)
	p.click("Make ineligible")
	p.waitText("dialog", "Further ones wait")
	p.screenshot("node-dialog")
	p.click("Cancel")
	p.waitFor(`!document.querySelector("dialog")`)
	p.click("Make ineligible")
	p.waitFor(`document.querySelector("dialog")`)
	p.click("Make ineligible")
	p.waitText(".badge", "ineligible")
	if !eval[bool](p, `[...document.querySelectorAll("details")].at(-1).open`) {
		t.Error("the attributes have closed when the page was redrawn")
	}
	if node := s.readNode(); node.SchedulingEligibility != "ineligible" {
		t.Errorf("the node is %s", node.SchedulingEligibility)
	}

	p.click("Drain")
	p.enter("#drain-minutes", "90")
	p.do("select that system jobs continue", chromedp.Click(chromedp.CSS("dialog input[type=checkbox]")))
	p.click("Drain")
	p.waitText("dt", "Last drain")
	if drain := s.readNode().LastDrain; drain == nil {
		t.Error("the node was not drained")
	}
	s.waitUntil("the drain is complete", func() (string, bool) {
		n := s.readNode()
		return fmt.Sprint(n.DrainStrategy), n.DrainStrategy == nil
	})
	p.click("Make eligible")
	p.waitFor(`document.querySelector("dialog")`)
	p.click("Make eligible")
	p.waitText(".badge", "eligible")
	p.open("/ui/clients/00000000-0000-0000-0000-000000000000")
	p.waitText("main", "This agent has no such node.")
	p.open("/ui/topology")
	p.waitText("td", "raw_exec")
}

func (s *testAgent) readNode() *api.Node {
	s.t.Helper()
	node, _, err := s.Nodes().Info(s.nodeID, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return node
}

func testPluginPage(t *testing.T, s *testAgent, b *browser) {
	p := b.openTab(s.address, "/ui/plugins")
	p.waitText("summary", "raw_exec")
	p.click("raw_exec")
	p.waitText("td", "StartTask")
	p.waitText("td", "signals are sent to the driver")
	p.screenshot("plugins")
	pid := eval[int](p, `Number(/pid (\d+)/.exec(document.querySelector("details[open] summary").textContent)[1])`)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatalf("kill plugin %d: %v", pid, err)
	}
	p.waitText("summary", "1 restart")
	p.waitText("details[open] dd", "was killed by signal 9")
	p.waitFor(fmt.Sprintf(`!document.querySelector("details[open] summary").textContent.includes("pid %d,")`, pid))
	p.screenshot("plugins-restarted")
}

func testVolumePages(t *testing.T, s *testAgent, b *browser, dir string) {
	p := b.openTab(s.address, "/ui/storage")
	p.waitText("td", "shared")
	p.waitText("td", dir)
	created, _, err := s.HostVolumes().Register(&api.HostVolumeRegisterRequest{Volume: &api.HostVolume{
		Name: "data", NodeID: s.nodeID, HostPath: t.TempDir(),
		RequestedCapabilities: []*api.HostVolumeCapability{{AttachmentMode: "file-system", AccessMode: "single-node-writer"}},
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.click("data")
	p.waitText("dd", "single-node-writer")
	p.waitText("main", "No allocation uses this volume.")
	p.screenshot("volume")
	p.allowError("status of 404") // the page can learn of the deletion before it is left
	p.click("Delete")
	p.waitText("dialog", "stay on the disk")
	p.click("Delete")
	p.waitFor(`location.pathname === "/ui/storage"`)
	p.waitText("main", "No volumes.")
	if _, _, err := s.HostVolumes().Get(created.Volume.ID, nil); err == nil {
		t.Error("the volume was not deleted")
	}
}

func testServicePages(t *testing.T, s *testAgent, b *browser) {
	p := b.openTab(s.address, "/ui/services")
	p.click("db")
	p.waitFor(`location.pathname === "/ui/services/db"`)
	p.waitText("td", s.latestAlloc("web")[:8])
	p.waitText("td", `<img src=x onerror=alert(1)>`)
	p.waitText("td .status-failing", "failing")
	p.click("failing")
	p.waitText("td details[open] pre", "refused")
	p.screenshot("service")
}

// latestAlloc returns the id of the running allocation of a job.
func (s *testAgent) latestAlloc(job string) string {
	s.t.Helper()
	id := ""
	s.waitUntil(job+" runs", func() (string, bool) {
		stubs, _, err := s.Jobs().Allocations(job, false, nil)
		for _, stub := range stubs {
			if stub.ClientStatus == "running" {
				id = stub.ID
			}
		}
		return fmt.Sprint(err), id != ""
	})
	return id
}

func testVariablePages(t *testing.T, s *testAgent, b *browser) {
	p := b.openTab(s.address, "/ui/variables")
	p.waitText("main", "No variables.")
	p.click("New variable")
	p.enter("#variable-path", "app/db")
	p.enter(".item input", "password")
	p.enter(".item textarea", "hunter2")
	p.click("Save")
	p.waitText("td", "••••")
	p.waitFor(`location.pathname === "/ui/variables/var/app/db@default"`)
	if eval[bool](p, `document.documentElement.outerHTML.includes("hunter2")`) {
		t.Error("the masked value is on the page")
	}
	p.click("Reveal password")
	p.waitText("td", "hunter2")
	p.screenshot("variable")

	p.click("Edit")
	p.enter(".item textarea", "changed")
	if _, _, err := s.Variables().Update(&api.Variable{Path: "app/db", Items: api.VariableItems{"password": "other", hostileText: hostileText}}, nil); err != nil {
		t.Fatal(err)
	}
	p.allowError("status of 409")
	p.click("Save")
	p.waitText(".error", "changed in the meantime")
	p.screenshot("variable-conflict")
	p.click("Cancel")
	p.waitText("td", `<img src=x onerror=alert(1)>`)
	p.click("Reveal all")
	p.waitText("td pre", `<img src=x onerror=alert(1)>`)
	p.click("Edit")
	p.waitFor(`document.querySelectorAll(".item").length === 2`)
	p.click("Remove the item password")
	p.click("Save")
	p.waitText("td", "••••")
	p.waitFor(`!document.querySelector("main").textContent.includes("password")`)
	variable, _, err := s.Variables().Read("app/db", nil)
	if err != nil || len(variable.Items) != 1 || variable.Items[hostileText] != hostileText {
		t.Errorf("the variable is %v, %v", variable, err)
	}
	p.allowError("status of 404")
	p.click("Delete")
	p.waitText("dialog", "Its items are lost")
	p.click("Delete")
	p.waitText("main", "No variables.")
	p.open("/ui/variables/var/none/here@default")
	p.waitText("main", "This page cannot be shown")
}

func testEventPage(t *testing.T, s *testAgent, b *browser) {
	p := b.openTab(s.address, "/ui/events")
	p.waitText("td", "NodeRegistration") // the agent keeps recent events
	s.run("ev", "batch", "complete", newShellTask("main", "exit 0"))
	p.waitText("td", "JobRegistered")
	p.waitText("td a", "ev")
	p.screenshot("events")
	p.click("Details of JobRegistered")
	p.waitText("td pre", `"ModifyIndex"`)
	p.click("Pause")
	p.waitText("main", "Paused.")
	rows := eval[int](p, `document.querySelectorAll("tbody tr").length`)
	s.run("later", "batch", "complete", newShellTask("main", "exit 0"))
	p.waitFor(`/Paused\. [1-9]/.test(document.querySelector("[role=status]:not([hidden])").textContent)`)
	if now := eval[int](p, `document.querySelectorAll("tbody tr").length`); now != rows {
		t.Errorf("%d rows while paused, before %d", now, rows)
	}
	p.click("Continue")
	p.waitText("td a", "later")
	p.choose("#topic", "Node")
	p.click("Clear")
	p.waitFor(`document.querySelectorAll("tbody tr").length === 0`)
	s.run("third", "batch", "complete", newShellTask("main", "exit 0"))
	for _, eligible := range []bool{false, true} {
		if _, err := s.Nodes().ToggleEligibility(s.nodeID, eligible, nil); err != nil {
			t.Fatal(err)
		}
	}
	p.waitText("tbody", "NodeEligibility")
	if strings.Contains(p.text(), "third") {
		t.Error("an event of another topic is shown")
	}
}
