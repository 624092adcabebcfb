package jobs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// TestAllocationRequests checks the requests of Nomad's API about allocations and the node. Each
// subtest names its numbers in the checklist of requests that clients need.
func TestAllocationRequests(t *testing.T) {
	systemtest.RunWithPlainTCPAndTLS(t, testAllocationRequests)
}

func testAllocationRequests(t *testing.T, s *systemtest.TestAgent) {
	main := s.RunJobUntilStatus("main", api.JobTypeService, "running",
		systemtest.NewRawExecShellTask("web", "mkdir -p local/sub; echo page >local/page.html; echo secret >secrets/token; echo hello; echo complaint >&2; "+systemtest.SleepForeverScript),
		systemtest.NewRawExecShellTask("init", "exit 0", systemtest.AsPrestartTask),
	)
	s.WaitUntil("the main task runs", func() (string, bool) {
		main = s.ReadAlloc(main.ID)
		state := main.TaskStates["web"].State
		return state, state == "running"
	})
	for stream, want := range map[string]string{"stdout": "hello\n", "stderr": "complaint\n"} {
		s.WaitUntil("its "+stream+" is there", func() (string, bool) {
			text, err := s.ReadStoredLog(main, "web", stream, "start", 0)
			return text + fmt.Sprint(err), text == want
		})
	}
	for _, c := range []struct {
		name string
		test func(*testing.T, *systemtest.TestAgent, *api.Allocation)
	}{
		{"status of allocations in each state", testAllocStates},
		{"prefixes", testAllocPrefixes},
		{"logs", testLogs},
		{"logs without the node's address", testLogsThroughProxy},
		{"files", testAllocFiles},
		{"exec", testExec},
		{"exec ends with its client", testExecEndsWithClient},
		{"signal and restart", testSignalAndRestart},
		{"the node and its figures", testNodeStats},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			own := *s
			own.T = t
			c.test(t, &own, main)
		})
	}
}

// TestNodeRequests checks the requests that change the whole node, with an agent of its
// own.
func TestNodeRequests(t *testing.T) { systemtest.RunWithPlainTCPAndTLS(t, testNodeRequests) }

func testNodeRequests(t *testing.T, s *systemtest.TestAgent) {
	t.Run("a stopped allocation is replaced", func(t *testing.T) { testStoppedAllocIsReplaced(t, s) })
	t.Run("garbage of allocations", func(t *testing.T) { testAllocGC(t, s) })
	t.Run("drain", func(t *testing.T) { testDrain(t, s) })
}

// checklist 18
func testAllocStates(t *testing.T, s *systemtest.TestAgent, running *api.Allocation) {
	never := func(g *api.TaskGroup) *api.TaskGroup {
		g.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
		g.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
		return g
	}
	waiting := api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("t", "exit 1"))
	waiting.RestartPolicy = &api.RestartPolicy{Attempts: new(5), Delay: new(10 * time.Minute), Interval: new(time.Hour), Mode: new("delay")}
	pending := s.RunGroupUntilStatus("pending", api.JobTypeService, "pending", waiting)
	s.WaitUntil("it has been tried", func() (string, bool) {
		pending = s.ReadAlloc(pending.ID)
		state := pending.TaskStates["t"]
		return fmt.Sprint(state), state != nil && state.Restarts > 0
	})
	for _, alloc := range []*api.Allocation{
		running, pending,
		s.RunJobUntilStatus("complete", api.JobTypeBatch, "complete", systemtest.NewRawExecShellTask("t", "exit 0")),
		s.RunGroupUntilStatus("failed", api.JobTypeBatch, "failed", never(api.NewTaskGroup("g", 1).AddTask(systemtest.NewRawExecShellTask("t", "exit 3")))),
	} {
		group := alloc.GetTaskGroup()
		switch {
		case alloc.Job == nil || alloc.Job.Version == nil || alloc.Job.Type == nil || group == nil || *group.Name != alloc.TaskGroup:
			t.Errorf("%s: it has not its job", alloc.JobID)
		case alloc.Resources == nil || alloc.Resources.CPU == nil || alloc.Resources.MemoryMB == nil || alloc.Resources.DiskMB == nil || *alloc.Resources.DiskMB != 300:
			t.Errorf("%s: resources %+v", alloc.JobID, alloc.Resources)
		case alloc.AllocatedResources == nil || alloc.Metrics == nil || alloc.Name == "" || alloc.NodeName == "" || alloc.EvalID == "" || alloc.CreateTime == 0:
			t.Errorf("%s: %+v", alloc.JobID, alloc)
		}
		for _, task := range group.Tasks {
			if r := alloc.TaskResources[task.Name]; r == nil || *r.CPU != 1 || *r.MemoryMB != 10 {
				t.Errorf("%s: task resources %+v", alloc.JobID, r)
			}
			if state := alloc.TaskStates[task.Name]; state == nil || len(state.Events) == 0 || state.Events[0].DisplayMessage == "" {
				t.Errorf("%s: task state %+v", alloc.JobID, state)
			}
		}
		usage, err := s.Allocations().Stats(alloc, nil)
		if err != nil || usage.ResourceUsage == nil || usage.ResourceUsage.MemoryStats == nil || usage.ResourceUsage.CpuStats == nil || usage.Tasks == nil {
			t.Errorf("%s: stats %+v, %v", alloc.JobID, usage, err)
		}
		if checks, err := s.Allocations().Checks(alloc.ID, nil); err != nil || len(checks) > 0 {
			t.Errorf("%s: checks %v, %v", alloc.JobID, checks, err)
		}
		if services, _, err := s.Allocations().Services(alloc.ID, nil); err != nil || services == nil || len(services) > 0 {
			t.Errorf("%s: services %v, %v", alloc.JobID, services, err)
		}
	}
	usage, err := s.Allocations().Stats(running, &api.QueryOptions{Params: map[string]string{"task": "web"}})
	if err != nil || len(usage.Tasks) != 1 || usage.Tasks["web"].ResourceUsage.MemoryStats.RSS == 0 || len(usage.Tasks["web"].Pids) == 0 {
		t.Errorf("stats of the task: %+v, %v", usage, err)
	}
	if usage, err := s.Allocations().Stats(running, &api.QueryOptions{Params: map[string]string{"task": "nope"}}); err != nil || len(usage.Tasks) != 0 {
		t.Errorf("stats of no task: %+v, %v", usage, err)
	}
	unknown := &api.Allocation{ID: "11111111-2222-3333-4444-555555555555", NodeID: s.NodeID}
	if _, err := s.Allocations().Stats(unknown, nil); !systemtest.IsErrorResponse(err, 404, `Unknown allocation "`+unknown.ID+`"`) {
		t.Errorf("stats of nothing: %v", err)
	}
	if _, _, err := s.Allocations().Services(unknown.ID, nil); !systemtest.IsErrorResponse(err, 404, "allocation not found") {
		t.Errorf("services of nothing: %v", err)
	}
	if _, err := s.Raw().Query("/v1/allocation/"+running.ID+"/zz", nil, nil); !systemtest.IsErrorResponse(err, 404, "resource not found") {
		t.Errorf("an unknown verb: %v", err)
	}
	if _, err := s.Raw().Query("/v1/client/allocation/"+running.ID+"/zz", nil, nil); !systemtest.IsErrorResponse(err, 404, "resource not found") {
		t.Errorf("an unknown verb of the client: %v", err)
	}
}

