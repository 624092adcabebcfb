package top

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/apiclient"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/cli"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/terminal"
)

// hostileText has sequences that clear the screen, set the title, switch the character set, move the cursor and
// reorder text, also in their form of one byte.
const hostileText = "ev\x1b[2J\x1b]0;title\x07\x1b(0\x1b[5;5H\u009b2J\u202eil\r\n\x0e\b\x00"

// TestGoldenScreens compares whole screens of several widths, with wide, combining and hostile characters.
func TestGoldenScreens(t *testing.T) {
	f := newFilledAgent(t)
	wide := newStub(7, "日本語ジョブ", "グループ", 0, "タスク", "cafe\u0301"+strings.Repeat("\u0301", 50), "🚀")
	wide.TaskStates["タスク"] = runningState("Driver", "日本語のメッセージ "+strings.Repeat("長い", 100))
	hostile := newStub(8, hostileText, hostileText, 0, hostileText)
	hostile.TaskStates[hostileText] = runningState(hostileText, hostileText)
	hostile.ClientStatus = "run\x1b[2Jning"
	f.jobs = append(f.jobs, newJobStub("日本語ジョブ", "running"), newJobStub(hostileText, hostileText))
	f.allocs = append(f.allocs, wide, hostile)
	for _, size := range [][2]int{{140, 24}, {80, 24}, {40, 26}} {
		t.Run(fmt.Sprint(size[0]), func(t *testing.T) {
			s := startSession(t, f, size[0], size[1])
			s.waitFor("4.0 MiB") // the samples have arrived
			s.compareGolden(fmt.Sprintf("table%d", size[0]))
		})
	}
}

// A terminal of 80 columns and 24 rows shows 21 of 45 jobs, and why a job does not run.
func TestJobsThatDoNotFitStartCollapsed(t *testing.T) {
	f := newFakeAgent(t)
	for i := range 45 {
		id := fmt.Sprintf("job-%02d", i)
		f.jobs = append(f.jobs, newJobStub(id, "running"))
		f.health = append(f.health, &apiclient.JobHealth{JobID: id, Namespace: "default", Health: "running"})
		if i != 3 {
			f.allocs = append(f.allocs, newStub(i, id, "g", 0, "main"))
		}
	}
	f.health[3] = &apiclient.JobHealth{JobID: "job-03", Namespace: "default", Health: "blocked", NeedsAttention: true, Reason: "memory exhausted: 99 MB left", Remedy: "Ask for less"}
	f.health[30] = &apiclient.JobHealth{JobID: "job-30", Namespace: "default", Health: "failing", NeedsAttention: true, Reason: "exit code 3"}
	s := startSession(t, f, 80, 24)
	s.waitFor("45 jobs, 2 need attention")
	s.wait("21 jobs", func(screen string) bool {
		return strings.Count(screen, "job-") == 21 && !strings.Contains(screen, "main")
	})
	s.waitFor("job-03          blocked   memory exhausted: 99 MB left. Ask for less")
	s.press("S")
	s.wait("the jobs that need attention first", func(screen string) bool {
		return regexp.MustCompile(`(?m)^\+ job-30 +failing +exit code 3 *\n  job-03 +blocked `).MatchString(screen)
	})
	s.press("/blocked\r")
	s.wait("blocked jobs only", func(screen string) bool { return strings.Count(screen, "job-") == 1 })
	s.press("\x1b")
	s.press("g\r") // expand the first job
	s.waitFor("    main")
}

// The first condition of the agent has a line above the table.
func TestConditionLine(t *testing.T) {
	f := newFilledAgent(t)
	f.found = []apiclient.Condition{
		{Kind: "DiskFull", Severity: "error", Summary: "The disk is full" + hostileText, Remedy: "Remove files that are not needed"},
		{Kind: "ClockStepped", Severity: "warning", Summary: "The clock was set", Remedy: "Check it"},
	}
	s := startSession(t, f, 80, 8)
	s.wait("the line above the titles", func(screen string) bool {
		lines := strings.Split(screen, "\n")
		return len(lines) >= 8 && strings.HasPrefix(lines[1], "The disk is full") && strings.HasSuffix(strings.TrimRight(lines[1], " "), "(and 1 more: nomad-lite status)") &&
			strings.Contains(lines[2], "NAME") && strings.HasPrefix(lines[7], "? help")
	})
}

