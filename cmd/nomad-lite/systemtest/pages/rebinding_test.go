package pages

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// hostileRequests is an expression: what a page of an attacker gets from the agent at the address BASE. Its value has a line
// for each attack that has a result: a readable response without an error, a websocket that opened, an event. MARKER is a file
// that the commands and jobs of the page create, ALLOC an allocation.
const hostileRequests = `(async () => {
	const base = "BASE", got = [], text = "text/plain";
	const within = (what) => Promise.race([what, new Promise((done) => setTimeout(done, 1500))]);
	const job = (id) => JSON.stringify({ Job: { ID: id, Name: id, Type: "batch", Datacenters: ["*"], TaskGroups: [{ Name: "g",
		Tasks: [{ Name: "t", Driver: "raw_exec", Config: { command: "/bin/touch", args: ["MARKER-" + id] } }] }] } });
	const variable = JSON.stringify({ Namespace: "default", Path: "planted", Items: { secret: "of the page" } });
	const requests = [
		...["jobs", "var/planted", "vars", "agent/self", "client/fs/logs/ALLOC?task=main&type=stdout&plain=true", "agent/health", "metrics"].map((path) => ["GET", path]),
		...[undefined, "no-cors"].flatMap((mode) => [
			["POST", "jobs", job("post"), text, mode], ["POST", "job/fetch", job("fetch"), "application/x-www-form-urlencoded", mode],
			["POST", "var/planted", variable, text, mode], ["POST", "client/allocation/ALLOC/restart", "{}", text, mode],
			["POST", "system/gc", "", text, mode], ["GET", "client/allocation/ALLOC/gc", undefined, undefined, mode], ["POST", "agent/login", "", text, mode]]),
		["PUT", "jobs", job("put"), "application/json"], ["PUT", "var/planted", variable, "application/json"], ["DELETE", "job/planted"], ["DELETE", "var/planted"],
		["GET", "var/planted", undefined, undefined, undefined, { "X-Nomad-Token": "guess" }], ["PUT", "system/gc"],
	];
	for (const [method, path, body, type, mode, headers] of requests) {
		try {
			const r = await fetch(base + "/v1/" + path, { method, body, mode, headers: { ...(type && { "Content-Type": type }), ...headers }, signal: AbortSignal.timeout(1500) });
			if (r.ok) got.push(method + " " + path + ": " + (await within(r.text()) ?? "").slice(0, 60));
		} catch { /* the browser hides the response */ }
	}
	const socket = new WebSocket(base.replace("http", "ws") + "/v1/client/allocation/ALLOC/exec?ws_handshake=true&task=main&tty=false&command=" + encodeURIComponent('["/bin/touch","MARKER-exec"]'));
	socket.onopen = () => { got.push("websocket"); socket.send('{"version":1,"auth_token":""}'); };
	await within(new Promise((done) => { socket.onclose = socket.onerror = socket.onmessage = done; }));
	const events = new EventSource(base + "/v1/event/stream");
	events.onopen = events.onmessage = () => got.push("event");
	await within(new Promise((done) => { events.onerror = done; }));
	events.close();
	navigator.sendBeacon(base + "/v1/jobs", new Blob([job("beacon")], { type: text }));
	const frame = document.createElement("iframe");
	frame.name = "target";
	document.body.append(frame);
	for (const method of ["post", "get"]) {
		const form = document.createElement("form");
		Object.assign(form, { method, action: base + "/v1/jobs", enctype: text, target: "target" });
		form.append(Object.assign(document.createElement("input"), { name: '{"a":"', value: '",' + job("form").slice(1) }));
		document.body.append(form);
		form.submit();
		await within(new Promise((done) => { frame.onload = done; }));
		try { if (frame.contentDocument?.body.innerText.match(/planted|EvalID/)) got.push("frame: " + frame.contentDocument.body.innerText.slice(0, 60)); } catch { /* another origin */ }
	}
	for (const tag of ["img", "script", "link"]) {
		const e = Object.assign(document.createElement(tag), { rel: "stylesheet" });
		try { e[tag === "link" ? "href" : "src"] = base + "/v1/client/allocation/ALLOC/gc"; } catch { continue; } // the agent's own page permits no such script
		const loaded = within(new Promise((done) => { e.onload = () => done(tag); e.onerror = () => done(); }));
		document.head.append(e);
		if (await loaded) got.push("loaded as " + tag);
	}
	return got;
})()`

