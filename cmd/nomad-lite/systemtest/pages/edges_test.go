package pages

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestUIEdges shows pages in situations that are rare: a lost connection, wrong addresses, long names, a slow agent. The
// subtests share an agent and a browser, and each has jobs of its own.
func TestUIEdges(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	runUIJobsCases(t, []uiJobsCase{
		{"views open after the agent was away", (*uiJobsTest).viewsAfterLostConnection},
		{"reload requests data only", (*uiJobsTest).reload},
		{"terminal opens after its files did not load", (*uiJobsTest).terminalFiles},
		{"followed log is complete after a lost connection", (*uiJobsTest).logAfterLostConnection},
		{"removed output of a followed log is a line", (*uiJobsTest).logWithRemovedFiles},
		{"number of a line is beside it", (*uiJobsTest).lineNumbers},
		{"links of a job", (*uiJobsTest).jobLinks},
		{"search gets the keys after the slash", (*uiJobsTest).slash},
		{"closed dialog sends no further request", (*uiJobsTest).closedDialog},
		{"addresses of objects that do not exist", (*uiJobsTest).unknownObjects},
		{"addresses with short ids", (*uiJobsTest).shortIDs},
		{"long names", (*uiJobsTest).longNames},
		{"pages do not move while they load", (*uiJobsTest).layoutShift},
	})
}