// checklist 19
func testAllocPrefixes(t *testing.T, s *systemtest.TestAgent, alloc *api.Allocation) {
	for _, prefix := range []string{alloc.ID[:2], alloc.ID[:8], alloc.ID[:7], strings.ReplaceAll(alloc.ID, "-", "")[:12], alloc.ID} {
		found, meta, err := s.Allocations().PrefixList(prefix)
		if err != nil || meta.LastIndex == 0 || !slices.ContainsFunc(found, func(a *api.AllocationListStub) bool { return a.ID == alloc.ID && a.JobType == "service" }) {
			t.Errorf("prefix %q: %v, %v", prefix, found, err)
		}
	}
	if _, _, err := s.Allocations().Info("zz", nil); err == nil || !strings.Contains(err.Error(), "UUID must be 36 characters") {
		t.Errorf("an id that is none: %v", err)
	}
}

// checklist 20
func testLogs(t *testing.T, s *systemtest.TestAgent, main *api.Allocation) {
	for stream, want := range map[string]string{"stdout": "hello\n", "stderr": "complaint\n"} {
		if text, err := s.ReadStoredLog(main, "web", stream, "start", 0); err != nil || text != want {
			t.Errorf("%s: %q, %v", stream, text, err)
		}
	}
	// The task writes three log files: the first one is full, the last one can be followed.
	small := func(t *api.Task) { t.LogConfig = &api.LogConfig{MaxFiles: new(5), MaxFileSizeMB: new(1)} }
	alloc := s.RunJobUntilStatus("lines", api.JobTypeService, "running", systemtest.NewRawExecShellTask("t", "seq 1000000 1320000; while :; do [ -e local/go ] && seq 5 && rm local/go; sleep 0.02; done", small))
	last := "1320000\n"
	s.WaitUntil("all lines are there", func() (string, bool) {
		text, err := s.ReadStoredLog(alloc, "t", "stdout", "end", int64(len(last)))
		return text + fmt.Sprint(err), text == last
	})
	all, err := s.ReadStoredLog(alloc, "t", "stdout", "start", 0)
	if lines := strings.Split(all, "\n"); err != nil || len(lines) != 320002 || lines[0] != "1000000" || lines[160000] != "1160000" {
		t.Errorf("%d lines, %v", len(lines), err)
	}
	if text, err := s.ReadStoredLog(alloc, "t", "stdout", "start", 8); err != nil || !strings.HasPrefix(text, "1000001\n1000002\n") {
		t.Errorf("from an offset: %.20q, %v", text, err)
	}
	if text, err := s.ReadStoredLog(alloc, "t", "stdout", "end", 20); err != nil || text != "998\n1319999\n1320000\n" {
		t.Errorf("-tail -c 20: %q, %v", text, err)
	}
	// The client implements -tail -n: it requests more bytes than one log file holds, and counts
	// the lines.
	if text, err := s.ReadStoredLog(alloc, "t", "stdout", "end", 2_400_000); err != nil || len(text) != 2_400_000 || !strings.HasSuffix(text, last) {
		t.Errorf("-tail over files: %d bytes, %v", len(text), err)
	}
	// The client implements -f: the agent sends the newest file from its start, and later output.
	cancel := make(chan struct{})
	defer close(cancel)
	frames, errs := s.AllocFS().Logs(alloc, true, "t", "stdout", "end", 0, cancel, nil)
	files, _, err := s.AllocFS().List(alloc, "alloc/logs", nil)
	newest := int64(0)
	for _, f := range files {
		if f.Name == "t.stdout.2" {
			newest = f.Size
		}
	}
	if err != nil || newest == 0 {
		t.Fatalf("there are not three files: %v, %v", files, err)
	}
	text := ""
	read := func(until string) {
		t.Helper()
		for !strings.HasSuffix(text, until) {
			select {
			case f := <-frames:
				text += string(f.Data)
				if f.File != "alloc/logs/t.stdout.2" || f.Offset != int64(len(text)) {
					t.Errorf("frame of %s up to %d, %d bytes have come", f.File, f.Offset, len(text))
				}
			case err := <-errs:
				t.Fatal(err)
			case <-time.After(time.Minute):
				t.Fatalf("nothing comes after %d bytes", len(text))
			}
		}
	}
	read(last)
	if int64(len(text)) != newest {
		t.Errorf("%d bytes of a file of %d", len(text), newest)
	}
	if _, err := s.Allocations().Exec(t.Context(), alloc, "t", false, []string{"touch", "local/go"}, strings.NewReader(""), io.Discard, io.Discard, nil, nil); err != nil {
		t.Fatal(err)
	}
	read(last + "1\n2\n3\n4\n5\n")

	plain := s.SendGet("/v1/client/fs/logs/" + main.ID + "?task=web&type=stdout&plain=true")
	if plain.StatusCode != 200 || plain.Body != "hello\n" || !strings.HasPrefix(plain.Header.Get("Content-Type"), "text/plain") || plain.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("plain: %+v", plain)
	}
	unstarted := s.RunJobUntilStatus("unstarted", api.JobTypeService, "running", systemtest.NewRawExecShellTask("init", systemtest.SleepForeverScript, systemtest.AsPrestartTask), systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript))
	silent := s.RunJobUntilStatus("silent", api.JobTypeService, "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript, func(t *api.Task) { t.LogConfig = &api.LogConfig{Disabled: new(true)} }))
	for _, c := range []struct {
		query string
		code  int
		text  string
	}{
		{main.ID + "?task=zzz&type=stdout", 400, `unknown task name "zzz"`},
		{main.ID + "?type=stdout", 400, "must provide task name"},
		{main.ID + "?task=web&type=x", 400, "must provide log type (stdout/stderr)"},
		{main.ID + "?task=web&type=stdout&origin=x", 400, "origin must be start or end"},
		{main.ID + "?task=web&type=stdout&offset=-1", 400, "offset must not be negative"},
		{unstarted.ID + "?task=t&type=stdout", 404, `task "t" not started yet. No logs available`},
		{silent.ID + "?task=t&type=stdout", 404, `log entry for task "t" and log type "stdout" not found`},
		{s.NodeID + "?task=t&type=stdout", 404, `Unknown allocation "` + s.NodeID + `"`},
		{"?task=t&type=stdout", 400, "must provide a valid alloc id"},
	} {
		if got := s.SendGet("/v1/client/fs/logs/" + c.query); got.StatusCode != c.code || got.Body != c.text {
			t.Errorf("logs %s: %d %s", c.query, got.StatusCode, got.Body)
		}
	}
	if got := s.SendGet("/v1/client/fs/zz/" + main.ID); got.StatusCode != 404 || got.Body != "Invalid method" {
		t.Errorf("an unknown verb: %+v", got)
	}
}

