package pages

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// usageSeries is a history of the API.
type usageSeries struct {
	Times    []int64
	CPU      []*float64
	Memory   []*uint64
	Restarts []uint32
}

// highestCPU returns the highest CPU usage until the end of the given time, and the number of samples with a usage after it.
func (s usageSeries) highestCPU(until time.Time) (highest float64, later int) {
	for i, at := range s.Times {
		switch {
		case s.CPU[i] == nil:
		case at > until.UnixMilli():
			later++
		default:
			highest = max(highest, *s.CPU[i])
		}
	}
	return highest, later
}

func readJobUsage(t *testing.T, address, job string) (series usageSeries) {
	t.Helper()
	r, err := http.Get(address + "/v1/job/" + job + "/history?period=15m")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if err := json.NewDecoder(r.Body).Decode(&series); err != nil || r.StatusCode != http.StatusOK {
		t.Fatal(r.Status, err)
	}
	return series
}

// TestUIHistory shows the usage of a task that has ended before any page was opened, and of one that runs while the agent is killed.
// Another agent continues the history.
func TestUIHistory(t *testing.T) {
	slowtest.Skip(t, "waits for samples of ten seconds, and shows pages in a browser")
	t.Parallel()
	s := systemtest.StartPersistentAgent(t, nil, "acl {\n  enabled = false\n}\n")
	address := s.PinHTTPPort()
	scheduler, _, err := s.Operator().SchedulerGetConfiguration(nil)
	if err != nil {
		t.Fatal(err)
	}
	scheduler.SchedulerConfig.MemoryOversubscriptionEnabled = true
	if _, _, err := s.Operator().SchedulerSetConfiguration(scheduler.SchedulerConfig, nil); err != nil {
		t.Fatal(err)
	}
	stop := filepath.Join(t.TempDir(), "stop")
	limits := func(task *api.Task) {
		task.Resources = &api.Resources{CPU: new(100), MemoryMB: new(20), MemoryMaxMB: new(40)}
	}
	s.RunJobUntilStatus("ended", "batch", "running", systemtest.NewRawExecShellTask("burn", "until [ -e "+stop+" ]; do :; done", limits))
	s.RunJobUntilStatus("kept", "service", "running", systemtest.NewRawExecShellTask("burn", "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; sleep 0.1; done", limits))
	s.WaitUntil("both jobs have a sample of their CPU usage", func() (string, bool) {
		ended, _ := readJobUsage(t, address, "ended").highestCPU(time.Now())
		kept, _ := readJobUsage(t, address, "kept").highestCPU(time.Now())
		return fmt.Sprint(ended, kept), ended > 10 && kept > 1
	})
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := s.WaitAllocStatus("ended", "complete")

	killed := time.Now()
	s.SignalAndWait(unix.SIGKILL)
	s.StartAndWaitReady()
	s.WaitUntil("the next agent continues the history", func() (string, bool) {
		before, later := readJobUsage(t, address, "kept").highestCPU(killed)
		return fmt.Sprint(before, later), before > 1 && later > 0
	})
	kept := s.WaitAllocStatus("kept", "running")

	b := systemtest.OpenSharedBrowser(t)
	p := b.OpenTab(address, "/ui/allocations/"+ended.ID+"/burn")
	p.WaitFor(`document.querySelector("[aria-label='Resources of burn'] .chart-line")?.getAttribute("d")`)
	const cpuChart = `document.querySelector(".chart-plot")`
	p.WaitFor(cpuChart + `.getAttribute("aria-label").includes("cpu 100 MHz. The arrow keys read single values.")`)
	p.WaitFor(cpuChart + `.checkVisibility()`) // a page is hidden until it is complete, and nothing in it can have the focus
	systemtest.Eval[chromedp.Void](p, cpuChart+`.focus()`)
	p.PressKeys(kb.Home)
	p.WaitFor(cpuChart + `.querySelector(".chart-cursor").getAttribute("d")`)
	highest := 0.0
	for range 5 { // the task has ended, so that the chart has the values of the history only
		text := systemtest.Eval[string](p, cpuChart+`.getAttribute("aria-valuetext")`)
		var mhz float64
		if _, err := fmt.Sscanf(text, "%f MHz at ", &mhz); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		highest = max(highest, mhz)
		if shown := systemtest.Eval[string](p, `document.querySelector("figcaption strong").textContent`); shown != text {
			t.Errorf("the chart shows %q, and tells screen readers %q", shown, text)
		}
		p.PressKeys(kb.ArrowRight)
	}
	if highest < 10 {
		t.Errorf("the highest usage in the chart of the task that has used a processor is %v MHz", highest)
	}
	if texts := systemtest.Eval[string](p, `[...document.querySelectorAll("figcaption")].map((e) => e.textContent).join("\n")`); !strings.Contains(texts, "memory 20.0 MiB") || !strings.Contains(texts, "memory_max 40.0 MiB") {
		t.Errorf("captions without the limits:\n%s", texts)
	}
	p.ScreenshotIfEnabled("history-task")
	p.OpenPath("/ui/allocations/" + ended.ID)
	p.WaitFor(cpuChart + `?.checkVisibility()`)
	const requests = `performance.getEntriesByType("resource").length`
	if n := systemtest.Eval[int](p, `new Promise((resolve) => { const before = `+requests+`; setTimeout(() => resolve(`+requests+` - before), 5000) })`); n > 1 { // one can be sent already
		t.Errorf("the page of an allocation that has ended sent %d requests in 5 s", n)
	}

	p.OpenPath("/ui/allocations/" + kept.ID)
	p.WaitFor(`[...document.querySelectorAll(".chart-line")].some((l) => (l.getAttribute("d") ?? "").includes("M"))`)
	p.WaitFor(`document.querySelector(".chart-limit").getAttribute("d") !== null`)
	p.ScreenshotIfEnabled("history-allocation")
	p.CheckFitsPhone("history-phone-allocation")

	p.OpenPath("/ui/jobs/kept")
	p.WaitFor(cpuChart + `?.getAttribute("aria-label").includes("highest")`)
	p.WaitFor(`document.querySelectorAll(".chart-times span").length >= 3`)
	box := systemtest.Eval[[]float64](p, `(() => { const e = `+cpuChart+`; e.scrollIntoView({ block: "center" }); const r = e.getBoundingClientRect(); return [r.left, r.top, r.height] })()`)
	if _, err := chromedp.Call(p.Ctx, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: chromedp.MouseMoved, X: box[0] + 2, Y: box[1] + box[2]/2}); err != nil {
		t.Fatal(err)
	}
	p.WaitFor(`document.querySelector("figcaption strong").textContent.includes(" at ")`)
	p.ScreenshotIfEnabled("history-job")
	p.SelectOption("[aria-label='Period of the charts']", "6h")
	p.WaitFor(cpuChart + `.getAttribute("aria-label").includes("highest")`)

	p.OpenPath("/ui/jobs")
	p.WaitFor(`document.querySelector("tr[data-key='default/kept'] .sparkline path")?.getAttribute("d")`)
	p.WaitText("tr[data-key='default/kept'] td.usage", "MHz")
	p.WaitText("tr[data-key='default/kept'] td.usage", "iB")
	p.ScreenshotIfEnabled("history-jobs")
	p.CheckFitsPhone("history-phone-jobs")

	p.OpenPath("/ui/clients")
	p.WaitFor(`[...document.querySelectorAll(".chart-line")].filter((l) => l.getAttribute("d")?.includes("M")).length >= 3`) // CPU, memory and disk
	p.PreferDarkColours()
	p.ScreenshotIfEnabled("history-node-dark")
}