// TestVeryNarrowTerminal checks that no size of the terminal ends the command.
func TestVeryNarrowTerminal(t *testing.T) {
	s := startSession(t, newFilledAgent(t), 80, 24)
	for _, size := range [][2]int{{20, 5}, {3, 3}, {1, 1}, {300, 2}} {
		s.resize(size[0], size[1])
		s.press("j?q/x")
		s.wait("the filter", func(screen string) bool { return strings.HasSuffix(screen, "_\n") })
		s.press("\x1b")
		s.wait("the keys", func(screen string) bool { return strings.HasPrefix(lastRow(screen), "?") })
	}
	s.resize(80, 24)
	s.waitFor("MEMORY")
}

func lastRow(screen string) string {
	screen = strings.TrimSuffix(screen, "\n")
	return screen[strings.LastIndexByte(screen, '\n')+1:]
}

func TestResize(t *testing.T) {
	s := startSession(t, newFilledAgent(t), 140, 24)
	s.waitFor("PORTS")
	s.resize(50, 10)
	s.wait("a narrow table", func(screen string) bool {
		return strings.Contains(screen, "MEMORY") && !strings.Contains(screen, "PORTS")
	})
	s.press("G") // the last row is visible on the small screen, too
	s.waitSelected("nginx")
	s.resize(140, 24)
	s.waitFor("PORTS")
}

func TestMovement(t *testing.T) {
	s := startSession(t, newFilledAgent(t), 80, 24) // all rows fit, so that jobs are expanded
	s.waitFor("web")
	s.resize(80, 8) // five rows of the table
	s.waitGone("web")
	s.waitSelected("api")
	for _, step := range []struct{ keys, selected string }{
		{"j", "api[0]"}, {"\x1b[B", "server"}, {"\x1b[A", "api[0]"}, {"k", "- api"}, {"k", "- api"},
		{"G", "nginx"}, {"g", "- api"}, {"\x1b[F", "nginx"}, {"\x1b[H", "- api"},
		{"\x1b[6~", "batch"}, {"\x1b[6~", "web[0]"}, {"\x1b[5~", "batch"},
	} {
		s.press(step.keys)
		s.waitSelected(step.selected)
	}
}

func TestCollapse(t *testing.T) {
	s := startSession(t, newFilledAgent(t), 80, 24)
	s.press("j\r") // the allocation of api
	s.wait("a collapsed allocation", func(screen string) bool {
		return strings.Contains(screen, "+ api[0]") && !strings.Contains(screen, "    server")
	})
	s.waitFor("server: Started") // a collapsed allocation has the last event of its tasks
	s.press("\r")
	s.waitFor("    server")
	s.press("jj\x1b[D") // from a task to its allocation
	s.waitSelected("- api[0]")
	s.press("\x1b[D\x1b[D") // collapse it, and go to its job
	s.waitSelected("- api")
	s.press("\x1b[D")
	s.waitSelected("+ api")
	s.waitGone("api[0]")
	s.press("\x1b[C")
	s.waitFor("+ api[0]")
}

// jobOrder returns the jobs of a screen from the top.
func jobOrder(screen string) string {
	var jobs []string
	for line := range strings.Lines(screen) {
		if strings.HasPrefix(line, "- ") {
			jobs = append(jobs, strings.Fields(line)[1])
		}
	}
	return strings.Join(jobs, " ")
}

func TestSort(t *testing.T) {
	f := newFilledAgent(t)
	f.allocs[0].TaskStates["nginx"].StartedAt = started.Add(-time.Hour)
	s := startSession(t, f, 100, 24)
	s.waitFor("10 MiB") // both jobs have samples: api 10 MiB, web 10 MiB
	for _, step := range []struct{ key, title, order string }{
		{"N", "sort: name reversed", "web batch api"},
		{"N", "sort: name", "api batch web"},
		{"S", "sort: state", "batch api web"},
		{"R", "sort: restarts", "api batch web"},
		{"R", "sort: restarts reversed", "web batch api"},
		{"U", "sort: uptime", "web api batch"},
		{"C", "sort: cpu", "api web batch"},
		{"M", "sort: memory", "api web batch"},
		{"M", "sort: memory reversed", "batch api web"},
	} {
		s.press(step.key)
		s.wait(step.title+" "+step.order, func(screen string) bool {
			return strings.Contains(screen, step.title) && jobOrder(screen) == step.order
		})
	}
}

