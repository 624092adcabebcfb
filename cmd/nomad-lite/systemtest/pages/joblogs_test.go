package pages

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// jobLogLine is a line of the output of a job, as the API returns it.
type jobLogLine struct {
	Time                          int64
	AllocName, Task, Stream, Text string
	Position                      string
	IsPartial, AfterGap           bool
}

// readJobLog returns the lines that the agent finds in the output of a job.
func readJobLog(t *testing.T, address, job string, query url.Values) (lines []jobLogLine) {
	t.Helper()
	r, err := http.Get(address + "/v1/job/" + job + "/logs?" + query.Encode())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	frames := bufio.NewScanner(r.Body)
	frames.Buffer(nil, 10<<20)
	isComplete := false
	for frames.Scan() {
		var frame struct {
			Lines    []jobLogLine
			Progress *struct{ IsComplete bool }
			Error    string
		}
		if err := json.Unmarshal(frames.Bytes(), &frame); err != nil || frame.Error != "" {
			t.Fatalf("%v: %s", err, frames.Text())
		}
		lines = append(lines, frame.Lines...)
		isComplete = isComplete || frame.Progress != nil && frame.Progress.IsComplete
	}
	if frames.Err() != nil || r.StatusCode != http.StatusOK || !isComplete {
		t.Fatalf("%s, %v, complete %v", r.Status, frames.Err(), isComplete)
	}
	return lines
}

// counterLines is the number of lines of each of the counters of TestUIJobLogs: several log files of a megabyte.
const counterLines = 30_000

func newCounterJob(id string) *api.Job {
	// Both allocations write at the same time, so that their lines are interleaved.
	count := fmt.Sprintf(`seq -f "$NOMAD_ALLOC_INDEX counts to line %%.0f %s" %d; `, strings.Repeat("=", 80), counterLines)
	main := systemtest.NewRawExecShellTask("main", count+`echo 'plain <b>bold</b>'; echo '{"level":"error","msg":"it <i>failed</i>","code":7,"list":["a"]}'; trap 'echo later' USR1; `+systemtest.SleepForeverScript, func(task *api.Task) {
		task.LogConfig = &api.LogConfig{MaxFiles: new(10), MaxFileSizeMB: new(1)}
	})
	side := systemtest.NewRawExecShellTask("side", `echo "complaint of $NOMAD_ALLOC_INDEX" >&2; `+systemtest.SleepForeverScript)
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50)
	return job.AddTaskGroup(api.NewTaskGroup("count", 2).AddTask(main).AddTask(side))
}

