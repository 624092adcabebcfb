package httpapi

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nomad-lite/nomad-lite/runtime/agent/history"
)

// appendUsage records a sample of the task "t" of an allocation of a job, of its shared files, and of the node.
func appendUsage(t *testing.T, f *fixture, at time.Time, allocID, job string, mhz float32) {
	t.Helper()
	key := history.JobKey("default", job)
	if err := f.config.History.(fileHistory).Append(at, []history.Entry{
		{Key: history.TaskKey(allocID, "t"), Job: key, CPUMHz: mhz, MemoryKiB: 2, DiskKiB: 3, Restarts: 1},
		{Key: history.TaskKey(allocID, ""), Job: key, CPUMHz: -1, MemoryKiB: history.UnknownSize, DiskKiB: 4},
		{Key: history.NodeKey, CPUMHz: 1000, MemoryKiB: 5, DiskKiB: 6},
	}); err != nil {
		t.Fatal(err)
	}
}

func readJSON[T any](t *testing.T, f *fixture, path string) (value T) {
	t.Helper()
	r := f.send("GET", path, nil)
	text := bodyText(r)
	if r.StatusCode != 200 {
		t.Fatalf("%s: %d %s", path, r.StatusCode, text)
	}
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func checkSeries(t *testing.T, name string, s *history.Series, mhz float64, memory, disk uint64, restarts uint32) {
	t.Helper()
	if s == nil || len(s.Times) != 1 || len(s.CPU) != 1 || len(s.Memory) != 1 || len(s.Disk) != 1 || len(s.Restarts) != 1 {
		t.Errorf("%s: %+v", name, s)
		return
	}
	if *s.CPU[0] != mhz || *s.Memory[0] != memory || *s.Disk[0] != disk || s.Restarts[0] != restarts {
		t.Errorf("%s: %v MHz, %d bytes of memory, %d of the disk, %d restarts", name, *s.CPU[0], *s.Memory[0], *s.Disk[0], s.Restarts[0])
	}
}

func TestHistory(t *testing.T) {
	f := newFixture(t, nil)
	f.putJob(t, "web")
	f.putJob(t, "idle")
	id := f.putAlloc(t, "web")
	appendUsage(t, f, time.Now().Add(-time.Second), id, "web", 100)

	alloc := readJSON[allocHistory](t, f, "/v1/client/allocation/"+id+"/history")
	checkSeries(t, "task", alloc.Tasks["t"], 100, 2<<10, 3<<10, 1)
	checkSeries(t, "allocation", alloc.Allocation, 100, 2<<10, 7<<10, 1)
	if len(alloc.Tasks) != 1 {
		t.Errorf("tasks %v", alloc.Tasks)
	}
	job := readJSON[history.Series](t, f, "/v1/job/web/history?period=15m")
	checkSeries(t, "job", &job, 100, 2<<10, 7<<10, 1)
	if job.Interval != history.Interval {
		t.Errorf("interval of a short period: %v", job.Interval)
	}
	node := readJSON[history.Series](t, f, "/v1/client/history")
	checkSeries(t, "node", &node, 1000, 5<<10, 6<<10, 0)
	if idle := readJSON[history.Series](t, f, "/v1/job/idle/history"); len(idle.Times) != 0 || idle.CPU == nil {
		t.Errorf("job without tasks: %+v", idle)
	}

	jobs := readJSON[jobHistories](t, f, "/v1/jobs/history")
	if len(jobs.Jobs) != 1 || jobs.Jobs[0].ID != "web" || jobs.Jobs[0].Namespace != "default" {
		t.Fatalf("jobs %+v", jobs)
	}
	web, values := jobs.Jobs[0], 0
	for i := range jobs.Times {
		if web.CPU[i] != nil {
			values++
			if *web.CPU[i] != 100 || *web.Memory[i] != 2<<10 {
				t.Errorf("%v MHz, %d bytes", *web.CPU[i], *web.Memory[i])
			}
		}
	}
	if values != 1 || len(web.CPU) != len(jobs.Times) || len(web.Memory) != len(jobs.Times) || len(jobs.Times) > maxListedHistorySteps {
		t.Errorf("%d values in %d steps: %+v", values, len(jobs.Times), web)
	}
	if other := readJSON[jobHistories](t, f, "/v1/jobs/history?namespace=other"); len(other.Jobs) != 0 {
		t.Errorf("jobs of another namespace: %+v", other)
	}

	f.runRequests(t, []requestCase{
		{"unknown job", "GET", "/v1/job/none/history", "", 404, "job not found"},
		{"job of another namespace", "GET", "/v1/job/web/history?namespace=other", "", 404, "job not found"},
		{"unknown allocation", "GET", "/v1/client/allocation/c0ffee00-0000-4000-8000-000000000000/history", "", 404, "…Unknown allocation"},
		{"no duration", "GET", "/v1/client/history?period=1", "", 400, "…must be a positive duration, such as 1h"},
		{"negative duration", "GET", "/v1/job/web/history?period=-1h", "", 400, "…must be a positive duration, such as 1h"},
		{"another node", "GET", "/v1/client/history?node_id=c0ffee00", "", 404, "…Unknown node"},
	})
}

// A period that is longer than the retention is shortened.
func TestHistoryPeriodHasLimit(t *testing.T) {
	f := newFixture(t, nil)
	longest, usual := readJSON[history.Series](t, f, "/v1/client/history?period=9999h"), readJSON[history.Series](t, f, "/v1/client/history")
	if longest.Interval != usual.Interval || longest.Interval < history.Interval {
		t.Errorf("intervals %v and %v", longest.Interval, usual.Interval)
	}
}
