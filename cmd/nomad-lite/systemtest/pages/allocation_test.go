package pages

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// hostileName is a name of a job or a task that would run a script if a page parsed it as HTML.
const hostileName = `<img src=x onerror=alert(1)>`

func TestUIAllocations(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	group := api.NewTaskGroup("g", 1)
	group.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "http"}}}}
	group.Services = []*api.Service{{Name: "web", PortLabel: "http", Provider: "nomad", Checks: []api.ServiceCheck{
		{Name: "alive", Type: "tcp", Interval: time.Second, Timeout: time.Second},
	}}}
	group.AddTask(systemtest.NewRawExecShellTask("main", "trap 'echo got USR1' USR1; "+systemtest.SleepForeverScript, func(t *api.Task) {
		t.Env = map[string]string{"API_TOKEN": "hunter2", "MODE": "fast"}
	}))
	group.AddTask(systemtest.NewRawExecShellTask(hostileName, systemtest.SleepForeverScript))
	alloc := s.RunGroupUntilStatus("web", "service", "running", group)
	s.RunJobUntilStatus("crash", "batch", "failed", systemtest.NewRawExecShellTask("boom", "echo before; echo last words >&2; exit 3", systemtest.WithoutRestart))
	crashed := s.WaitAllocStatus("crash", "failed")

	t.Run("list", func(t *testing.T) {
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations")
		p.WaitText("td", "web.g[0]")
		p.WaitText("td", "crash.g[0]")
		p.EnterText("input[type=search]", "web.")
		p.WaitFor(`!document.querySelector("main").textContent.includes("crash.g[0]")`)
		p.WaitFor(`location.search === "?text=web."`)
		p.ScreenshotIfEnabled("allocations")
		p.Click(alloc.ID[:8])
		p.WaitFor(`location.pathname === "/ui/allocations/` + alloc.ID + `"`)
	})

	t.Run("overview", func(t *testing.T) {
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID)
		p.WaitText("td", hostileName)
		p.WaitText("td", "alive")
		p.WaitText("figure", "MHz")
		p.WaitFor(`[...document.querySelectorAll(".chart-line")].some((l) => l.getAttribute("d")?.includes("L"))`)
		p.ScreenshotIfEnabled("allocation")
		p.Click("Send a signal to the task main")
		p.SelectOption("dialog select", "SIGUSR1")
		p.Click("Send")
		s.WaitUntil("the task receives the signal", func() (string, bool) {
			text, err := s.ReadStoredLog(alloc, "main", "stdout", "start", 0)
			return text + fmt.Sprint(err), text == "got USR1\n"
		})
		p.Click("Restart the task main")
		p.ScreenshotIfEnabled("allocation-restart")
		p.Click("Restart")
		s.WaitUntil("the task has restarted", func() (string, bool) {
			n := s.ReadAlloc(alloc.ID).TaskStates["main"].Restarts
			return fmt.Sprint(n), n == 1
		})
		p.WaitText("tr[data-key=main] td.number", "1")
		p.WaitText("tr[data-key=main] td", "Started") // the last event: the page changes no more
		p.Click("Stop")
		p.WaitText("dialog", "starts a new allocation in its place")
		p.Click("Stop")
		p.WaitText(".badge", "complete")
		p.WaitText("dt", "Replaced by")
	})

	t.Run("task", func(t *testing.T) {
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/main")
		p.WaitText("dd", "fast")
		if text := p.Text(); strings.Contains(text, "hunter2") {
			t.Errorf("the page shows a secret:\n%s", text)
		}
		p.Click("Show the value of API_TOKEN")
		p.WaitText("dd", "hunter2")
		p.OpenPath("/ui/allocations/" + crashed.ID + "/boom")
		p.WaitText("pre", "last words")
		p.WaitText(".title", "exit status 3")
		p.ScreenshotIfEnabled("task-crashed")
	})

	t.Run("token expires", func(t *testing.T) {
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID)
		p.WaitText("td", hostileName)
		p.AllowError("403")
		systemtest.Eval[chromedp.Void](p, `(() => { const original = fetch; window.fetch = (...a) => String(a[0]).includes("/v1/allocation/") ? Promise.resolve(new Response("Permission denied", { status: 403 })) : original(...a); })()`)
		p.Click("Time line")
		p.WaitText("h1", "Log in")
	})
}