// TestUIJobLogs searches the output of counters in rotated files, and shows it on the page of their job.
func TestUIJobLogs(t *testing.T) {
	slowtest.Skip(t, "writes several megabytes of output, and shows pages in a browser")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	u := &uiJobsTest{TestAgent: s, t: t, browser: systemtest.OpenSharedBrowser(t)}
	u.register(newCounterJob("chorus"))
	u.waitRunning("chorus", 2)
	s.WaitUntil("both tasks have counted", func() (string, bool) {
		lines := readJobLog(t, s.Address, "chorus", url.Values{"text": {"it <i>failed"}})
		return fmt.Sprint(lines), len(lines) == 2
	})

	t.Run("search", func(t *testing.T) {
		next := map[string]int{}
		previous := int64(0)
		changes, last := 0, ""
		for _, l := range readJobLog(t, s.Address, "chorus", url.Values{"regexp": {`counts to line \d*[05] =`}}) {
			next[l.AllocName] += 5
			if want := fmt.Sprintf("%s counts to line %d ", strings.Trim(l.AllocName, "chorusnt.[]"), next[l.AllocName]); !strings.HasPrefix(l.Text, want) || l.Task != "main" || l.Stream != "stdout" {
				t.Fatalf("got %+v, want %s", l, want)
			}
			if l.Time < previous {
				t.Fatalf("%+v is earlier than the line before it", l)
			}
			previous = l.Time
			if l.AllocName != last {
				changes, last = changes+1, l.AllocName
			}
		}
		if len(next) != 2 || next["chorus.count[0]"] != counterLines || next["chorus.count[1]"] != counterLines {
			t.Errorf("the last lines are %v", next)
		}
		t.Logf("the lines of the two tasks change %d times", changes)
	})

	p := u.open("/ui/jobs/chorus@default/logs")
	p.WaitText(".line", "it <i>failed</i>")
	p.WaitText(".line", "plain <b>bold</b>")
	p.WaitText(".log-bad", "ERROR")
	p.WaitText(".line strong", "it <i>failed</i>")
	p.WaitFor(`document.querySelectorAll(".line").length === 1000`)
	p.ScreenshotIfEnabled("job-logs")
	p.Click("JSON as fields")
	p.WaitText(".line", `{"level":"error"`)

	// What the page shows is a part of the output; the filter searches all of it.
	const count = `document.querySelectorAll(".line").length`
	p.EnterText("input[type=search]", "LINE 777 ")
	p.WaitFor(count + " === 2")
	p.WaitFor(`[...document.querySelectorAll(".line")].every((e) => e.textContent.includes("counts to line 777 "))`)
	p.WaitFor(`location.search === "?text=LINE+777+"`)
	systemtest.Eval[any](p, `document.querySelector("input[type=search]").value = ""`)
	p.SelectOption("[aria-label='Kind of the filter']", "regexp")
	p.AllowError("400") // on a slow machine, the page also sends what is typed so far
	p.EnterText("input[type=search]", `line \d*00 =+$`)
	p.WaitFor(fmt.Sprintf(`%s === %d`, count, 2*counterLines/100))
	systemtest.Eval[any](p, `document.querySelector("input[type=search]").value = ""`)
	p.EnterText("input[type=search]", "(")
	p.WaitText("main [role=status]", "missing closing )")
	systemtest.Eval[any](p, `document.querySelector("input[type=search]").value = ""`)
	p.SelectOption("[aria-label='Streams']", "stderr")
	p.EnterText("input[type=search]", "complaint")
	p.WaitFor(count + " === 2")
	p.WaitText(".line.stderr", "complaint of 1")

	// The link of a line shows it among the others, also after a reload.
	p.OpenPath("/ui/jobs/chorus@default/logs?task=main&text=" + url.QueryEscape("line 12345 "))
	p.WaitFor(count + " === 2")
	p.WaitFor(`document.querySelector("[aria-label='Task']").value === "main"`)
	systemtest.Eval[any](p, `document.querySelector(".line .time").click()`)
	for range 2 {
		p.WaitText(".line.during", "line 12345 ")
		p.WaitFor(count + " === 1200")
		p.WaitFor(`(() => { const e = document.querySelector(".line.during").getBoundingClientRect(), log = document.querySelector("pre.log").getBoundingClientRect(); return e.top >= log.top && e.bottom <= log.bottom })()`)
		p.OpenPath(systemtest.Eval[string](p, `location.pathname + location.search`))
	}
	p.WaitFor(count + " === 1200")
	p.Click("Later lines")
	p.WaitFor(count + " === 2200")
	p.Click("Earlier lines")
	p.WaitFor(count + " === 3200")
	checkCounters := func(p *systemtest.WebPage) {
		t.Helper()
		if gaps := systemtest.Eval[int](p, `(() => {
			const last = {};
			let gaps = 0;
			for (const e of document.querySelectorAll(".line")) {
				const [, task, line] = /(\d) counts to line (\d+)/.exec(e.textContent) ?? [];
				if (!task) continue;
				if (task in last && Number(line) !== last[task] + 1) gaps++;
				last[task] = Number(line);
			}
			return gaps;
		})()`); gaps != 0 {
			t.Errorf("%d lines are missing, doubled or in the wrong order", gaps)
		}
	}
	checkCounters(p)
	for range 12 {
		first := systemtest.Eval[string](p, `document.querySelector(".line").textContent`)
		p.Click("Earlier lines")
		p.WaitFor(fmt.Sprintf(`document.querySelector(".line").textContent !== %q && !document.querySelector("main button:disabled")`, first))
	}
	if n := systemtest.Eval[int](p, count); n > 12000 {
		t.Errorf("%d lines are on the page", n)
	}
	checkCounters(p)
	lines := readJobLog(t, s.Address, "chorus", url.Values{"text": {"line 20000 "}})
	at := time.UnixMilli(lines[0].Time).UTC()
	p.OpenPath("/ui/jobs/chorus@default/logs")
	p.WaitFor(count + " === 1000")
	systemtest.Eval[any](p, fmt.Sprintf(`(() => {
		const input = document.querySelector("[aria-label='Go to a time']"), time = new Date(%d);
		input.value = new Date(time.getTime() - time.getTimezoneOffset() * 60e3).toISOString().slice(0, 19);
		input.dispatchEvent(new Event("change"));
	})()`, at.UnixMilli()))
	p.WaitFor(fmt.Sprintf(`location.search === "?at=%d"`, at.Truncate(time.Second).UnixMilli()))
	p.WaitFor(`document.querySelector(".line.during")`)
	p.CheckFitsPhone("job-logs-phone")
}