// testLogsThroughProxy sends requests through a proxy that reports another address of the node, over
// TCP and over a unix socket.
// (checklist 21)
func testLogsThroughProxy(t *testing.T, s *systemtest.TestAgent, alloc *api.Allocation) {
	target, err := url.Parse(s.Address)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "api.sock")
	overUnix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := ""
	proxy := &httputil.ReverseProxy{
		Transport: s.HTTPClient.Transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Set("Accept-Encoding", "identity")
		},
		ModifyResponse: func(r *http.Response) error {
			if !strings.HasPrefix(r.Request.URL.Path, "/v1/node/") {
				return nil
			}
			var node map[string]any
			if err := json.NewDecoder(r.Body).Decode(&node); err != nil {
				return err
			}
			node["HTTPAddr"] = elsewhere
			text, err := json.Marshal(node)
			r.Body = io.NopCloser(bytes.NewReader(text))
			r.Header.Set("Content-Length", strconv.Itoa(len(text)))
			r.ContentLength = int64(len(text))
			return err
		},
	}
	server := &httptest.Server{Listener: overUnix, Config: &http.Server{Handler: proxy}}
	server.Start()
	defer server.Close()
	tcp := httptest.NewServer(proxy)
	defer tcp.Close()
	for _, address := range []string{tcp.URL, "unix://" + socket} {
		for _, elsewhere = range []string{"", "127.0.0.1:1"} {
			client, err := api.NewClient(&api.Config{Address: address})
			if err != nil {
				t.Fatal(err)
			}
			through := &systemtest.TestAgent{Client: client, T: t}
			if text, err := through.ReadStoredLog(alloc, "web", "stdout", "start", 0); err != nil || text != "hello\n" {
				t.Errorf("%s, node at %q: %q, %v", address, elsewhere, text, err)
			}
			var out bytes.Buffer
			code, err := client.Allocations().Exec(t.Context(), alloc, "web", false, []string{"echo", "there"}, strings.NewReader(""), &out, &out, nil, nil)
			if err != nil || code != 0 || out.String() != "there\n" {
				t.Errorf("%s, node at %q: exec %d %q, %v", address, elsewhere, code, out.String(), err)
			}
			client.Close()
		}
	}
}

