package bench

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// BenchmarkUILoad measures the first load of the list of jobs without a cache, the memory of the agent with open
// pages, and how fast the page of events follows registrations.
func BenchmarkUILoad(b *testing.B) {
	a := startBenchAgent(b, b.TempDir(), "acl { enabled = false }\nenable_debug = true\n")
	a.run(b, "service", "web", 1, "/bin/sleep", "1000")
	a.waitStatus(b, "web", 1, api.AllocClientStatusRunning)
	address := a.pageAddress(b)
	browsers := []*systemtest.Browser{systemtest.StartDedicatedChromium(b), systemtest.StartDedicatedChromium(b)}
	a.measurePageMemory(b, browsers, address)
	p := browsers[0].OpenTab(address, floorFile, "favicon.ico")
	p.InstallJobShownTimer("web")
	load := func(row string) {
		p.OpenPath("/ui/jobs")
		p.WaitFor("window.jobShownAt")
		shown := systemtest.Eval[float64](p, "window.jobShownAt")
		weight := systemtest.Eval[float64](p, pageWeight)
		p.OpenPath(floorFile)
		addBenchSample(b, row, shown, systemtest.Eval[float64](p, `performance.getEntriesByType("navigation")[0].responseEnd`))
		addBenchSample(b, "page weight", weight/1000, missingBaselineValue)
	}
	for b.Loop() {
		load("page")
	}
	for i := range sized(1000) - 1 {
		a.registerIdleJob(b, fmt.Sprintf("x%d", i)) // after "web", which the timer waits for
	}
	for range max(b.N, 5) {
		load("page of 1,000")
	}
	a.measureChangeRates(b, p)
	a.stopJob(b, "web", 1)
	a.end(b, syscall.SIGINT)
}

// floorFile is a static file that is about as large as all files of the list of jobs together: 67 kB.
const floorFile = "/ui/static/vendor/xterm/xterm.js"

// pageWeight is the number of bytes of all files that the browser has loaded for a page, as they are transferred.
const pageWeight = `[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
	.filter((e) => new URL(e.name).pathname.startsWith("/ui/")).reduce((sum, e) => sum + e.encodedBodySize, 0)`

// pageAddress returns the http address of the agent.
func (a *benchAgent) pageAddress(b *testing.B) string {
	b.Helper()
	return "http://" + a.node(b).Attributes["unique.advertise.address"]
}

// measurePageMemory measures the memory of the agent with ten open lists of jobs minus none. Each holds a connection,
// and a browser opens six connections to a host, so that two browsers are needed.
func (a *benchAgent) measurePageMemory(b *testing.B, browsers []*systemtest.Browser, address string) {
	b.Helper()
	const pagesOfBrowser = 5
	before := a.liveMemory(b)
	var opened []*systemtest.WebPage
	for _, browser := range browsers {
		for range pagesOfBrowser {
			tab := browser.OpenTab(address, "/ui/jobs", "favicon.ico")
			tab.WaitText("td", "web")
			opened = append(opened, tab)
		}
	}
	a.waitBlockingQueries(b, len(opened))
	addBenchSample(b, "page memory", (a.liveMemory(b)-before)/1000, missingBaselineValue)
	const idleTime = 20 * time.Second
	cpu := processCPUTime(b, a.Process.Pid)
	settle(idleTime)
	addBenchSample(b, "page CPU", (processCPUTime(b, a.Process.Pid)-cpu).Seconds()/idleTime.Seconds()*100, missingBaselineValue)
	for _, tab := range opened {
		tab.ShowEmptyPage()
	}
}

// waitBlockingQueries waits until the agent has a number of blocking queries in progress.
func (a *benchAgent) waitBlockingQueries(b *testing.B, want int) {
	b.Helper()
	for deadline := time.Now().Add(systemtest.PageTimeout); ; time.Sleep(20 * time.Millisecond) {
		stacks, err := a.client.Agent().Lookup("goroutine", api.PprofOptions{Debug: 2}, nil)
		if err != nil {
			b.Fatal(err)
		}
		count := bytes.Count(stacks, []byte("httpapi.(*request).blockingListQuery("))
		if count == want {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("the agent has %d blocking queries, want %d", count, want)
		}
	}
}

var liveMemoryPattern = regexp.MustCompile(`(?m)^# (?:HeapAlloc|Stack) = (\d+)`)