// viewsAfterLostConnection opens views for the first time while the agent is away, in a tab that gets no further script: an
// import that fails can break a tab.
func (u *uiJobsTest) viewsAfterLostConnection() {
	n := newUnreliableNetwork(u.t, u.Address)
	p := u.browser.OpenTab(n.address, "/ui/jobs")
	p.WaitText("h1", "Jobs")
	p.AllowError("net::ERR")
	count := 0
	for _, dir := range []string{"", "views", "allocation"} {
		modules, err := filepath.Glob(filepath.Join("../../../../runtime/agent/ui/static", dir, "*.js"))
		if err != nil || len(modules) == 0 {
			u.t.Fatalf("%d modules in %q, %v", len(modules), dir, err)
		}
		count += len(modules)
	}
	p.WaitFor(fmt.Sprintf(`performance.getEntriesByType("resource").filter((e) => e.name.endsWith(".js") && e.responseEnd > 0).length === %d`, count))
	u.block(p, "*://*:*/*.js")
	views := []string{"Services", "Node", "Plugins", "Variables", "Volumes", "Evaluations", "Events", "Allocations", "Token"}
	n.setCut(true)
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

// block makes the requests of a tab for addresses fail.
func (u *uiJobsTest) block(p *systemtest.WebPage, patterns ...string) {
	u.t.Helper()
	var all []*network.BlockPattern
	for _, pattern := range patterns {
		all = append(all, &network.BlockPattern{URLPattern: pattern, Block: true})
	}
	if _, err := chromedp.Call(p.Ctx, network.SetBlockedURLs, network.SetBlockedURLsParams{URLPatterns: all}); err != nil {
		u.t.Fatal(err)
	}
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
	p.AllowError("net::ERR_BLOCKED_BY_CLIENT")
	u.block(p, "*://*:*/*xterm.js*")
	p.Click("Terminal")
	p.WaitText("[role=alert]", "The agent does not answer.")
	u.block(p)
	p.WaitText("[role=status]", "Connected: /bin/sh")
}

// loggedNumbers is an expression: the first line of the log on the page whose number does not follow the one before it, or
// that has another form, and the last number.
const loggedNumbers = `(() => {
	const lines = [...document.querySelectorAll(".line")].map((e) => [...e.childNodes].filter((c) => !c.classList.contains("time") && !c.classList.contains("stream")).map((c) => c.textContent).join(""));
	const wrong = lines.findIndex((line, i) => line !== "line " + (i + 1) + " of a log that is followed");
	return { wrong: wrong < 0 ? "" : lines[wrong], last: lines.length };
})()`

// logAfterLostConnection has a task that prints more than one frame of the stream while the connection is lost, in the
// middle of a line, and ends without the end of a line.
func (u *uiJobsTest) logAfterLostConnection() {
	const batch = 4000 // lines
	u.RegisterJobWithGroup("followed", "batch", api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("main", fmt.Sprintf(`
n=1; printf "line $n of a"
print() {
	echo " log that is followed"
	for i in $(seq %d); do n=$((n+1)); echo "line $n of a log that is followed"; done
	n=$((n+1)); printf "line $n of a"
}
trap print USR1
trap 'echo " log that is followed"; printf "line $((n+1)) of a log that is followed"; exit 0' USR2
`, batch)+systemtest.SleepForeverScript)))
	alloc := u.WaitAllocStatus("followed", "running")
	n := newUnreliableNetwork(u.t, u.Address)
	p := u.browser.OpenTab(n.address, "/ui/allocations/"+alloc.ID+"/main/logs")
	p.AllowError("net::ERR")
	p.WaitText(".line", "line 1 of a")
	p.Click("times")
	send := func(signal, last string) {
		u.t.Helper()
		if err := u.Allocations().Signal(alloc, nil, "main", signal); err != nil {
			u.t.Fatal(err)
		}
		u.WaitUntil("the task prints", func() (string, bool) {
			text, err := u.ReadStoredLog(alloc, "main", "stdout", "start", 0)
			return fmt.Sprint(len(text), err), strings.HasSuffix(text, last)
		})
	}
	send("SIGUSR1", fmt.Sprintf("line %d of a", batch+2))
	p.WaitText(".line", fmt.Sprintf("line %d of a", batch+2))
	n.setCut(true)
	p.WaitFor(`!document.querySelector("#connection").hidden`)
	send("SIGUSR1", fmt.Sprintf("line %d of a", 2*batch+3))
	restored := systemtest.Eval[string](p, `new Date().toLocaleString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false })`)
	n.setCut(false)
	p.WaitText(".line", fmt.Sprintf("line %d of a", 2*batch+3))
	late := fmt.Sprintf(`[...document.querySelectorAll(".line")].slice(0, %d).filter((e) => e.querySelector(".time").textContent.trim() > %q).length`, 2*batch, restored)
	if count := systemtest.Eval[int](p, late); count > 0 {
		u.t.Errorf("%d lines have a time after their arrival", count)
	}
	n.setCut(true)
	p.WaitFor(`!document.querySelector("#connection").hidden`)
	send("SIGUSR2", fmt.Sprintf("line %d of a log that is followed", 2*batch+4))
	u.WaitAllocStatus("followed", "complete")
	n.setCut(false)
	p.WaitText("main > [role=status]", "The output has ended.")
	type numbers struct {
		Wrong string
		Last  int
	}
	if got, want := systemtest.Eval[numbers](p, loggedNumbers), (numbers{"", 2*batch + 4}); got != want {
		u.t.Errorf("the page has the lines %+v, want %+v", got, want)
	}
}

func (u *uiJobsTest) logWithRemovedFiles() {
	script := `echo first; line=$(head -c 4000 /dev/zero | tr '\0' x); trap 'for i in $(seq 1000); do echo "$i $line"; done; echo last' USR1; ` + systemtest.SleepForeverScript
	alloc := u.RunJobUntilStatus("rotated", "service", "running", systemtest.NewRawExecShellTask("main", script, func(t *api.Task) {
		t.LogConfig = &api.LogConfig{MaxFiles: new(2), MaxFileSizeMB: new(1)}
	}))
	n := newUnreliableNetwork(u.t, u.Address)
	p := u.browser.OpenTab(n.address, "/ui/allocations/"+alloc.ID+"/main/logs")
	p.AllowError("net::ERR")
	p.WaitText(".line", "first")
	n.setCut(true)
	p.WaitFor(`!document.querySelector("#connection").hidden`)
	if err := u.Allocations().Signal(alloc, nil, "main", "SIGUSR1"); err != nil {
		u.t.Fatal(err)
	}
	u.WaitUntil("the task prints", func() (string, bool) {
		text, err := u.ReadStoredLog(alloc, "main", "stdout", "end", 100)
		return text + fmt.Sprint(err), strings.HasSuffix(text, "last\n")
	})
	n.setCut(false)
	p.WaitText(".line", "last")
	p.WaitText(".line:nth-child(1)", "first")
	p.WaitText(".line.gap:nth-child(2)", "Output of stdout can be missing here")
}