func TestFilter(t *testing.T) {
	s := startSession(t, newFilledAgent(t), 100, 24)
	s.press("/SIDx")
	s.waitFor("Filter: SIDx_")
	s.waitFor("No row contains this text")
	s.press("\x7f")
	s.wait("side only", func(screen string) bool {
		return jobOrder(screen) == "api" && strings.Contains(screen, "    side") && !strings.Contains(screen, "    server")
	})
	s.press("\r")
	s.waitFor("filter: sid")
	s.press("\x1b")
	s.wait("all jobs", func(screen string) bool { return jobOrder(screen) == "api batch web" })
	s.press("/failed\r")
	s.wait("failed ones", func(screen string) bool { return jobOrder(screen) == "batch" })
	s.press("/\x15web[1]\r") // the name of an allocation, with its tasks
	s.wait("one allocation", func(screen string) bool {
		return strings.Contains(screen, "web[1]") && !strings.Contains(screen, "web[0]") && strings.Contains(screen, "nginx")
	})
}

func TestShowEnded(t *testing.T) {
	s := startSession(t, newFilledAgent(t), 100, 24)
	s.waitGone("00000009")
	s.press("a")
	s.waitFor("web[1] 00000009")
	s.press("a")
	s.waitGone("00000009")
}

func TestHelp(t *testing.T) {
	s := startSession(t, newFilledAgent(t), 80, 30)
	s.press("?")
	s.waitFor("Ctrl-Z  suspend")
	s.compareGolden("help")
	s.press("q")
	s.waitFor("MEMORY")
}

func TestLogs(t *testing.T) {
	f := newFilledAgent(t)
	var many strings.Builder
	for i := range 40 {
		fmt.Fprintf(&many, "line %d\n", i)
	}
	f.logs["server.stdout"] = many.String() + "\x1b[2J\tafter " + hostileText + "tab\n" + strings.Repeat("\t", 20) + "end\n"
	f.logs["side.stderr"] = "an error \x1b[31mred\n"
	s := startSession(t, f, 60, 20)
	s.press("l")
	s.waitFor("Select a task")
	s.press("jl")
	s.waitFor("Select a task: the allocation has 2")
	s.press("jl")
	s.waitFor("Output of task server of allocation 00000001")
	s.waitFor("        after ev")
	s.press("g")
	s.waitFor("line 0\n")
	s.press("\x1b[6~")
	s.waitFor("line 20\n")
	s.press("G")
	s.waitGone("line 20\n")
	s.press("q")
	s.waitFor("MEMORY")
	s.waitSelected("server")
	s.press("jl")
	s.waitFor("an error red")
}

func TestTimeline(t *testing.T) {
	f := newFilledAgent(t)
	f.timeline = `{"AllocID":"00000001-x","Spans":[{"Kind":"driver","Task":"server","Name":"StartTask\u001b[2J","Plugin":"raw_exec","Start":"2026-01-01T00:00:00Z","End":"2026-01-01T00:00:01Z"}]}`
	s := startSession(t, f, 100, 20)
	s.press("t")
	s.waitFor("a job has no time line")
	s.press("jt")
	s.waitFor("0s     1s        server  driver  StartTask  raw_exec")
	s.press("\x1b")
	s.waitFor("MEMORY")
	f.setRefuse(true)
	s.press("t")
	s.waitFor("read the time line of allocation")
}

func TestRestart(t *testing.T) {
	f := newFilledAgent(t)
	s := startSession(t, f, 100, 20)
	s.press("r")
	s.waitFor("nomad-lite job restart api")
	s.press("jr")
	s.waitFor("Restart allocation 00000001? [y/N] ")
	s.press("n")
	s.waitFor("Nothing was done")
	s.press("ry")
	s.waitFor("restart allocation 00000001: done")
	s.press("jr")
	s.waitFor("Restart task server of allocation 00000001? [y/N] ")
	s.press("y")
	s.waitFor("restart task server of allocation 00000001: done")
	got := f.requested("/restart")
	if len(got) != 2 || !strings.Contains(got[0], `{"TaskName":"","AllTasks":false}`) || !strings.Contains(got[1], `{"TaskName":"server","AllTasks":false}`) {
		t.Errorf("requests %q", got)
	}
}

