package systemtest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"
)

// hostileName is a name of a job or a task that would run a script if a page parsed it as HTML.
const hostileName = `<img src=x onerror=alert(1)>`

func TestUIAllocations(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)
	group := api.NewTaskGroup("g", 1)
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	group.Services = []*api.Service{{Name: "web", PortLabel: "http", Provider: "nomad", Checks: []api.ServiceCheck{
		{Name: "alive", Type: "tcp", Interval: time.Second, Timeout: time.Second},
	}}}
	group.AddTask(newShellTask("main", "trap 'echo got USR1' USR1; "+sleepForeverScript, func(t *api.Task) {
		t.Env = map[string]string{"API_TOKEN": "hunter2", "MODE": "fast"}
	}))
	group.AddTask(newShellTask(hostileName, sleepForeverScript))
	alloc := s.runGroup("web", "service", "running", group)
	s.run("crash", "batch", "failed", newShellTask("boom", "echo before; echo last words >&2; exit 3", func(t *api.Task) {
		t.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	}))
	crashed := s.waitAlloc("crash", "failed")

	t.Run("list", func(t *testing.T) {
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/allocations")
		p.waitText("td", "web.g[0]")
		p.waitText("td", "crash.g[0]")
		p.enter("input[type=search]", "web.")
		p.waitFor(`!document.querySelector("main").textContent.includes("crash.g[0]")`)
		p.waitFor(`location.search === "?text=web."`)
		p.screenshot("allocations")
		p.click(alloc.ID[:8])
		p.waitFor(`location.pathname === "/ui/allocations/` + alloc.ID + `"`)
	})

	t.Run("overview", func(t *testing.T) {
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID)
		p.waitText("td", hostileName)
		p.waitText("td", "alive")
		p.waitText("figure", "MHz")
		p.waitFor(`[...document.querySelectorAll(".chart-line")].some((l) => l.getAttribute("d")?.includes("L"))`)
		p.screenshot("allocation")
		p.click("Send a signal to the task main")
		eval[chromedp.Void](p, `document.querySelector("dialog select").value = "SIGUSR1"`)
		p.click("Send")
		s.waitUntil("the task receives the signal", func() (string, bool) {
			text, err := s.readLog(alloc, "main", "stdout", "start", 0)
			return text + fmt.Sprint(err), text == "got USR1\n"
		})
		p.click("Restart the task main")
		p.screenshot("allocation-restart")
		p.click("Restart")
		s.waitUntil("the task has restarted", func() (string, bool) {
			n := s.readAlloc(alloc.ID).TaskStates["main"].Restarts
			return fmt.Sprint(n), n == 1
		})
		p.waitText("tr[data-key=main] td.number", "1")
		p.click("Stop")
		p.waitText("dialog", "starts a new allocation in its place")
		p.click("Stop")
		p.waitText(".badge", "complete")
		p.waitText("dt", "Replaced by")
	})

	t.Run("task", func(t *testing.T) {
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID+"/main")
		p.waitText("dd", "fast")
		if text := p.text(); strings.Contains(text, "hunter2") {
			t.Errorf("the page shows a secret:\n%s", text)
		}
		p.click("Show the value of API_TOKEN")
		p.waitText("dd", "hunter2")
		p.open("/ui/allocations/" + crashed.ID + "/boom")
		p.waitText("pre", "last words")
		p.waitText("dd", "exit status 3")
		p.screenshot("task-crashed")
	})

	t.Run("token expires", func(t *testing.T) {
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID)
		p.waitText("td", hostileName)
		p.allowError("403")
		eval[chromedp.Void](p, `(() => { const original = fetch; window.fetch = (...a) => String(a[0]).includes("/v1/allocation/") ? Promise.resolve(new Response("Permission denied", { status: 403 })) : original(...a); })()`)
		p.click("Time line")
		p.waitText("h1", "Log in")
	})
}

// TestUIManyAllocations measures the list with 2,000 allocations, which a script of the page pretends to receive.
func TestUIManyAllocations(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)
	p := b.openTab(s.address, "/ui/jobs")
	p.waitText("main", "No jobs.")
	eval[chromedp.Void](p, `(() => {
		const original = fetch;
		window.allocs = Array.from({ length: 2000 }, (_, i) => ({ ID: String(i).padStart(8, "0") + "-0000", Name: "many.g[" + i + "]", JobID: "many", Namespace: "default",
			ClientStatus: i % 50 ? "running" : "failed", DesiredStatus: "run", JobVersion: 0, CreateTime: 1e18 - i, ModifyTime: 1e18 }));
		let index = 1, change;
		window.changeOne = (i, status) => { allocs[i] = { ...allocs[i], ClientStatus: status }; index++; change?.(); };
		window.fetch = async (path, options) => {
			if (!String(path).startsWith("/v1/allocations")) return original(path, options);
			if (path.includes("index=" + index + "&")) await new Promise((resolve) => { change = resolve; });
			return new Response(JSON.stringify(allocs), { headers: { "X-Nomad-Index": index } });
		};
	})()`)
	p.click("Allocations")
	p.waitText("[role=status]", "2000 allocations")
	if rows := eval[int](p, `document.querySelectorAll("tbody tr").length`); rows > 200 {
		t.Errorf("the table has %d rows of elements", rows)
	}
	eval[chromedp.Void](p, `scrollTo(0, document.body.scrollHeight)`)
	p.waitText("td", "many.g[1999]")
	eval[chromedp.Void](p, `[...document.querySelectorAll("td a")].find((a) => a.textContent === "00001995").focus()`)
	eval[chromedp.Void](p, `changeOne(1995, "lost")`)
	p.waitText("td", "lost")
	if focused := eval[string](p, `document.activeElement.textContent`); focused != "00001995" {
		t.Errorf("a change of the row has moved the focus to %q", focused)
	}
	took := eval[float64](p, `(async () => {
		let slowest = 0;
		for (let y = 0; y < 30; y++) {
			const begin = performance.now();
			scrollTo(0, y * 2000);
			await new Promise(requestAnimationFrame);
			await new Promise(requestAnimationFrame);
			slowest = Math.max(slowest, performance.now() - begin);
		}
		return slowest;
	})()`)
	t.Logf("slowest two frames: %.0f ms", took)
	if took > 500 {
		t.Errorf("scrolling takes %.0f ms for two frames", took)
	}
}