// testAllocFiles lists and reads the files of an allocation. (checklist 22)
func testAllocFiles(t *testing.T, s *systemtest.TestAgent, alloc *api.Allocation) {
	s.WaitUntil("the page is there", func() (string, bool) {
		_, _, err := s.AllocFS().Stat(alloc, "web/local/page.html", nil)
		return fmt.Sprint(err), err == nil
	})
	files, _, err := s.AllocFS().List(alloc, "/", nil)
	var fileNames []string
	for _, f := range files {
		fileNames = append(fileNames, f.Name+strconv.FormatBool(f.IsDir))
	}
	if want := []string{"alloctrue", "inittrue", "webtrue"}; err != nil || !slices.Equal(fileNames, want) {
		t.Errorf("ls: %q, %v", fileNames, err)
	}
	info, _, err := s.AllocFS().Stat(alloc, "/web/local/page.html", nil)
	if err != nil || info.Name != "page.html" || info.IsDir || info.Size != 5 || info.FileMode != "-rw-r--r--" || info.ModTime.IsZero() || info.ContentType != "text/plain; charset=utf-8" {
		t.Errorf("stat: %+v, %v", info, err)
	}
	if info, _, err := s.AllocFS().Stat(alloc, "web/secrets/token", nil); err != nil || info.ContentType != "application/octet-stream" {
		t.Errorf("a secret can be looked at: %+v, %v", info, err)
	}
	read := func(r io.ReadCloser, err error) string {
		if err != nil {
			return err.Error()
		}
		defer r.Close()
		text, err := io.ReadAll(r)
		if err != nil {
			return err.Error()
		}
		return string(text)
	}
	if got := read(s.AllocFS().Cat(alloc, "web/local/page.html", nil)); got != "page\n" {
		t.Errorf("cat: %q", got)
	}
	if got := read(s.AllocFS().ReadAt(alloc, "web/local/page.html", 3, -1, nil)); got != "e\n" {
		t.Errorf("tail: %q", got)
	}
	if got := read(s.AllocFS().ReadAt(alloc, "web/local/page.html", 1, 2, nil)); got != "ag" {
		t.Errorf("readat: %q", got)
	}
	cat := s.SendGet("/v1/client/fs/cat/" + alloc.ID + "?path=web/local/page.html")
	if cat.Header.Get("X-Content-Type-Options") != "nosniff" || !strings.Contains(cat.Header.Get("Content-Security-Policy"), "sandbox") || cat.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("headers of a file: %v", cat.Header)
	}

	cancel := make(chan struct{})
	defer close(cancel)
	frames, _ := s.AllocFS().Stream(alloc, "web/local/page.html", "end", 3, cancel, nil)
	expect := func(data, event string) {
		t.Helper()
		select {
		case f := <-frames:
			if f == nil || string(f.Data) != data || f.FileEvent != event || f.File != "web/local/page.html" {
				t.Fatalf("frame %+v, want %q %q", f, data, event)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no frame, want %q %q", data, event)
		}
	}
	expect("ge\n", "")
	s.ExecScriptInWebTask(alloc, "echo more >>local/page.html")
	expect("more\n", "")
	s.ExecScriptInWebTask(alloc, ": >local/page.html")
	expect("", "file truncated")
	s.ExecScriptInWebTask(alloc, "rm local/page.html")
	expect("", "file deleted")
	if _, more := <-frames; more {
		t.Error("a stream goes on after its file")
	}

	s.ExecScriptInWebTask(alloc, "ln -s ../secrets local/keys; ln -s ../../../.. local/up; mkfifo local/fifo")
	base := filepath.Join(s.ExecScriptInWebTask(alloc, "dirname $NOMAD_ALLOC_DIR"))
	fs := "/v1/client/fs/"
	for _, c := range []struct {
		verb, path string
		code       int
		text       string
	}{
		{"ls", "nope", 404, "open " + base + "/nope: no such file or directory"},
		{"ls", "../..", 500, "Path escapes the alloc directory"},
		{"ls", "web/local/up", 500, "Path escapes the alloc directory"},
		{"stat", "nope", 404, "stat " + base + "/nope: no such file or directory"},
		{"stat", "", 400, "must provide a file name"},
		{"stat", "web/local/up/etc/passwd", 500, "Path escapes the alloc directory"},
		{"cat", "nope", 404, "stat " + base + "/nope: no such file or directory"},
		{"cat", "alloc", 400, `file "alloc" is a directory`},
		{"cat", "web/local/fifo", 400, `file "web/local/fifo" is not a regular file`},
		{"cat", "web/secrets/token", 403, "Reading secret file prohibited: web/secrets/token"},
		{"cat", "web/local/keys/token", 403, "Reading secret file prohibited: web/local/keys/token"},
		{"cat", "../../etc/passwd", 400, "Path escapes the alloc directory"},
		{"readat", "web/secrets/token&offset=0", 403, "Reading secret file prohibited: web/secrets/token"},
		{"readat", "web/local/up", 400, `error parsing offset: strconv.ParseInt: parsing "": invalid syntax`},
		{"stream", "nope", 400, "stat " + base + "/nope: no such file or directory"},
		{"stream", "web/local/up/x", 400, "Path escapes the alloc directory"},
		{"stream", "web/secrets/token", 500, "Reading secret file prohibited: web/secrets/token"},
		{"stream", "web", 400, `file "web" is a directory`},
	} {
		if got := s.SendGet(fs + c.verb + "/" + alloc.ID + "?path=" + c.path); got.StatusCode != c.code || got.Body != c.text {
			t.Errorf("%s %s: %d %s", c.verb, c.path, got.StatusCode, got.Body)
		}
	}
}