func TestStop(t *testing.T) {
	f := newFilledAgent(t)
	s := startSession(t, f, 100, 20)
	s.press("jjs")
	s.waitFor("a task is stopped with its allocation")
	s.press("ks")
	s.waitFor("Stop allocation 00000001 of job api? Another takes its place. [y/N]")
	s.press("\r")
	s.waitFor("Nothing was done")
	if got := f.requested("PUT"); got != nil {
		t.Errorf("requests %q without a confirmation", got)
	}
	s.press("sy")
	s.waitFor("stop allocation 00000001: done")
	s.press("jjjjsy") // the allocation of the batch job
	s.waitFor("stop allocation 00000002: done")
	s.press("Gkkkks")
	s.waitFor("Stop job web with all its allocations? [y/N]")
	s.press("y")
	s.waitFor("stop job web: done")
	got := append(f.requested("PUT"), f.requested("DELETE")...)
	if len(got) != 3 || strings.Contains(got[0], "reschedule") || !strings.Contains(got[1], "reschedule=true") || !strings.Contains(got[2], "/v1/job/web?") || strings.Contains(got[2], "purge=true") {
		t.Errorf("requests %q", got)
	}
}

func TestEvents(t *testing.T) {
	f := newFilledAgent(t)
	s := startSession(t, f, 140, 24)
	s.press("jjj") // the task side
	change := &api.Allocation{
		ID: f.allocs[0].ID, Namespace: "default", JobID: "web", TaskGroup: "web", Name: "web.web[1]", ClientStatus: "failed", DesiredStatus: "run", ModifyIndex: 60,
		TaskStates: map[string]*api.TaskState{"nginx": {State: "dead", Failed: true, Restarts: 1, Events: []*api.TaskEvent{{Type: "Driver Failure", DisplayMessage: "no such\x1b[2J image"}}}},
	}
	f.sendEvent(api.TopicAllocation, map[string]any{"Allocation": change})
	s.waitFor("cannot start: no such image")
	change.ModifyIndex, change.ClientStatus = 55, "running" // an old event
	f.sendEvent(api.TopicAllocation, map[string]any{"Allocation": change})
	added := &api.Allocation{ID: "0000000a-0", Namespace: "default", JobID: "new", TaskGroup: "g", Name: "new.g[0]", ClientStatus: "pending", DesiredStatus: "run", ModifyIndex: 61}
	f.sendEvent(api.TopicAllocation, map[string]any{"Allocation": added})
	f.sendEvent(api.TopicJob, map[string]any{"Job": map[string]any{"ID": "new", "Namespace": "default", "Status": "pending", "ModifyIndex": 61, "Type": "service"}})
	s.waitFor("g[0] 0000000a")
	s.wait("the failed allocation", func(screen string) bool { return strings.Contains(screen, "1 running, 1 failed") })
	s.waitSelected("side") // rows that are added do not move the selection
	f.sendEvent(api.TopicJob, map[string]any{"Job": map[string]any{"ID": "batch", "Namespace": "default", "ModifyIndex": 62}, "Deleted": true})
	s.wait("no purged job", func(screen string) bool { return jobOrder(screen) == "api new web" || jobOrder(screen) == "api web" })
	if lists := len(f.requested("/v1/jobs")) - len(f.requested("/v1/jobs/health")) + len(f.requested("/v1/allocations")); lists != 2 {
		t.Errorf("%d requests for lists, want 2", lists)
	}
}

func TestLostAgent(t *testing.T) {
	f := newFilledAgent(t)
	s := startSession(t, f, 100, 24)
	f.sendEvent(api.TopicJob, map[string]any{}) // the stream is open
	f.setRefuse(true)
	f.cut <- struct{}{}
	s.waitFor("AGENT LOST, retrying: ")
	s.waitFor("api[0]") // the last state stays
	s.waitFor("shutting down")
	f.mu.Lock()
	f.jobs, f.allocs = append(f.jobs, newJobStub("later", "running")), f.allocs[:2]
	f.mu.Unlock()
	f.setRefuse(false)
	s.waitGone("AGENT LOST")
	s.wait("the new state", func(screen string) bool {
		return strings.Contains(screen, "later") && strings.Contains(screen, "web[0]") && !strings.Contains(screen, "api[0]")
	})
	f.sendEvent(api.TopicJob, map[string]any{"Job": map[string]any{"ID": "later", "Namespace": "default", "Status": "pending", "ModifyIndex": 70}})
	s.wait("the changed job", func(screen string) bool { return regexp.MustCompile(`(?m)^  later +pending`).MatchString(screen) })
}