// TestUIManyAllocations measures the list with 2,000 allocations, which a script of the page pretends to receive.
func TestUIManyAllocations(t *testing.T) {
	slowtest.Skip(t, "shows 2,000 allocations")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	p := b.OpenTab(s.Address, "/ui/jobs")
	p.WaitText("main", "No jobs.")
	systemtest.Eval[chromedp.Void](p, `(() => {
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
	p.Click("Allocations")
	p.WaitText("[role=status]", "2000 allocations")
	if rows := systemtest.Eval[int](p, `document.querySelectorAll("tbody tr").length`); rows > 200 {
		t.Errorf("the table has %d rows of elements", rows)
	}
	systemtest.Eval[chromedp.Void](p, `scrollTo(0, document.body.scrollHeight)`)
	p.WaitText("td", "many.g[1999]")
	systemtest.Eval[chromedp.Void](p, `[...document.querySelectorAll("td a")].find((a) => a.textContent === "00001995").focus()`)
	systemtest.Eval[chromedp.Void](p, `changeOne(1995, "lost")`)
	p.WaitText("td", "lost")
	if focused := systemtest.Eval[string](p, `document.activeElement.textContent`); focused != "00001995" {
		t.Errorf("a change of the row has moved the focus to %q", focused)
	}
	took := systemtest.Eval[float64](p, `(async () => {
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
}

// slowHook attaches a command that runs on the host before the start of a task.
func slowHook(script string) func(*api.Task) {
	return func(t *api.Task) {
		config, _ := json.Marshal(map[string]any{"prestart": map[string]any{"command": []string{"/bin/sh", "-c", script}}}) // strings have a JSON form
		t.Meta = map[string]string{"lite_hook_script": string(config)}
	}
}

func TestUITimeline(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)

	t.Run("slow hook", func(t *testing.T) {
		alloc := s.RunJobUntilStatus("slow", "service", "running",
			systemtest.NewRawExecShellTask("init", "sleep 0.2", systemtest.AsPrestartTask),
			systemtest.NewRawExecShellTask("main", "echo ready; echo warned >&2; "+systemtest.SleepForeverScript, slowHook("sleep 5"))) // slower than init on a busy machine
		s.WaitUntil("main runs", func() (string, bool) {
			state := s.ReadAlloc(alloc.ID).TaskStates["main"]
			return state.State, state.State == "running"
		})
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.WaitText(".situation li", "main running: up for ")
		p.WaitText(".situation a", "(prestart hook script ")
		p.ScreenshotIfEnabled("timeline")
		// The slow hook is first in the table after a sort by duration, except for runs.
		p.Click("Duration")
		p.WaitFor(`[...document.querySelectorAll("tbody tr td:nth-child(4)")].slice(0, 5).some((e) => e.textContent === "script (prestart)")`)
		p.Click("script (prestart)")
		p.WaitText(".span-details dd", "prestart")
		p.WaitText(".span-output", "had printed nothing until then")
		systemtest.Eval[chromedp.Void](p, `(() => { const run = document.querySelector("svg.timeline .kind-run.lasts"); const box = run.getBoundingClientRect();
			for (const type of ["pointerdown", "pointerup"]) run.querySelector("rect").dispatchEvent(new PointerEvent(type, { bubbles: true, clientX: box.left + 1, clientY: box.top + 5 })); })()`)
		p.WaitText(".span-output .during", "ready")
		p.WaitText(".span-output .during", "warned")
		// The keyboard selects spans, moves and zooms.
		p.Click("Internals")
		systemtest.Eval[chromedp.Void](p, `document.querySelector("svg.timeline").focus()`)
		p.PressKeys(kb.Home)
		p.WaitText(".span-details h2", "placement")
		p.PressKeys(kb.ArrowRight)
		p.WaitText(".span-details dd", "alloc_dir") // long enough to be wider than the least width after a zoom
		before := systemtest.Eval[float64](p, `document.querySelector("svg.timeline .kind-hook rect").getBoundingClientRect().width`)
		for range 12 {
			p.PressKeys("+")
		}
		p.WaitFor(fmt.Sprintf(`document.querySelector("svg.timeline .selected rect").getBoundingClientRect().width > %f`, before))
		p.ScreenshotIfEnabled("timeline-zoom")
		p.PressKeys("0")
		p.ScreenshotIfEnabled("timeline-all")
		// A signal appears without a reload.
		if err := s.Allocations().Signal(s.ReadAlloc(alloc.ID), nil, "main", "SIGUSR2"); err != nil {
			t.Fatal(err)
		}
		p.WaitText("td", "SignalTask")
	})

	t.Run("task that does not start", func(t *testing.T) {
		alloc := s.RunJobUntilStatus("stuck", "service", "running",
			systemtest.NewRawExecShellTask("init", "echo waiting for the database; "+systemtest.SleepForeverScript, systemtest.AsPrestartTask),
			systemtest.NewRawExecShellTask("hooked", systemtest.SleepForeverScript, slowHook("sleep 1000"), systemtest.AsPrestartTask),
			systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.WaitText(".situation li", `main pending: waits for task "hooked" to end, task "init" to end for `)
		p.WaitText(".situation li", "hooked pending: waits for prestart hook script for ")
		p.ScreenshotIfEnabled("timeline-stuck")
		p.CheckFitsPhone("timeline-phone")
	})

	t.Run("failing hook and hostile name", func(t *testing.T) {
		alloc := s.RunJobUntilStatus("broken", "batch", "failed", systemtest.NewRawExecShellTask(hostileName, "exit 0", slowHook("echo no such database >&2; exit 4"), systemtest.WithoutRestart))
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.WaitText(".situation li", hostileName+" failed: prestart hook script: ")
		p.Click("Show the error")
		p.WaitText(".span-details .error", "exit code 4")
		p.PreferDarkColours()
		p.ScreenshotIfEnabled("timeline-failed-dark")
	})
}

func TestUILogsAndFiles(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)

	t.Run("follow, search, wrap and hostile bytes", func(t *testing.T) {
		b := b.ForSubtest(t)
		script := `printf 'plain <b>bold</b>\n\033[31mred\033[0m \033]0;title\007\033[2J\342\200\256gnp.exe\001\n'; echo complaint >&2; mkdir -p local/dir; echo '<script>alert(1)</script>' > 'local/dir/<i>.html'; head -c 100 /dev/zero > local/zero; ` +
			`trap 'echo later' USR1; ` + systemtest.SleepForeverScript
		alloc := s.RunJobUntilStatus("chatty", "service", "running", systemtest.NewRawExecShellTask(hostileName, script))
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/"+url.PathEscape(hostileName)+"/logs")
		p.WaitText(".line", "plain <b>bold</b>")
		p.WaitText(".line.stderr", "complaint")
		p.WaitText(".sgr-fg-1", "red")
		p.WaitText(".line", "red <U+202E>gnp.exe\u2401")
		if err := s.Allocations().Signal(alloc, nil, hostileName, "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		p.WaitText(".line", "later")
		countLater := `[...document.querySelectorAll(".line")].filter((e) => e.textContent.endsWith("later")).length`
		p.SimulateHidden(true)
		if err := s.Allocations().Signal(alloc, nil, hostileName, "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		s.WaitUntil("the task prints again", func() (string, bool) {
			text, err := s.ReadStoredLog(alloc, hostileName, "stdout", "start", 0)
			return text + fmt.Sprint(err), strings.Count(text, "later") == 2
		})
		if n := systemtest.Eval[int](p, `new Promise((resolve) => setTimeout(() => resolve(`+countLater+`), 500))`); n != 1 {
			t.Errorf("a hidden tab has followed the output: %d lines", n)
		}
		p.SimulateHidden(false)
		p.WaitFor(countLater + " === 2")
		if err := s.Allocations().Signal(alloc, nil, hostileName, "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		p.WaitFor(countLater + " === 3")
		p.EnterText("input[type=search]", "COMPLAINT")
		p.WaitText(".toolbar [role=status]", "1 of 1 lines")
		p.WaitText(".line.match.current", "complaint")
		p.Click("times")
		p.ScreenshotIfEnabled("logs")
		p.OpenPath("/ui/allocations/" + alloc.ID + "/" + url.PathEscape(hostileName) + "/fs/local/dir")
		p.Click("<i>.html")
		p.WaitText("pre", "<script>alert(1)</script>")
		p.ScreenshotIfEnabled("file")
		p.OpenPath("/ui/allocations/" + alloc.ID + "/fs")
		p.Click(hostileName)
		p.Click("local")
		p.Click("zero")
		p.WaitText("[role=status]", "not text")
		p.AllowError("404")
		p.OpenPath("/ui/allocations/" + alloc.ID + "/fs/none")
		p.WaitText("[role=alert]", "none")
	})

	t.Run("lost connection", func(t *testing.T) {
		b := b.ForSubtest(t)
		alloc := s.RunJobUntilStatus("counter", "service", "running", systemtest.NewRawExecShellTask("main", "echo first; trap 'echo later' USR1; "+systemtest.SleepForeverScript))
		n := newUnreliableNetwork(t, s.Address)
		p := b.OpenTab(n.address, "/ui/allocations/"+alloc.ID+"/main/logs")
		p.WaitText(".line", "first")
		p.AllowError("net::ERR")
		n.setCut(true)
		p.WaitFor(`!document.getElementById("connection").hidden`)
		if err := s.Allocations().Signal(alloc, nil, "main", "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		n.setCut(false)
		p.WaitText(".line", "later")
		p.WaitFor(`document.getElementById("connection").hidden`)
		if count := systemtest.Eval[int](p, `document.querySelectorAll(".line").length`); count != 2 {
			t.Errorf("%d lines are on the page", count)
		}
	})

	t.Run("large log", func(t *testing.T) {
		slowtest.Skip(t, "writes and shows 80 MB of output")
		b := b.ForSubtest(t)
		alloc := s.RunJobUntilStatus("large", "batch", "complete", systemtest.NewRawExecShellTask("main", `seq -f 'line %.0f of a log that is large' 2400000; echo the end`, func(t *api.Task) {
			t.LogConfig = &api.LogConfig{MaxFiles: new(10), MaxFileSizeMB: new(10)}
		}))
		begin := time.Now()
		p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID+"/main/logs")
		p.WaitText(".line", "the end")
		t.Logf("the end of the log is shown after %v", time.Since(begin))
		p.WaitText("main > [role=status]", "The output has ended.")
		for want := range 3 {
			p.Click("Earlier lines")
			p.WaitFor(fmt.Sprintf(`document.querySelectorAll(".line").length === %d`, 1000+2000*(want+1)))
		}
		for range 6 {
			count := systemtest.Eval[string](p, `document.querySelector(".line").textContent`)
			p.Click("Earlier lines")
			p.WaitFor(fmt.Sprintf(`document.querySelector(".line").textContent !== %q`, count))
		}
		if n := systemtest.Eval[int](p, `document.querySelectorAll(".line").length`); n > 12000 {
			t.Errorf("%d lines are on the page", n)
		}
		// No line is missing or doubled between two pages and two files.
		gaps := systemtest.Eval[int](p, `[...document.querySelectorAll(".line")].map((e) => Number(/line (\d+)/.exec(e.textContent)?.[1])).reduce((gaps, n, i, all) => gaps + (i > 0 && n !== all[i - 1] + 1 ? 1 : 0), 0)`)
		if first := systemtest.Eval[string](p, `document.querySelector(".line").textContent`); gaps != 0 || !strings.Contains(first, "line 2381002 ") {
			t.Errorf("%d gaps, first line %q", gaps, first)
		}
		p.Click("follow")
		p.WaitText(".line", "the end")
	})

	t.Run("parsers", func(t *testing.T) {
		b := b.ForSubtest(t)
		p := b.OpenTab(s.Address, "/ui/jobs")
		if bad := systemtest.Eval[string](p, parserTest); bad != "" {
			t.Error(bad)
		}
	})
}

// unreliableNetwork forwards connections to an agent, and can be cut. Errors of its connections are ignored: each side
// sees them as a lost connection.
type unreliableNetwork struct {
	address string // address is the address of the agent through the network

	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func newUnreliableNetwork(t *testing.T, agent string) *unreliableNetwork {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &unreliableNetwork{address: "http://" + l.Addr().String()}
	t.Cleanup(func() { _ = l.Close(); n.setCut(true) })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			n.forward(client, strings.TrimPrefix(agent, "http://"))
		}
	}()
	return n
}

func (n *unreliableNetwork) forward(client net.Conn, agent string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isCut {
		_ = client.Close()
		return
	}
	server, err := net.Dial("tcp", agent)
	if err != nil {
		_ = client.Close()
		return
	}
	n.conns = append(n.conns, client, server)
	go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
	go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
}

// setCut closes all connections and rejects new ones, or accepts them again.
func (n *unreliableNetwork) setCut(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isCut = cut
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

// parserTest parses random bytes as lines with colours and as files of arrival times. It returns a description of the
// first wrong result, or "".
const parserTest = `(async () => {
	const { parse, plainText } = await import("/ui/static/ansi.js");
	const { parseTimes } = await import("/ui/static/tasklog.js");
	const alphabet = ["\x1b[", "\x1b]", "\x1b", "\x9b", "\x90", "31", ";", "m", "38;2;", "48;5;", "999999999999", "\x07", "\x1b\\", "a", "\u202e", "\0", "\r", "é", "😀", "<b>", "?", " "];
	const random = (n) => Math.floor(Math.random() * n);
	for (let i = 0; i < 20000; i++) {
		const line = Array.from({ length: random(30) }, () => alphabet[random(alphabet.length)]).join("");
		const segments = parse(line);
		const text = segments.map((s) => s.text).join("");
		if (/[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]/.test(text)) return "control characters of " + JSON.stringify(line) + ": " + JSON.stringify(text);
		if (segments.some((s) => !/^(\d\d?|rgb\(\d+,\d+,\d+\))?$/.test(s.style.color))) return "colour of " + JSON.stringify(line);
	}
	if (plainText("a\x1b[1mb\x1b]8;;http://x\x07c\x1b]8;;\x07") !== "abc") return "link";
	const [first, second] = parse("\x1b[1;38;5;196mx\x1b[39my");
	if (first.style.color !== "rgb(255,0,0)" || !first.style.bold || second.style.color !== "" || !second.style.bold) return "colours";
	const begin = performance.now();
	parse("\x1b[".repeat(500000));
	parse("\x1b]".repeat(500000));
	parse("\x1b[31mx".repeat(200000));
	if (performance.now() - begin > 5000) return "long lines take " + (performance.now() - begin) + " ms";
	const times = parseTimes(new Uint8Array([9, 0, 10, 1, 5, 3, 0xff, 0, 20, 11, 1]));
	if (JSON.stringify(times) !== '[{"offset":0,"time":10},{"offset":3,"time":15},{"offset":10,"time":20}]') return "times " + JSON.stringify(times);
	for (let i = 0; i < 5000; i++) {
		const times = parseTimes(Uint8Array.from({ length: random(40) }, () => random(3) ? random(256) : 0));
		if (times.some((t, i) => i > 0 && t.offset <= times[i - 1].offset)) return "offsets do not increase";
	}
	return "";
})()`

// typeLine enters a line in a terminal. Keys of WebPage.press would arrive twice: the terminal cancels the event of
// the key, but chromedp sends the character in an event of its own.
func typeLine(p *systemtest.WebPage, line string) {
	p.T.Helper()
	if _, err := chromedp.Call(p.Ctx, input.InsertText, input.InsertTextParams{Text: line}); err != nil {
		p.T.Fatal(err)
	}
	p.PressKeys("\r")
}

func TestUITerminal(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser; TestUIJobList shows one")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	b := systemtest.OpenSharedBrowser(t)
	alloc := s.RunJobUntilStatus("web", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	p := b.OpenTab(s.Address, "/ui/allocations/"+alloc.ID)
	p.WaitText("td", "main")
	p.Click("Terminal")
	p.WaitText("[role=status]", "Connected: /bin/sh")
	p.WaitFor(`document.activeElement.classList.contains("xterm-helper-textarea")`)
	typeLine(p, "printf '\\033[38;2;1;200;3mgreen\\033[0m %s\\n' $((40+2)); until stty size | grep -v '^0 '; do sleep 0.1; done")
	p.WaitText(".xterm-rows", "green 42")
	if color := systemtest.Eval[string](p, `getComputedStyle([...document.querySelectorAll(".xterm-rows span")].findLast((e) => e.textContent.includes("green") && e.style.color)).color`); color != "rgb(1, 200, 3)" {
		t.Errorf("colour %q", color)
	}
	size := systemtest.Eval[string](p, `(() => { const screen = document.querySelector(".xterm-screen"); return [document.querySelectorAll(".xterm-rows > div").length, screen.clientWidth > 800].join(" "); })()`)
	p.WaitText(".xterm-rows", strings.Fields(size)[0]+" ")
	if !strings.HasSuffix(size, "true") {
		t.Errorf("size of the terminal: %s", size)
	}
	p.ScreenshotIfEnabled("terminal")
	p.SimulateHidden(true) // the session continues
	p.SimulateHidden(false)
	typeLine(p, "exit 7")
	p.WaitText("[role=status]", "exit status 7")
	p.EnterText("input[aria-label=Command]", `/bin/sh -c "echo one two; sleep 1000"`)
	p.Click("Reconnect")
	p.WaitText(".xterm-rows", "one two")
	if _, err := s.Allocations().Stop(alloc, nil); err != nil {
		t.Fatal(err)
	}
	p.WaitText("[role=status]", "Reconnect starts")
	p.ScreenshotIfEnabled("terminal-ended")
	// A command that does not exist, in the next allocation.
	s.WaitUntil("the next allocation runs", func() (string, bool) {
		next := s.ReadAlloc(alloc.ID).NextAllocation
		if next == "" {
			return "no next allocation", false
		}
		state := s.ReadAlloc(next).TaskStates["main"]
		return fmt.Sprint(state), state != nil && state.State == "running"
	})
	p.OpenPath("/ui/exec/web?command=/no/such")
	p.WaitText("[role=status]", "Connect starts the command.") // a page of another site can have opened the address
	if systemtest.Eval[bool](p, `document.querySelector(".xterm") !== null`) {
		t.Error("a command from the address of a page runs without a click")
	}
	p.Click("Connect")
	p.WaitText(".xterm-rows", "/no/such: no such file")
	p.WaitText("[role=status]", "exit status 127")
}