// checklist 23
func testExec(t *testing.T, s *systemtest.TestAgent, alloc *api.Allocation) {
	run := func(task string, in string, command ...string) (int, string, string, error) {
		var out, stderrText bytes.Buffer
		code, err := s.Allocations().Exec(t.Context(), alloc, task, false, command, strings.NewReader(in), &out, &stderrText, nil, nil)
		return code, out.String(), stderrText.String(), err
	}
	if code, out, _, err := run("web", "", "/bin/sh", "-c", "echo out; echo err >&2"); err != nil || code != 0 || out != "out\n" {
		t.Errorf("exit 0: %d %q %v", code, out, err)
	}
	if code, out, stderrText, err := run("web", "", "/bin/sh", "-c", "echo out; echo err >&2; exit 5"); err != nil || code != 5 || out != "out\n" || stderrText != "err\n" {
		t.Errorf("exit 5: %d %q %q %v", code, out, stderrText, err)
	}
	if code, _, stderrText, err := run("web", "", "/no-such-program"); err != nil || code != 127 || !strings.Contains(stderrText, "no-such-program") {
		t.Errorf("a missing command: %d %q %v", code, stderrText, err)
	}
	big := strings.Repeat("0123456789abcde\n", 1<<15)
	if code, out, _, err := run("web", big, "cat"); err != nil || code != 0 || out != big {
		t.Errorf("%d bytes came back of %d, %d %v", len(out), len(big), code, err)
	}
	for _, c := range []struct {
		task, text string
		command    []string
	}{
		{"init", `task "init" is not running.`, []string{"true"}},
		{"nope", `unknown task name "nope"`, []string{"true"}},
		{"web", "command is not present", nil},
	} {
		if _, _, _, err := run(c.task, "", c.command...); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%q in %s: %v", c.command, c.task, err)
		}
	}
	if got := s.SendGet("/v1/client/allocation/" + alloc.ID + "/exec?task=web"); got.StatusCode != 500 || got.Body != "websocket connection not found in context" {
		t.Errorf("without a websocket: %+v", got)
	}

	// A session with a terminal: the program sees its size and each change of the size, and
	// receives Ctrl-C.
	sizes := make(chan api.TerminalSize, 2)
	keys, typed := io.Pipe()
	screen := &systemtest.LockedBuffer{}
	ended := make(chan error, 1)
	go func() {
		script := "stty size; trap 'echo interrupted; exit 7' INT; trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done"
		code, err := s.Allocations().Exec(t.Context(), alloc, "web", true, []string{"/bin/sh", "-c", script}, keys, screen, io.Discard, sizes, nil)
		if code != 7 {
			err = errors.Join(err, fmt.Errorf("exit code %d", code))
		}
		ended <- err
	}()
	s.WaitUntil("the program is ready", func() (string, bool) { return screen.String(), strings.Contains(screen.String(), "ready") })
	sizes <- api.TerminalSize{Height: 33, Width: 111}
	s.WaitUntil("the terminal has another size", func() (string, bool) { return screen.String(), strings.Contains(screen.String(), "33 111") })
	if _, err := typed.Write([]byte{3}); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil || !strings.Contains(screen.String(), "interrupted") {
			t.Errorf("%v, screen %q", err, screen.String())
		}
	case <-time.After(time.Minute):
		t.Error("Ctrl-C does not reach the program")
	}
	typed.Close()

	// An action of the job.
	acting := s.RunJobUntilStatus("acting", api.JobTypeService, "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript, func(t *api.Task) {
		t.Actions = []*api.Action{{Name: "greet", Command: "/bin/sh", Args: []string{"-c", "echo hello; exit 4"}}}
	}))
	var out bytes.Buffer
	code, err := s.Jobs().ActionExec(t.Context(), acting, "acting", "t", false, nil, "greet", strings.NewReader(""), &out, io.Discard, nil, nil)
	if err != nil || code != 4 || out.String() != "hello\n" {
		t.Errorf("action: %d %q %v", code, out.String(), err)
	}
	for job, text := range map[string]string{"acting": "action nope not found in task t", "main": "job main does not have allocation " + acting.ID, "none": `Unknown job "none"`} {
		if _, err := s.Jobs().ActionExec(t.Context(), acting, job, "t", false, nil, "nope", strings.NewReader(""), &out, io.Discard, nil, nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("action of %s: %v", job, err)
		}
	}
}

// testExecEndsWithClient runs a command that reads its input, and a command that does not.
// (checklist 24)
func testExecEndsWithClient(t *testing.T, s *systemtest.TestAgent, alloc *api.Allocation) {
	for _, c := range []struct{ name, script string }{
		{"one that reads", "echo $$; cat >/dev/null"},
		{"one that does not read", "echo $$; exec sleep 1000"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		out := &systemtest.LockedBuffer{}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = s.Allocations().Exec(ctx, alloc, "web", false, []string{"/bin/sh", "-c", c.script}, systemtest.EndlessReader{}, out, io.Discard, nil, nil)
		}()
		pid := 0
		s.WaitUntil(c.name+" runs", func() (string, bool) {
			pid, _ = strconv.Atoi(strings.TrimSpace(out.String()))
			return out.String(), pid > 0
		})
		cancel()
		<-ended
		s.WaitUntil(c.name+" ends", func() (string, bool) {
			err := syscall.Kill(pid, 0)
			return fmt.Sprint(pid, err), errors.Is(err, syscall.ESRCH)
		})
	}
}