func (u *uiJobsTest) lineNumbers() {
	p := u.open("/ui/jobs/run")
	p.AllowError("/v1/jobs/parse") // the status 400 of the text with an error
	lines := slices.Repeat([]string{"  # a comment"}, 60)
	lines[0], lines[59], lines[47] = `job "x" {`, "}", "  wrong = 1 # "+strings.Repeat("a long line, so that the editor has a horizontal scroll bar ", 10)
	p.WaitFor(`document.querySelector("#specification")`)
	systemtest.Eval[chromedp.Void](p, fmt.Sprintf(`{ const e = document.querySelector("#specification"); e.value = %q; e.dispatchEvent(new Event("input")) }`, strings.Join(lines, "\n")))
	p.Click("Plan")
	p.WaitText(".numbers mark", "48")
	// position is the distance of a line of the text from the number beside it, in pixels.
	position := func(line string) string {
		return fmt.Sprintf(`(() => {
			const area = document.querySelector("#specification"), style = getComputedStyle(area);
			const top = area.getBoundingClientRect().top + parseFloat(style.borderTopWidth) + parseFloat(style.paddingTop) - area.scrollTop + (%s - 1) * parseFloat(style.lineHeight);
			return Math.abs(document.querySelector(".numbers mark").getBoundingClientRect().top - top);
		})()`, line)
	}
	p.WaitFor(`document.querySelector("#specification").scrollTop > 100`)
	p.WaitFor(position("48") + " < 6")
	systemtest.Eval[chromedp.Void](p, `{ const e = document.querySelector("#specification"); e.scrollTop = e.scrollHeight }`)
	p.WaitFor(position("48") + " < 6")
	// The coloured copy of a line is at the place of its text.
	const distance = `Math.abs(document.querySelector(".colours .marked").getBoundingClientRect().top - document.querySelector(".numbers mark").getBoundingClientRect().top)`
	p.WaitFor(distance + " < 6")
	systemtest.Eval[chromedp.Void](p, `{ const e = document.querySelector("#specification"); e.scrollLeft = 40; e.scrollTop -= 33 }`)
	p.WaitFor(distance + ` < 6 && document.querySelector(".colours").getBoundingClientRect().left < document.querySelector("#specification").getBoundingClientRect().left - 20`)
	p.WaitFor(`document.querySelectorAll(".colours > div").length < 60`) // only the lines in view
	p.ScreenshotIfEnabled("run-error-far")
}

func (u *uiJobsTest) jobLinks() {
	job := newUIJob("linked", 1)
	job.UI = &api.JobUIConfig{Links: []*api.JobUILink{{Label: "Runbook", URL: "https://example.com/runbook"}, {Label: "Hostile", URL: "javascript:alert(1)"}}}
	u.register(job)
	p := u.open("/ui/jobs/linked@default")
	p.WaitFor(`document.querySelector("main a[target=_blank]")?.href === "https://example.com/runbook"`)
	p.WaitText("main", "Hostile: javascript:alert(1)")
}

func (u *uiJobsTest) slash() {
	p := u.open("/ui/jobs?text=none")
	p.WaitText("h1", "Jobs")
	focused := systemtest.Eval[bool](p, `(() => {
		document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true, cancelable: true }));
		return document.activeElement?.closest("dialog.search") != null;
	})()`)
	if !focused {
		u.t.Error("the key after the slash does not get to the search")
	}
	p.PressKeys("\x1b")
	p.WaitFor(`!document.querySelector("dialog")`)
	p.Click("Run a job")
	p.WaitText("h1", "Run a job")
}

