package systemtest

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
	s.run("crash", "batch", "failed", newShellTask("boom", "echo before; echo last words >&2; exit 3", withoutRestart))
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
		p.choose("dialog select", "SIGUSR1")
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
		p.waitText("tr[data-key=main] td", "Started") // the last event: the page changes no more
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
}

// slowHook attaches a command that runs on the host before the start of a task.
func slowHook(script string) func(*api.Task) {
	return func(t *api.Task) {
		config, _ := json.Marshal(map[string]any{"prestart": map[string]any{"command": []string{"/bin/sh", "-c", script}}}) // strings have a JSON form
		t.Meta = map[string]string{"lite_hook_script": string(config)}
	}
}

func TestUITimeline(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)

	t.Run("slow hook", func(t *testing.T) {
		alloc := s.run("slow", "service", "running",
			newShellTask("init", "sleep 0.2", inPrestart),
			newShellTask("main", "echo ready; echo warned >&2; "+sleepForeverScript, slowHook("sleep 5"))) // slower than init on a busy machine
		s.waitUntil("main runs", func() (string, bool) {
			state := s.readAlloc(alloc.ID).TaskStates["main"]
			return state.State, state.State == "running"
		})
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.waitText(".situation", "Its start took ")
		p.waitText(".situation li span button", "script (prestart)")
		p.screenshot("timeline")
		// The slow hook is first in the table after a sort by duration, except for runs.
		p.click("Duration")
		p.waitFor(`[...document.querySelectorAll("tbody tr td:nth-child(4)")].slice(0, 5).some((e) => e.textContent === "script (prestart)")`)
		p.click("script (prestart)")
		p.waitText(".span-details dd", "prestart")
		p.waitText(".span-output", "had printed nothing until then")
		eval[chromedp.Void](p, `(() => { const all = [...document.querySelectorAll("svg.timeline .kind-run")]; const box = all.at(-1).getBoundingClientRect();
			for (const type of ["pointerdown", "pointerup"]) all.at(-1).querySelector("rect").dispatchEvent(new PointerEvent(type, { bubbles: true, clientX: box.left + 1, clientY: box.top + 5 })); })()`)
		p.waitText(".span-output .during", "ready")
		p.waitText(".span-output .during", "warned")
		// The keyboard selects spans, moves and zooms.
		eval[chromedp.Void](p, `document.querySelector("svg.timeline").focus()`)
		p.press(kb.Home)
		p.waitText(".span-details h2", "placement")
		for range 3 {
			p.press(kb.ArrowRight)
		}
		p.waitText(".span-details dt", "Hook")
		before := eval[float64](p, `document.querySelector("svg.timeline .kind-hook rect").getBoundingClientRect().width`)
		for range 12 {
			p.press("+")
		}
		p.waitFor(fmt.Sprintf(`document.querySelector("svg.timeline .selected rect").getBoundingClientRect().width > %f`, before))
		p.screenshot("timeline-zoom")
		p.press("0")
		p.screenshot("timeline-all")
		// A signal appears without a reload.
		if err := s.Allocations().Signal(s.readAlloc(alloc.ID), nil, "main", "SIGUSR2"); err != nil {
			t.Fatal(err)
		}
		p.waitText("td", "SignalTask")
	})

	t.Run("task that does not start", func(t *testing.T) {
		alloc := s.run("stuck", "service", "running",
			newShellTask("init", "echo waiting for the database; "+sleepForeverScript, inPrestart),
			newShellTask("hooked", sleepForeverScript, slowHook("sleep 1000"), inPrestart),
			newShellTask("main", sleepForeverScript))
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.waitText(".situation li", "main pending: waits for the tasks init, hooked for")
		p.waitText(".situation li", "hooked pending: waits for the hook script (prestart), which has been running for")
		p.screenshot("timeline-stuck")
		p.checkNarrow("timeline-phone")
	})

	t.Run("failing hook and hostile name", func(t *testing.T) {
		alloc := s.run("broken", "batch", "failed", newShellTask(hostileName, "exit 0", slowHook("echo no such database >&2; exit 4"), withoutRestart))
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID+"/timeline")
		p.waitText(".situation li", hostileName+" failed: never started. Last error: script (prestart)")
		p.click("Show the error")
		p.waitText(".span-details .error", "exit code 4")
		p.setDark()
		p.screenshot("timeline-failed-dark")
	})
}