// checklist 25
func testStoppedAllocIsReplaced(t *testing.T, s *systemtest.TestAgent) {
	alloc := s.RunJobUntilStatus("replaced", api.JobTypeService, "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript))
	stopped, err := s.Allocations().Stop(alloc, nil)
	if err != nil || stopped.EvalID == "" || stopped.LastIndex == 0 {
		t.Fatalf("%+v, %v", stopped, err)
	}
	var old *api.Allocation
	s.WaitUntil("another one runs", func() (string, bool) {
		old = s.ReadAlloc(alloc.ID)
		if old.NextAllocation == "" {
			return "no next allocation", false
		}
		next := s.ReadAlloc(old.NextAllocation)
		return old.ClientStatus + " " + next.ClientStatus, old.ClientStatus == "complete" && next.ClientStatus == "running" && next.PreviousAllocation == alloc.ID && next.Name == alloc.Name
	})
	if old.DesiredStatus != "stop" || old.DesiredDescription != "alloc is being migrated" {
		t.Errorf("the stopped one: %s %s", old.DesiredStatus, old.DesiredDescription)
	}
	unknown := &api.Allocation{ID: s.NodeID}
	if _, err := s.Allocations().Stop(unknown, nil); !systemtest.IsErrorResponse(err, 404, "allocation not found") {
		t.Errorf("stop of nothing: %v", err)
	}
}

// The rules are RS-037 to RS-042 and RS-044, tested through the API. (checklist 26)
func testSignalAndRestart(t *testing.T, s *systemtest.TestAgent, main *api.Allocation) {
	alloc := s.RunJobUntilStatus("signalled", api.JobTypeBatch, "running",
		systemtest.NewRawExecShellTask("t", `trap 'echo usr1' USR1; trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done`),
		systemtest.NewRawExecShellTask("done", "exit 0", systemtest.WithoutRestart))
	s.WaitUntil("one task has ended", func() (string, bool) {
		state := s.ReadAlloc(alloc.ID).TaskStates["done"].State
		return state, state == "dead"
	})
	restarts := func(task string) uint64 { return s.ReadAlloc(alloc.ID).TaskStates[task].Restarts }
	says := func(want string) {
		t.Helper()
		s.WaitUntil("the task says "+want, func() (string, bool) {
			text, err := s.ReadStoredLog(alloc, "t", "stdout", "start", 0)
			return text + fmt.Sprint(err), text == want
		})
	}
	// The output of the task can arrive before the agent has stored that the task runs.
	runs := func(want string) {
		t.Helper()
		says(want)
		s.WaitUntil("the task runs", func() (string, bool) {
			events := systemtest.EventTypesWithoutLimitWarnings(s.ReadAlloc(alloc.ID).TaskStates["t"].Events)
			return fmt.Sprint(events), events[len(events)-1] == api.TaskStarted
		})
	}
	runs("up\n")
	if err := s.Allocations().Signal(alloc, nil, "t", "SIGUSR1"); err != nil {
		t.Fatal(err)
	}
	says("up\nusr1\n")
	if err := s.Allocations().Restart(alloc, "t", nil); err != nil {
		t.Fatal(err)
	}
	runs("up\nusr1\nup\n")
	if err := s.Allocations().Restart(alloc, "", nil); err != nil {
		t.Fatal(err)
	}
	runs("up\nusr1\nup\nup\n")
	if err := s.Allocations().RestartAllTasks(alloc, nil); err != nil {
		t.Fatal(err)
	}
	runs("up\nusr1\nup\nup\nup\n")
	s.WaitUntil("the one that has ended runs again", func() (string, bool) {
		return fmt.Sprint(restarts("t"), restarts("done")), restarts("t") == 3 && restarts("done") == 1
	})
	s.WaitUntil("and ends again", func() (string, bool) {
		state := s.ReadAlloc(alloc.ID).TaskStates["done"]
		return state.State, state.State == "dead" && !state.FinishedAt.IsZero()
	})
	over := s.RunJobUntilStatus("over", api.JobTypeBatch, "complete", systemtest.NewRawExecShellTask("t", "exit 0"))
	for _, c := range []struct {
		what string
		err  error
		code int
		text string
	}{
		{"restart of a dead task", s.Allocations().Restart(alloc, "done", nil), 500, "Task not running"},
		{"restart of no task", s.Allocations().Restart(alloc, "nope", nil), 500, "Could not find task runner for task: nope"},
		{"signal to a dead task", s.Allocations().Signal(alloc, nil, "done", "SIGHUP"), 500, "Task not running"},
		{"signal to no task", s.Allocations().Signal(alloc, nil, "nope", "SIGHUP"), 500, "Task not found"},
		{"restart of no allocation", s.Allocations().Restart(&api.Allocation{ID: s.NodeID}, "", nil), 404, fmt.Sprintf("Unknown allocation %q", s.NodeID)},
		{"restart of what is over", s.Allocations().Restart(over, "", nil), 500, "restart of an alloc that should not run"},
		{"restart of no task of what is over", s.Allocations().Restart(over, "nope", nil), 500, "Could not find task runner for task: nope"},
		{"signal to what is over", s.Allocations().Signal(over, nil, "", "SIGHUP"), 500, "Task not running"},
		{"signal to no task of what is over", s.Allocations().Signal(over, nil, "nope", "SIGHUP"), 500, "Task not found"},
	} {
		if !systemtest.IsErrorResponse(c.err, c.code, c.text) {
			t.Errorf("%s: %v", c.what, c.err)
		}
	}
	both := map[string]any{"TaskName": "t", "AllTasks": true}
	if _, err := s.Raw().Write("/v1/client/allocation/"+alloc.ID+"/restart", both, nil, nil); !systemtest.IsErrorResponse(err, 500, "task name cannot be set when restarting all tasks") {
		t.Errorf("both: %v", err)
	}
}

// checklist 27
func testAllocGC(t *testing.T, s *systemtest.TestAgent) {
	done := s.RunJobUntilStatus("done", api.JobTypeBatch, "complete", systemtest.NewRawExecShellTask("t", "echo text"))
	if text, err := s.ReadStoredLog(done, "t", "stdout", "start", 0); err != nil || text != "text\n" {
		t.Errorf("logs of what has ended: %q, %v", text, err)
	}
	s.WaitUntil("it can be collected", func() (string, bool) {
		err := s.Allocations().GC(done, nil)
		return fmt.Sprint(err), err == nil
	})
	if err := s.Allocations().GC(done, nil); err != nil {
		t.Errorf("once more: %v", err)
	}
	if got := s.SendGet("/v1/client/fs/ls/" + done.ID); got.StatusCode != 404 {
		t.Errorf("its files: %+v", got)
	}
	live := s.RunJobUntilStatus("live", api.JobTypeService, "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript))
	if err := s.Allocations().GC(live, nil); !systemtest.IsErrorResponse(err, 500, "No such allocation on client, or allocation not eligible for GC") {
		t.Errorf("of a live one: %v", err)
	}
	again := s.RunJobUntilStatus("again", api.JobTypeBatch, "complete", systemtest.NewRawExecShellTask("t", "exit 0"))
	s.WaitUntil("all that has ended goes", func() (string, bool) {
		if err := s.Nodes().GC(s.NodeID, nil); err != nil {
			t.Fatal(err)
		}
		got := s.SendGet("/v1/client/fs/ls/" + again.ID)
		return got.Body, got.StatusCode == 404
	})
}

// checklist 28
func testNodeStats(t *testing.T, s *systemtest.TestAgent, _ *api.Allocation) {
	node, meta, err := s.Nodes().Info(s.NodeID, nil)
	if err != nil || meta.LastIndex == 0 {
		t.Fatal(err)
	}
	switch {
	case node.NodeResources == nil || node.ReservedResources == nil || node.NodeResources.Cpu.CpuShares == 0 || node.NodeResources.MinDynamicPort == 0:
		t.Errorf("resources %+v %+v", node.NodeResources, node.ReservedResources)
	case !strings.HasSuffix(s.Address, "://"+node.HTTPAddr) || node.TLSEnabled != s.UsesTLS || node.Status != "ready" || node.SchedulingEligibility != "eligible":
		t.Errorf("node %+v", node)
	case node.Drivers["raw_exec"] == nil || !node.Drivers["raw_exec"].Healthy || node.Attributes["driver.raw_exec"] != "1" || node.Attributes["unique.storage.volume"] == "":
		t.Errorf("drivers %+v, attributes %v", node.Drivers, node.Attributes)
	case len(node.Events) == 0 || node.HostVolumes == nil:
		t.Errorf("events %v", node.Events)
	}
	var nodeFields map[string]any
	if _, err := s.Raw().Query("/v1/node/"+s.NodeID, &nodeFields, nil); err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields("ID Datacenter Name CgroupParent HTTPAddr NodeClass NodePool ComputedClass SchedulingEligibility Status StatusDescription IdentitySigningKeyID StatusUpdatedAt NodeMaxAllocs LastMissedHeartbeatIndex LastAllocUpdateIndex CreateIndex ModifyIndex TLSEnabled GCVolumesOnNodeGC Attributes Links Meta NodeResources ReservedResources DrainStrategy Events Drivers CSIControllerPlugins CSINodePlugins HostVolumes HostNetworks LastDrain Drain SecretID") {
		if _, there := nodeFields[name]; !there {
			t.Errorf("a node has no %s", name)
		}
	}
	stats, err := s.Nodes().Stats(s.NodeID, nil)
	if err != nil || stats.Memory == nil || stats.Memory.Total == 0 || len(stats.CPU) == 0 || stats.AllocDirStats == nil || stats.Uptime == 0 || stats.DeviceStats == nil {
		t.Errorf("stats %+v, %v", stats, err)
	}
	if _, err := s.Nodes().Stats("11111111-2222-3333-4444-555555555555", nil); err == nil {
		t.Error("another node has stats")
	}
	s.RunJobUntilStatus("terminal", api.JobTypeBatch, "complete", systemtest.NewRawExecShellTask("t", "exit 0"))
	allocs, _, err := s.Nodes().Allocations(s.NodeID, nil)
	if err != nil || len(allocs) < 2 {
		t.Fatalf("%d allocations, %v", len(allocs), err)
	}
	for _, alloc := range allocs {
		if alloc.Job == nil || alloc.Job.Version == nil || alloc.GetTaskGroup() == nil || alloc.Resources == nil || alloc.Resources.DiskMB == nil {
			t.Errorf("alloc of %s: %+v", alloc.JobID, alloc)
		}
		if usage, err := s.Allocations().Stats(alloc, nil); err != nil || usage.ResourceUsage.CpuStats == nil || usage.ResourceUsage.MemoryStats == nil {
			t.Errorf("usage of %s: %+v, %v", alloc.JobID, usage, err)
		}
	}
	stubs, _, err := s.Nodes().PrefixList(s.NodeID[:7])
	if err != nil || len(stubs) != 1 || stubs[0].Address != "127.0.0.1" || stubs[0].Version == "" || stubs[0].NodePool != "default" {
		t.Errorf("nodes %+v, %v", stubs, err)
	}

	static, err := s.Nodes().Meta().Read(s.NodeID, nil)
	if err != nil || static.Meta == nil || static.Static == nil {
		t.Fatalf("metadata %+v, %v", static, err)
	}
	applied, err := s.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{NodeID: s.NodeID, Meta: map[string]*string{"rack": new("r1"), "gone": nil}}, nil)
	if err != nil || applied.Meta["rack"] != "r1" || *applied.Dynamic["rack"] != "r1" || len(applied.Dynamic) != 1 {
		t.Errorf("applied %+v, %v", applied, err)
	}
	if node, _, err := s.Nodes().Info(s.NodeID, nil); err != nil || node.Meta["rack"] != "r1" {
		t.Errorf("metadata of the node: %v, %v", node.Meta, err)
	}
	if applied, err := s.Nodes().Meta().Apply(&api.NodeMetaApplyRequest{Meta: map[string]*string{"rack": nil}}, nil); err != nil || len(applied.Meta) != len(static.Meta) {
		t.Errorf("removed: %+v, %v", applied, err)
	}

	pools, _, err := s.NodePools().List(nil)
	if err != nil || len(pools) != 2 || pools[0].Name != "all" || pools[1].Name != "default" {
		t.Errorf("pools %+v, %v", pools, err)
	}
	if nodes, _, err := s.NodePools().ListNodes("default", nil); err != nil || len(nodes) != 1 {
		t.Errorf("nodes of a pool: %v, %v", nodes, err)
	}
	if jobs, _, err := s.NodePools().ListJobs("default", nil); err != nil || len(jobs) == 0 {
		t.Errorf("jobs of a pool: %v, %v", jobs, err)
	}
	if _, _, err := s.NodePools().Info("nope", nil); !systemtest.IsErrorResponse(err, 404, "node pool not found") {
		t.Errorf("no pool: %v", err)
	}
	if _, _, err := s.Nodes().Purge(s.NodeID, nil); err == nil || !strings.Contains(err.Error(), "cannot be purged") {
		t.Errorf("purge: %v", err)
	}
}

// checklist 29
func testDrain(t *testing.T, s *systemtest.TestAgent) {
	service := s.RunJobUntilStatus("service", api.JobTypeService, "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript))
	batch := s.RunJobUntilStatus("batch", api.JobTypeBatch, "running", systemtest.NewRawExecShellTask("t", systemtest.SleepForeverScript))
	out, err := s.Nodes().UpdateDrainOpts(s.NodeID, &api.DrainOptions{DrainSpec: &api.DrainSpec{Deadline: 2 * time.Second}, Meta: map[string]string{"message": "test"}}, nil)
	if err != nil || out.NodeModifyIndex == 0 || out.LastIndex == 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := false
	var drainMessages []string
	for m := range s.Nodes().MonitorDrain(ctx, s.NodeID, out.LastIndex, false) {
		drainMessages = append(drainMessages, m.String())
		ended = ended || strings.Contains(m.String(), "drain complete") || strings.Contains(m.String(), "All allocations on node")
	}
	if !ended || ctx.Err() != nil {
		t.Errorf("the monitor says %q", drainMessages)
	}
	for _, alloc := range []*api.Allocation{service, batch} {
		if got := s.ReadAlloc(alloc.ID); got.ClientStatus != "complete" || got.DesiredStatus != "stop" {
			t.Errorf("%s: %s, %s", got.JobID, got.ClientStatus, got.DesiredStatus)
		}
	}
	node, _, err := s.Nodes().Info(s.NodeID, nil)
	if err != nil || node.DrainStrategy != nil || node.Drain || node.SchedulingEligibility != "ineligible" || node.LastDrain == nil || node.LastDrain.Status != "complete" || node.LastDrain.Meta["message"] != "test" {
		t.Errorf("node %+v, %v", node, err)
	}
	s.WaitUntil("its place is waited for", func() (string, bool) {
		evals, _, err := s.Jobs().Evaluations("service", nil)
		return fmt.Sprint(evals, err), slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == "blocked" })
	})
	if _, err := s.Nodes().ToggleEligibility(s.NodeID, true, nil); err != nil {
		t.Fatal(err)
	}
	s.WaitUntil("the job runs again", func() (string, bool) {
		summary, _, err := s.Jobs().Summary("service", nil)
		return fmt.Sprint(summary, err), err == nil && summary.Summary["g"].Running == 1
	})

	// A cancelled drain leaves the running allocations and the node unchanged.
	if _, err := s.Nodes().UpdateDrain(s.NodeID, &api.DrainSpec{Deadline: time.Hour, IgnoreSystemJobs: true}, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Nodes().ToggleEligibility(s.NodeID, true, nil); err == nil || !strings.Contains(err.Error(), "while it is draining") {
		t.Errorf("eligible while it drains: %v", err)
	}
	if _, err := s.Nodes().UpdateDrain(s.NodeID, nil, true, nil); err != nil {
		t.Fatal(err)
	}
	if node, _, err := s.Nodes().Info(s.NodeID, nil); err != nil || node.SchedulingEligibility != "eligible" || node.LastDrain.Status != "canceled" {
		t.Errorf("node %+v, %v", node, err)
	}
	if _, err := s.Nodes().UpdateDrain("11111111-2222-3333-4444-555555555555", nil, true, nil); !systemtest.IsErrorResponse(err, 500, "node not found") {
		t.Errorf("drain of another node: %v", err)
	}
	if _, err := s.Raw().Write("/v1/node/"+s.NodeID+"/eligibility", map[string]any{"Eligibility": "x"}, nil, nil); !systemtest.IsErrorResponse(err, 500, `invalid scheduling eligibility "x"`) {
		t.Errorf("eligibility x: %v", err)
	}
	if evals, _, err := s.Nodes().ForceEvaluate(s.NodeID, nil); err != nil || evals != "" {
		t.Errorf("evaluate: %q, %v", evals, err)
	}
}