// closedDialog closes the dialogs of actions of several requests during the first request.
func (u *uiJobsTest) closedDialog() {
	u.register(newUIJob("closed", 3))
	u.waitRunning("closed", 3)
	p := u.open("/ui/jobs/closed@default")
	p.WaitText("td", "running")
	// Requests of actions wait until the test calls release.
	systemtest.Eval[bool](p, `(() => {
		window.sent = [];
		const original = fetch;
		window.fetch = async (path, options) => {
			if ((options?.method ?? "GET") === "GET" && !path.includes("/submission")) return original(path, options);
			sent.push(path);
			await new Promise((resolve) => { window.release = resolve; });
			return path.includes("/submission") ? new Response("null") : original(path, options);
		};
		return true;
	})()`)
	closeDuring := func(part string) {
		u.t.Helper()
		p.WaitFor(fmt.Sprintf(`sent.length === 1 && sent[0].includes(%q)`, part))
		p.PressKeys("\x1b")
		p.WaitFor(`!document.querySelector("dialog")`)
		if sent := systemtest.Eval[[]string](p, `new Promise((resolve) => { release(); setTimeout(() => resolve(sent.splice(0)), 500) })`); len(sent) != 1 {
			u.t.Errorf("requests after the dialog was closed: %q", sent[1:])
		}
	}
	p.Click("Restart allocations…")
	p.Click("Restart")
	closeDuring("/restart")
	if _, _, err := u.Jobs().Deregister("closed", false, nil); err != nil {
		u.t.Fatal(err)
	}
	p.Click("Start again…")
	p.Click("Start again")
	closeDuring("/submission")
	p.Click("Purge…")
	p.Click("Purge")
	p.AllowError("status of 404") // the page follows the removal
	closeDuring("purge=true")
	p.WaitText("h1", "Job closed was removed") // not the list of jobs
}

func (u *uiJobsTest) unknownObjects() {
	u.register(newUIJob("known", 1))
	alloc := u.WaitAllocStatus("known", "running")
	p := u.open("/ui/jobs?text=none")
	p.AllowError("status of 404")
	p.AllowError("status of 400")
	p.AllowError("status of 500")
	// Pauses of a second, after which a page would send a request again, last 0.1 s.
	if _, err := chromedp.Call(p.Ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `{ const original = setTimeout; window.setTimeout = (f, ms) => original(f, ms >= 1000 ? ms / 10 : ms); }`,
	}); err != nil {
		u.t.Fatal(err)
	}
	const unknown = "00000000-0000-0000-0000-000000000000"
	for path, text := range map[string]string{
		"/ui/evaluations/WRONG":                                "There is no evaluation WRONG.",
		"/ui/evaluations/" + unknown:                           "not found",
		"/ui/evaluations/not-a-uuid-but-thirty-six-characters": "UUID",
		"/ui/allocations/WRONG":                                "There is no allocation WRONG.",
		"/ui/allocations/" + unknown + "/timeline":             "not found",
		"/ui/allocations/not-a-uuid-but-thirty-six-characters": "UUID",
		"/ui/allocations/" + alloc.ID + "/wrong":               "The allocation has no task wrong.",
		"/ui/allocations/" + alloc.ID + "/main/fs/wrong":       "wrong",
		"/ui/jobs/wrong@default":                               "There is no job wrong in namespace default",
		"/ui/jobs/wrong@default/versions":                      "There is no job wrong in namespace default",
		"/ui/jobs/known@wrong":                                 "There is no job known in namespace wrong",
		"/ui/jobs/known@default/wrong":                         "The job has no group wrong.",
		"/ui/jobs/run?job=wrong":                               "not found",
		"/ui/clients/wrong":                                    "This agent has no such node.",
		"/ui/storage/volumes/dynamic/WRONG@default":            "There is no volume WRONG.",
		"/ui/storage/volumes/dynamic/" + unknown:               "not found",
		"/ui/variables/var/wrong@default":                      "not found",
		"/ui/exec/wrong/g/main":                                "The task does not run",
		"/ui/wrong":                                            "No such page",
	} {
		p.OpenPath(path)
		p.WaitText("main", text)
		if systemtest.Eval[bool](p, `document.title === "" || !document.querySelector("main h1")`) {
			u.t.Errorf("%s has no heading", path)
		}
		// Each page reads the conditions of the agent in intervals.
		requests := `performance.getEntriesByType("resource").filter((e) => e.name.includes("/v1/") && !e.name.includes("/v1/agent/conditions")).length`
		if n := systemtest.Eval[int](p, `(async () => { const wait = () => new Promise((resolve) => setTimeout(resolve, 250)); await wait(); const before = `+requests+`; await wait(); return `+requests+` - before; })()`); n > 0 {
			u.t.Errorf("%s has sent %d requests after it was shown", path, n)
		}
	}
}