// A page of another web site, also one whose name has come to lead to the agent (DNS rebinding), gets no reply of an agent
// that asks for no token, and changes nothing. The agent's own page, which has its rights, shows that the requests are valid.
func TestHostilePagesGetNothing(t *testing.T) {
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := reserved.Addr().(*net.TCPAddr).Port
	serve := func(l net.Listener) *http.Server {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, "<!doctype html><title>hostile</title><body>hostile")
		})}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		return s
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve(other)
	otherPort := other.Addr().(*net.TCPAddr).Port

	b := systemtest.StartDedicatedChromium(t, chromedp.Flag("host-resolver-rules", "MAP evil.test 127.0.0.1, MAP *.evil.test 127.0.0.1"))
	// The attacker's server has the port first, so that the page has the origin of the port.
	attacker := serve(reserved)
	rebound := b.OpenTab(fmt.Sprintf("http://evil.test:%d", port), "/page", "")
	attacker.Close()

	s := systemtest.StartTestAgent(t, false, fmt.Sprintf("ports {\n  http = %d\n}\n", port))
	if !strings.HasSuffix(s.Address, fmt.Sprintf(":%d", port)) {
		t.Fatalf("the agent listens on %s, want the port %d", s.Address, port)
	}
	marker := filepath.Join(t.TempDir(), "marker")
	alloc := s.RunJobUntilStatus("planted", "service", "running", systemtest.NewRawExecShellTask("main", systemtest.SleepForeverScript))
	if _, _, err := s.Variables().Create(&api.Variable{Path: "planted", Items: api.VariableItems{"secret": "planted-item"}}, nil); err != nil {
		t.Fatal(err)
	}
	attack := func(p *systemtest.WebPage, base string) []string {
		return systemtest.Eval[[]string](p, strings.NewReplacer("BASE", base, "MARKER", marker, "ALLOC", alloc.ID).Replace(hostileRequests))
	}
	changes := func() (changed []string) {
		jobs, _, err := s.Jobs().List(nil)
		if err != nil || len(jobs) != 1 || jobs[0].ID != "planted" || jobs[0].Stop {
			changed = append(changed, fmt.Sprintf("jobs %v, %v", jobs, err))
		}
		v, _, err := s.Variables().Read("planted", nil)
		if err != nil || v.Items["secret"] != "planted-item" {
			changed = append(changed, fmt.Sprintf("variable %v, %v", v, err))
		}
		if now, _, err := s.Allocations().Info(alloc.ID, nil); err != nil {
			changed = append(changed, fmt.Sprintf("allocation: %v", err))
		} else if now.ClientStatus != "running" || now.TaskStates["main"].Restarts != 0 || len(now.TaskStates["main"].Events) != len(alloc.TaskStates["main"].Events) {
			changed = append(changed, fmt.Sprintf("allocation %s, %v", now.ClientStatus, systemtest.FormatEvents(now.TaskStates["main"])))
		}
		if files, _ := filepath.Glob(marker + "*"); len(files) > 0 {
			changed = append(changed, fmt.Sprint(files))
		}
		return changed
	}
	pages := map[string]*systemtest.WebPage{
		"rebound":       rebound,
		"localhost":     b.OpenTab(fmt.Sprintf("http://localhost:%d", otherPort), "/page", ""),
		"127.0.0.1":     b.OpenTab(fmt.Sprintf("http://127.0.0.1:%d", otherPort), "/page", ""),
		"evil":          b.OpenTab(fmt.Sprintf("http://evil.test:%d", otherPort), "/page", ""),
		"about:blank":   b.OpenTab("about:", "blank", ""),
		"evil on agent": b.OpenTab(fmt.Sprintf("http://evil.test:%d", port), "/", ""), // the agent's own page or error under another name
	}
	for name, p := range pages {
		for _, host := range []string{"evil.test", "localhost", "127.0.0.1"} {
			if got := attack(p, fmt.Sprintf("http://%s:%d", host, port)); len(got) > 0 {
				t.Errorf("the page %s at %s got: %q", name, host, got)
			}
			if changed := changes(); len(changed) > 0 {
				t.Fatalf("the page %s at %s changed: %q", name, host, changed)
			}
		}
	}
	own := b.OpenTab(s.Address, "/ui/jobs", "")
	got := attack(own, s.Address)
	t.Logf("the agent's own page got %q and changed %q", got, changes())
	for _, want := range []string{"GET jobs: ", "GET var/planted: ", "PUT jobs: ", "websocket"} { // the event stream is no text/event-stream, so that an EventSource never opens
		if !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("the agent's own page did not get %q", want)
		}
	}
	if len(changes()) == 0 {
		t.Error("the agent's own page changed nothing")
	}
}