func TestUILogsAndFiles(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)

	t.Run("follow, search, wrap and hostile bytes", func(t *testing.T) {
		b := &browser{t, b.ctx}
		script := `printf 'plain <b>bold</b>\n\033[31mred\033[0m \033]0;title\007\033[2J\342\200\256gnp.exe\001\n'; echo complaint >&2; mkdir -p local/dir; echo '<script>alert(1)</script>' > 'local/dir/<i>.html'; head -c 100 /dev/zero > local/zero; ` +
			`trap 'echo later' USR1; ` + sleepForeverScript
		alloc := s.run("chatty", "service", "running", newShellTask(hostileName, script))
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID+"/"+url.PathEscape(hostileName)+"/logs")
		p.waitText(".line", "plain <b>bold</b>")
		p.waitText(".line.stderr", "complaint")
		p.waitText(".sgr-fg-1", "red")
		p.waitText(".line", "red <U+202E>gnp.exe\u2401")
		if err := s.Allocations().Signal(alloc, nil, hostileName, "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		p.waitText(".line", "later")
		countLater := `[...document.querySelectorAll(".line")].filter((e) => e.textContent.endsWith("later")).length`
		p.setHidden(true)
		if err := s.Allocations().Signal(alloc, nil, hostileName, "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		s.waitUntil("the task prints again", func() (string, bool) {
			text, err := s.readLog(alloc, hostileName, "stdout", "start", 0)
			return text + fmt.Sprint(err), strings.Count(text, "later") == 2
		})
		if n := eval[int](p, `new Promise((resolve) => setTimeout(() => resolve(`+countLater+`), 500))`); n != 1 {
			t.Errorf("a hidden tab has followed the output: %d lines", n)
		}
		p.setHidden(false)
		p.waitFor(countLater + " === 2")
		if err := s.Allocations().Signal(alloc, nil, hostileName, "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		p.waitFor(countLater + " === 3")
		p.enter("input[type=search]", "COMPLAINT")
		p.waitText(".toolbar [role=status]", "1 of 1 lines")
		p.waitText(".line.match.current", "complaint")
		p.click("times")
		p.screenshot("logs")
		p.open("/ui/allocations/" + alloc.ID + "/" + url.PathEscape(hostileName) + "/fs/local/dir")
		p.click("<i>.html")
		p.waitText("pre", "<script>alert(1)</script>")
		p.screenshot("file")
		p.open("/ui/allocations/" + alloc.ID + "/fs")
		p.click(hostileName)
		p.click("local")
		p.click("zero")
		p.waitText("[role=status]", "not text")
		p.allowError("404")
		p.open("/ui/allocations/" + alloc.ID + "/fs/none")
		p.waitText("[role=alert]", "none")
	})

	t.Run("lost connection", func(t *testing.T) {
		b := &browser{t, b.ctx}
		alloc := s.run("counter", "service", "running", newShellTask("main", "echo first; trap 'echo later' USR1; "+sleepForeverScript))
		n := newUnreliableNetwork(t, s.address)
		p := b.openTab(n.address, "/ui/allocations/"+alloc.ID+"/main/logs")
		p.waitText(".line", "first")
		p.allowError("net::ERR")
		n.setCut(true)
		p.waitFor(`!document.getElementById("connection").hidden`)
		if err := s.Allocations().Signal(alloc, nil, "main", "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		n.setCut(false)
		p.waitText(".line", "later")
		p.waitFor(`document.getElementById("connection").hidden`)
		if count := eval[int](p, `document.querySelectorAll(".line").length`); count != 2 {
			t.Errorf("%d lines are on the page", count)
		}
	})

	t.Run("large log", func(t *testing.T) {
		b := &browser{t, b.ctx}
		alloc := s.run("large", "batch", "complete", newShellTask("main", `seq -f 'line %.0f of a log that is large' 2400000; echo the end`, func(t *api.Task) {
			t.LogConfig = &api.LogConfig{MaxFiles: new(10), MaxFileSizeMB: new(10)}
		}))
		begin := time.Now()
		p := b.openTab(s.address, "/ui/allocations/"+alloc.ID+"/main/logs")
		p.waitText(".line", "the end")
		t.Logf("the end of the log is shown after %v", time.Since(begin))
		p.waitText("main > [role=status]", "The output has ended.")
		for want := range 3 {
			p.click("Earlier lines")
			p.waitFor(fmt.Sprintf(`document.querySelectorAll(".line").length === %d`, 1000+2000*(want+1)))
		}
		for range 6 {
			count := eval[string](p, `document.querySelector(".line").textContent`)
			p.click("Earlier lines")
			p.waitFor(fmt.Sprintf(`document.querySelector(".line").textContent !== %q`, count))
		}
		if n := eval[int](p, `document.querySelectorAll(".line").length`); n > 12000 {
			t.Errorf("%d lines are on the page", n)
		}
		// No line is missing or doubled between two pages and two files.
		gaps := eval[int](p, `[...document.querySelectorAll(".line")].map((e) => Number(/line (\d+)/.exec(e.textContent)?.[1])).reduce((gaps, n, i, all) => gaps + (i > 0 && n !== all[i - 1] + 1 ? 1 : 0), 0)`)
		if first := eval[string](p, `document.querySelector(".line").textContent`); gaps != 0 || !strings.Contains(first, "line 2381002 ") {
			t.Errorf("%d gaps, first line %q", gaps, first)
		}
		p.click("follow")
		p.waitText(".line", "the end")
	})

	t.Run("parsers", func(t *testing.T) {
		b := &browser{t, b.ctx}
		p := b.openTab(s.address, "/ui/jobs")
		if bad := eval[string](p, parserTest); bad != "" {
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

// typeLine enters a line in a terminal. Keys of webPage.press would arrive twice: the terminal cancels the event of
// the key, but chromedp sends the character in an event of its own.
func typeLine(p *webPage, line string) {
	p.t.Helper()
	if _, err := chromedp.Call(p.ctx, input.InsertText, input.InsertTextParams{Text: line}); err != nil {
		p.t.Fatal(err)
	}
	p.press("\r")
}

func TestUITerminal(t *testing.T) {
	t.Parallel()
	s := startTestAgent(t, false)
	b := startBrowser(t)
	alloc := s.run("web", "service", "running", newShellTask("main", sleepForeverScript))
	p := b.openTab(s.address, "/ui/allocations/"+alloc.ID)
	p.waitText("td", "main")
	p.click("Terminal")
	p.waitText("[role=status]", "Connected: /bin/sh")
	p.waitFor(`document.activeElement.classList.contains("xterm-helper-textarea")`)
	typeLine(p, "printf '\\033[38;2;1;200;3mgreen\\033[0m %s\\n' $((40+2)); until stty size | grep -v '^0 '; do sleep 0.1; done")
	p.waitText(".xterm-rows", "green 42")
	if color := eval[string](p, `getComputedStyle([...document.querySelectorAll(".xterm-rows span")].findLast((e) => e.textContent.includes("green") && e.style.color)).color`); color != "rgb(1, 200, 3)" {
		t.Errorf("colour %q", color)
	}
	size := eval[string](p, `(() => { const screen = document.querySelector(".xterm-screen"); return [document.querySelectorAll(".xterm-rows > div").length, screen.clientWidth > 800].join(" "); })()`)
	p.waitText(".xterm-rows", strings.Fields(size)[0]+" ")
	if !strings.HasSuffix(size, "true") {
		t.Errorf("size of the terminal: %s", size)
	}
	p.screenshot("terminal")
	p.setHidden(true) // the session continues
	p.setHidden(false)
	typeLine(p, "exit 7")
	p.waitText("[role=status]", "exit status 7")
	p.enter("input[aria-label=Command]", `/bin/sh -c "echo one two; sleep 1000"`)
	p.click("Reconnect")
	p.waitText(".xterm-rows", "one two")
	if _, err := s.Allocations().Stop(alloc, nil); err != nil {
		t.Fatal(err)
	}
	p.waitText("[role=status]", "Reconnect starts")
	p.screenshot("terminal-ended")
	// A command that does not exist, in the next allocation.
	s.waitUntil("the next allocation runs", func() (string, bool) {
		next := s.readAlloc(alloc.ID).NextAllocation
		if next == "" {
			return "no next allocation", false
		}
		state := s.readAlloc(next).TaskStates["main"]
		return fmt.Sprint(state), state != nil && state.State == "running"
	})
	p.open("/ui/exec/web?command=/no/such")
	p.waitText(".xterm-rows", "/no/such: no such file")
	p.waitText("[role=status]", "exit status 127")
}