// liveMemory returns the bytes of the heap and the stacks of the agent after a garbage collection. The memory of the
// process varies more than open pages add.
func (a *benchAgent) liveMemory(b *testing.B) (sum float64) {
	b.Helper()
	var text []byte
	for range 2 { // memory in a sync.Pool is freed by the second collection
		var err error
		if text, err = a.client.Agent().Lookup("heap", api.PprofOptions{GC: 1, Debug: 1}, nil); err != nil {
			b.Fatal(err)
		}
	}
	found := liveMemoryPattern.FindAllSubmatch(text, -1)
	if len(found) != 2 {
		b.Fatalf("the profile has %d sizes, want the sizes of the heap and of the stacks", len(found))
	}
	for _, size := range found {
		bytes, err := strconv.Atoi(string(size[1]))
		if err != nil {
			b.Fatal(err)
		}
		sum += float64(bytes)
	}
	return sum
}

// shownChange is a change of the state as a client has received it, with all its events.
type shownChange struct {
	Index uint64
	Time  float64 // milliseconds since 1970
}

// changeRate returns how many changes there are with an index in (first, last], and their number per second since began.
func changeRate(changes []shownChange, first, last uint64, began time.Time) (count int, rate float64) {
	var end float64
	for _, e := range changes {
		if e.Index > first && e.Index <= last {
			count, end = count+1, max(end, e.Time)
		}
	}
	return count, float64(count) / (end - unixMilliseconds(began)) * 1000
}

func unixMilliseconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1000 }

// measureChangeRates measures how many changes per second are shown on the page of events, and received by a Go client,
// while jobs are registered.
func (a *benchAgent) measureChangeRates(b *testing.B, p *systemtest.WebPage) {
	b.Helper()
	const clients, registrations = 4, 100 // registrations of each client
	p.OpenPath("/ui/events")
	p.WaitFor(`document.querySelector("tbody")`)
	systemtest.Eval[chromedp.Void](p, `{
		window.shown = [];
		const observer = new MutationObserver((changes) => {
			const Time = performance.timeOrigin + performance.now();
			for (const row of changes.flatMap((change) => [...change.addedNodes])) {
				window.shown.push({ Index: Number(row.querySelector("summary").title.replace("index ", "")), Time });
			}
		});
		observer.observe(document.querySelector("tbody"), { childList: true });
	}`)
	waitShown := func(index uint64) {
		p.WaitFor(fmt.Sprintf("window.shown.some(({ Index }) => Index >= %d)", index))
	}
	first := a.registerIdleJob(b, "first")
	waitShown(first) // the page is connected
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	stream, err := a.client.EventStream().Stream(ctx, map[api.Topic][]string{"*": {"*"}}, first, nil)
	if err != nil {
		b.Fatal(err)
	}

	began := time.Now()
	last := make(chan uint64, 1)
	go func() {
		var registering sync.WaitGroup
		for client := range clients {
			registering.Go(func() {
				for i := range registrations {
					a.registerIdleJob(b, fmt.Sprintf("idle-%d-%d", client, i))
				}
			})
		}
		registering.Wait()
		last <- a.registerIdleJob(b, "last")
	}()
	changes, end := receiveChanges(b, stream, last)
	waitShown(end)
	received, receivedRate := changeRate(changes, first, end, began)
	shown, shownRate := changeRate(systemtest.Eval[[]shownChange](p, "window.shown"), first, end, began)
	if shown != received {
		b.Errorf("the page has shown %d changes, and a client has received %d", shown, received)
	}
	addBenchSample(b, "page events", shownRate, receivedRate)
	p.ShowEmptyPage()
}

// receiveChanges receives changes up to the index that last delivers, and returns them and that index.
func receiveChanges(b *testing.B, stream <-chan *api.Events, last <-chan uint64) (changes []shownChange, end uint64) {
	b.Helper()
	timeout := time.After(systemtest.MeasurementTimeout)
	for newest := uint64(0); end == 0 || newest < end; {
		select {
		case end = <-last:
		case message := <-stream:
			if message.Err != nil {
				b.Fatal(message.Err)
			}
			newest = max(newest, message.Index)
			if len(message.Events) > 0 {
				changes = append(changes, shownChange{message.Index, unixMilliseconds(time.Now())})
			}
		case <-timeout:
			b.Fatalf("after %v the event %d was not received", systemtest.MeasurementTimeout, end)
		}
	}
	return changes, end
}

// registerIdleJob registers a job without allocations, and returns the index of the registration. It may be called in
// any goroutine.
func (a *benchAgent) registerIdleJob(b *testing.B, id string) uint64 {
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50)
	job.AddTaskGroup(api.NewTaskGroup("g", 0).AddTask(api.NewTask("t", "raw_exec").SetConfig("command", "/bin/true")))
	reply, _, err := a.client.Jobs().Register(job, nil)
	if err != nil {
		b.Error(err)
		return 0
	}
	return reply.JobModifyIndex
}