func (u *uiJobsTest) shortIDs() {
	u.register(newUIJob("short", 1))
	alloc := u.WaitAllocStatus("short", "running")
	volume, _, err := u.HostVolumes().Register(&api.HostVolumeRegisterRequest{Volume: &api.HostVolume{
		Name: "short", NodeID: u.NodeID, HostPath: u.t.TempDir(),
		RequestedCapabilities: []*api.HostVolumeCapability{{AttachmentMode: "file-system", AccessMode: "single-node-writer"}},
	}}, nil)
	if err != nil {
		u.t.Fatal(err)
	}
	p := u.open("/ui/jobs?text=none")
	for _, test := range []struct{ path, text, full string }{
		{"/ui/allocations/" + alloc.ID[:8], "short.web[0]", "/ui/allocations/" + alloc.ID},
		{"/ui/allocations/" + alloc.ID[:10] + "/main/logs", "New lines appear", "/ui/allocations/" + alloc.ID + "/main/logs"},
		{"/ui/evaluations/" + alloc.EvalID[:8], "the job was submitted", "/ui/evaluations/" + alloc.EvalID},
		{"/ui/evaluations?currentEval=" + alloc.EvalID[:8], "the job was submitted", "/ui/evaluations?currentEval=" + alloc.EvalID},
		{"/ui/clients/" + u.NodeID[:8], "raw_exec", "/ui/clients/" + u.NodeID[:8]},
		{"/ui/storage/volumes/dynamic/" + volume.Volume.ID[:8] + "@default", "single-node-writer", "/ui/storage/volumes/dynamic/" + volume.Volume.ID + "@default"},
		{"/ui/exec/short/web/main?allocation=" + alloc.ID[:8], "Connected", "/ui/exec/short/web/main?allocation=" + alloc.ID[:8]},
	} {
		p.OpenPath(test.path)
		p.WaitText("main", test.text)
		if got := systemtest.Eval[string](p, "location.pathname + location.search"); got != test.full {
			u.t.Errorf("%s has become %s, want %s", test.path, got, test.full)
		}
	}
	if _, _, err := u.HostVolumes().Delete(&api.HostVolumeDeleteRequest{ID: volume.Volume.ID}, nil); err != nil {
		u.t.Fatal(err)
	}
}