func TestKeysThatQuit(t *testing.T) {
	f := newFilledAgent(t)
	for _, keys := range []string{"q", "\x03", "?\x03", "/\x03", "jjsr\x03", "?qq"} {
		t.Run(fmt.Sprintf("%q", keys), func(t *testing.T) {
			s := startSession(t, f, 80, 24)
			s.press(keys)
			select {
			case <-s.hasEnd:
			case <-time.After(10 * time.Second):
				t.Fatalf("the command does not end:\n%s", s.screen())
			}
		})
	}
}

func TestNoColour(t *testing.T) {
	f := newFilledAgent(t)
	for _, noColour := range []string{"", "1"} {
		t.Run("NO_COLOR="+noColour, func(t *testing.T) {
			t.Setenv("NO_COLOR", noColour)
			s := startSession(t, f, 80, 24)
			s.waitFor("exit code 3")
			s.waitSelected("api") // the selection is no colour
			s.mu.Lock()
			defer s.mu.Unlock()
			coloured := slices.ContainsFunc(colourSequence.FindAllString(s.view, -1), func(c string) bool { return c != reverseVideo && c != terminal.ColourReset })
			if coloured != (noColour == "") {
				t.Errorf("coloured: %v", coloured)
			}
		})
	}
}

// fillMany gives the agent 2,000 allocations in 20 jobs.
func fillMany(f *fakeAgent, count int) {
	for i := range count {
		name := fmt.Sprintf("job%02d", i%20)
		if i < 20 {
			f.jobs = append(f.jobs, newJobStub(name, "running"))
		}
		f.allocs = append(f.allocs, newStub(i+1, name, "g", i/20, "task"))
	}
}

// TestOnlyVisibleRowsAreSampled checks that 2,000 allocations are listed once, and that only allocations on the screen are
// measured.
func TestOnlyVisibleRowsAreSampled(t *testing.T) {
	f := newFakeAgent(t)
	fillMany(f, 2000)
	s := startSession(t, f, 100, 23) // twenty rows
	s.waitFor("2000 allocs, 2000 running")
	s.waitFor("400 MiB") // a collapsed job is measured as a whole
	sampled := len(f.requested("/stats"))
	if sampled > maxSampled {
		t.Errorf("%d allocations were measured at once, want %d at most", sampled, maxSampled)
	}
	s.press("\r") // expand job00
	s.wait("samples of the first rows", func(screen string) bool { return strings.Count(screen, "4.0 MiB") > 15 })
	s.press("\x1b[6~\x1b[6~")
	s.waitFor("g[15]")
	s.wait("samples of the next rows", func(screen string) bool { return strings.Count(screen, "4.0 MiB") > 15 })
	if n := len(f.requested("/stats")) - sampled; n > 30 {
		t.Errorf("%d allocations were measured, want the allocations of two screens", n)
	}
}

// BenchmarkDraw draws a screen of 50 rows after a key. The time does not depend on the number of allocations.
func BenchmarkDraw(b *testing.B) {
	for _, count := range []int{20, 2000, 20000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			u := newBenchmarkUI(count)
			for b.Loop() {
				u.tableView.moveSelection(1)
				u.draw(time.Now())
			}
		})
	}
}

// BenchmarkChange draws a screen of 50 rows after a change of an allocation.
func BenchmarkChange(b *testing.B) {
	for _, key := range []sortKey{byName, byMemory} {
		b.Run(sortNames[key], func(b *testing.B) {
			u := newBenchmarkUI(2000)
			u.tableView.sortedBy = key
			for b.Loop() {
				u.tableView.areRowsStale = true
				u.draw(time.Now())
			}
		})
	}
}

func newBenchmarkUI(count int) *ui {
	f := new(fakeAgent)
	fillMany(f, count)
	u := newUI(nil, &cli.Streams{ForceColour: true}, options{usageInterval: time.Second})
	u.width, u.height = 160, 53
	u.replaceJobsAndAllocs(&jobAndAllocLists{jobs: f.jobs, allocs: f.allocs})
	return u
}

func TestGoldenFilesAreUsed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil || len(files) != 4 {
		t.Errorf("%v, %v: want the four golden screens", files, err)
	}
}