// TestUIJobLogsAreFollowed shows new lines of tasks, of allocations that start later, and those that were written while the page was hidden or
// the agent was away.
func TestUIJobLogsAreFollowed(t *testing.T) {
	slowtest.Skip(t, "shows pages in a browser")
	t.Parallel()
	s := systemtest.StartTestAgent(t, false)
	u := &uiJobsTest{TestAgent: s, t: t, browser: systemtest.OpenSharedBrowser(t)}
	job := newUIJob("duet", 1)
	*job.TaskGroups[0].Tasks[0] = *systemtest.NewRawExecShellTask("main", `echo "hello of $NOMAD_ALLOC_INDEX"; trap 'echo later' USR1; `+systemtest.SleepForeverScript)
	u.register(job)
	u.waitRunning("duet", 1)
	n := newUnreliableNetwork(t, s.Address)
	p := u.browser.OpenTab(n.address, "/ui/jobs/duet@default/logs")
	p.WaitText(".line", "hello of 0")
	p.WaitText("main [role=status]", "New lines appear as they arrive.")
	alloc := s.WaitAllocStatus("duet", "running")
	written := 0
	writeLine := func() {
		t.Helper()
		if err := s.Allocations().Signal(alloc, nil, "main", "SIGUSR1"); err != nil {
			t.Fatal(err)
		}
		written++
		s.WaitUntil("the task has written its line", func() (string, bool) {
			lines := readJobLog(t, s.Address, "duet", url.Values{"regexp": {"^later$"}})
			return fmt.Sprint(lines), len(lines) == written
		})
	}
	const later = `[...document.querySelectorAll(".line")].filter((e) => e.textContent.endsWith("later")).length`
	writeLine()
	p.WaitFor(later + " === 1")
	p.SimulateHidden(true)
	writeLine()
	if n := systemtest.Eval[int](p, `new Promise((resolve) => setTimeout(() => resolve(`+later+`), 1500))`); n != 1 {
		t.Errorf("a hidden tab has followed the output: %d lines", n)
	}
	p.SimulateHidden(false)
	p.WaitFor(later + " === 2")

	p.AllowError("net::ERR")
	n.setCut(true)
	p.WaitFor(`!document.getElementById("connection").hidden`)
	writeLine()
	n.setCut(false)
	p.WaitFor(later + " === 3")
	writeLine()
	p.WaitFor(later + " === 4")

	job.TaskGroups[0].Count = new(2)
	u.register(job)
	p.WaitText(".line", "hello of 1")
	p.EnterText("input[type=search]", "LATER")
	p.WaitFor(`document.querySelectorAll(".line").length === 4`)
	writeLine()
	p.WaitFor(later + " === 5")
	p.Click("follow")
	p.WaitText("main [role=status]", "New lines are not shown.")
	writeLine()
	if n := systemtest.Eval[int](p, `new Promise((resolve) => setTimeout(() => resolve(`+later+`), 1500))`); n != 5 {
		t.Errorf("lines are shown without follow: %d", n)
	}
	p.Click("follow")
	p.WaitFor(later + " === 6")
}