// longNames shows objects with long names on the screen of a desktop and of a phone.
func (u *uiJobsTest) longNames() {
	long := func(start string) string { return start + strings.Repeat("-with-a-long-name", 7) }
	unbroken := "long" + strings.Repeat("x", 120)
	for _, name := range []string{long("long"), unbroken} {
		job := newUIJob(name, 1)
		group := job.TaskGroups[0]
		group.Name, group.Tasks[0].Name = &name, name
		group.Services = []*api.Service{{Name: "l" + name[len(name)-60:], Provider: "nomad"}}
		u.register(job)
	}
	allocs := []*api.Allocation{u.WaitAllocStatus(long("long"), "running"), u.WaitAllocStatus(unbroken, "running")}
	p := u.open("/ui/jobs?text=long")
	paths := []string{"/ui/jobs?text=long", "/ui/allocations?text=long", "/ui/evaluations?text=long", "/ui/services", "/ui/clients"}
	for _, a := range allocs {
		job := "/ui/jobs/" + a.JobID + "@default"
		paths = append(paths, job, job+"/allocations", job+"/versions", job+"/services", "/ui/allocations/"+a.ID, "/ui/allocations/"+a.ID+"/"+a.JobID, "/ui/evaluations/"+a.EvalID, "/ui/exec/"+a.JobID)
	}
	for _, path := range paths {
		p.OpenPath(path)
		p.WaitFor(`document.querySelector("main h1") && document.querySelector("main td, main .terminal, main section, main dl")?.checkVisibility() && document.querySelector("main").textContent.includes("long")`)
		for _, size := range [][2]int64{{1280, 900}, {systemtest.PhoneWidth, systemtest.PhoneHeight}} {
			p.SetViewportSize(size[0], size[1])
			p.WaitFor(fmt.Sprintf("innerWidth === %d", size[0]))
			if width := systemtest.Eval[int64](p, "document.documentElement.scrollWidth"); width > size[0] {
				u.t.Errorf("%s is %d pixels wide on a screen of %d", path, width, size[0])
			}
			// The rows of names, not of drivers and attributes.
			highest := systemtest.Eval[float64](p, `Math.max(0, ...[...document.querySelectorAll(".scroll tbody tr")].filter((e) => e.textContent.includes("long")).map((e) => e.getBoundingClientRect().height))`)
			if highest > 120 {
				u.t.Errorf("%s has a row of %.0f pixels on a screen of %d", path, highest, size[0])
			}
			if path == paths[0] {
				p.ScreenshotIfEnabled(fmt.Sprintf("long-names-%d", size[0]))
			}
		}
	}
	// The focus shows the whole name.
	p.OpenPath("/ui/jobs?text=" + unbroken)
	p.WaitText("td", unbroken)
	isCut := `(() => { const e = document.querySelector("td a"); return e.scrollWidth > e.clientWidth; })()`
	p.WaitFor(isCut)
	p.EnterText("input[type=search]", unbroken)
	for range 20 {
		p.PressKeys("\t")
		if systemtest.Eval[bool](p, `document.activeElement === document.querySelector("td a")`) {
			break
		}
	}
	p.WaitFor("!" + isCut)
}

// delayReplies is a script that makes the parts of a page arrive one after the other.
const delayReplies = `
let requests = 0;
const fetchAtOnce = window.fetch;
window.fetch = async (...request) => {
	const delay = 50 * (1 + requests++ % 5);
	const reply = await fetchAtOnce(...request);
	await new Promise((resolve) => setTimeout(resolve, delay));
	return reply;
};`

// maxLayoutShift is the limit up to which a page is called stable: https://web.dev/articles/cls.
const maxLayoutShift = 0.1

func (u *uiJobsTest) layoutShift() {
	job := newUIJob("still", 2)
	job.TaskGroups[0].Services = []*api.Service{{Name: "still", Provider: "nomad"}}
	u.register(job)
	u.waitRunning("still", 2)
	alloc := u.WaitAllocStatus("still", "running")
	p := u.open("/ui/jobs?text=none")
	if _, err := chromedp.Call(p.Ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: delayReplies}); err != nil {
		u.t.Fatal(err)
	}
	for _, shown := range []struct{ path, text string }{
		{"/ui/clients", "raw_exec"}, {"/ui/jobs", "still"}, {"/ui/jobs/still@default", "running"}, {"/ui/allocations/" + alloc.ID, "MHz"}, {"/ui/allocations/" + alloc.ID + "/main", "Started"},
		{"/ui/evaluations", "still"}, {"/ui/evaluations/" + alloc.EvalID, "still"}, {"/ui/services", "still"}, {"/ui/plugins", "raw_exec"}, {"/ui/allocations/" + alloc.ID + "/timeline", "main"}, {"/ui/storage", "No volumes"},
	} {
		p.OpenPath(shown.path)
		p.WaitText("main", shown.text)
		shift := systemtest.Eval[float64](p, `new Promise((resolve) => {
			let sum = 0;
			new PerformanceObserver((list) => { for (const e of list.getEntries()) if (!e.hadRecentInput) sum += e.value; }).observe({ type: "layout-shift", buffered: true });
			setTimeout(() => resolve(sum), 700);
		})`)
		u.t.Logf("%-60s %.3f", shown.path, shift)
		if shift > maxLayoutShift {
			u.t.Errorf("%s moves by %.3f while it loads", shown.path, shift)
		}
	}
}
