package systemtest

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/hashicorp/nomad/api"
)

// openPages is the number of pages with which the memory of the agent is measured. Each has a blocking query, and a
// browser opens six connections to a host.
const openPages = 5

// BenchmarkUILoad measures the first load of the list of jobs without a cache, beside the load of one static file of
// the agent, the memory of the agent with open pages, and how fast the page of events follows registrations.
func BenchmarkUILoad(b *testing.B) {
	s := startTestAgent(b, false)
	s.run("web", "service", "running", newShellTask("main", sleepForeverScript))
	browser := startBrowser(b)
	p := browser.openTab(s.address, "/ui/jobs", "favicon.ico")
	if _, err := chromedp.Call(p.ctx, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true}); err != nil {
		b.Fatal(err)
	}
	var page, floor float64
	loads := 0
	for b.Loop() {
		p.open("/ui/jobs")
		p.waitText("td", "web")
		page += eval[float64](p, `performance.getEntriesByType("resource").find((e) => e.name.includes("/v1/jobs")).responseEnd`)
		p.open("/ui/static/style.css")
		floor += eval[float64](p, `performance.getEntriesByType("navigation")[0].responseEnd`)
		loads++
	}
	b.ReportMetric(page/float64(loads), "page-ms")
	b.ReportMetric(floor/float64(loads), "static-file-ms")

	before := s.agentRSS()
	for range openPages {
		tab := browser.openTab(s.address, "/ui/jobs")
		tab.waitText("td", "web")
	}
	b.ReportMetric(float64(s.agentRSS()-before)/openPages, "agent-KiB/page")

	p.open("/ui/events")
	p.waitText("td", "JobRegistered")
	const registrations = 200
	start := eval[float64](p, "performance.now()")
	var index uint64
	for i := range registrations {
		group := api.NewTaskGroup("g", 0)
		group.AddTask(newShellTask("main", "exit 0"))
		job := api.NewServiceJob("many"+strconv.Itoa(i), "many", api.GlobalRegion, 50)
		job.AddTaskGroup(group)
		reply, _, err := s.Jobs().Register(job, nil)
		if err != nil {
			b.Fatal(err)
		}
		index = reply.JobModifyIndex
	}
	p.waitFor(fmt.Sprintf(`Number(document.querySelector("tbody tr td:last-child").textContent) >= %d`, index))
	seconds := (eval[float64](p, "performance.now()") - start) / 1000
	b.ReportMetric(registrations/seconds, "registrations/s")
}

var rssPattern = regexp.MustCompile(`VmRSS:\s+(\d+) kB`)

// agentRSS returns the resident memory of the agent in KiB.
func (s *testAgent) agentRSS() int {
	s.t.Helper()
	for pid, command := range scriptProcesses(s.workDir) {
		if !strings.Contains(command, "nomad-lite agent -dev") {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		found := rssPattern.FindSubmatch(status)
		if err != nil || found == nil {
			s.t.Fatalf("memory of the agent: %v", err)
		}
		rss, err := strconv.Atoi(string(found[1]))
		if err != nil {
			s.t.Fatal(err)
		}
		return rss
	}
	s.t.Fatal("no process of the agent was found")
	return 0
}
