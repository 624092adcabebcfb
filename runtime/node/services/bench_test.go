package services

import (
	"net"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
)

// BenchmarkCheckRun measures one check run over the loopback, including result handling. The server runs in the same process and
// is included.
func BenchmarkCheckRun(b *testing.B) {
	server := httptest.NewServer(statusHandler(200, ""))
	defer server.Close()
	for _, kind := range []string{"tcp", "http"} {
		b.Run(kind, func(b *testing.B) {
			c := &checkRunner{allocID: testAllocID, logger: hclog.NewNullLogger(), dial: new(net.Dialer).DialContext, resultsChanged: make(chan struct{}), statusesChanged: make(chan struct{})}
			check := Check{Name: "c", Type: kind, Path: "/", Interval: time.Hour, Timeout: time.Second}
			c.startAndStopChecksToMatch([]resolvedCheck{{checkID: "x", check: check, hostPort: server.Listener.Addr().String()}}, func(string) bool { return true })
			defer c.stopAndWait(true)
			o := c.runningCheckByID["x"]
			run := o.target.newProbe(c.dial, nil)
			before := processCPUTime()
			for b.Loop() {
				began := time.Now()
				if found := run(b.Context()); found.status != model.CheckSuccess || !c.recordOutcomeIfCurrent(o, began, found) {
					b.Fatal(found)
				}
			}
			// The metric is the share of one processor used by 100 runs per second.
			b.ReportMetric(float64(processCPUTime()-before)/float64(b.N)*100/float64(time.Second)*100, "%cpu@100/s")
		})
	}
}

func processCPUTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkIdleChecks measures a check's memory between two runs.
func BenchmarkIdleChecks(b *testing.B) {
	const n = 1000
	spec := testSpec()
	for range n {
		s := testService(core.GroupWorkload, httpCheck("c", "/", time.Hour))
		s.Name += string(rune('a'+len(spec.Services)/26%26)) + string(rune('a'+len(spec.Services)%26)) + string(rune('a'+len(spec.Services)/676))
		spec.Services = append(spec.Services, s)
	}
	var idleSets []*AllocServices
	before := heapBytes()
	for b.Loop() {
		s := New(Config{
			AllocID:     testAllocID,
			CurrentSpec: func() *AllocServicesSpec { return spec },
			CurrentEnv: func(string) *taskenv.Env {
				return taskenv.NewBuilder(taskenv.Node{}, taskenv.Alloc{}, taskenv.Task{}).Build()
			},
			Registry: new(servicestest.Registry),
			Logger:   hclog.NewNullLogger(),
		})
		s.StartChecks()
		idleSets = append(idleSets, s)
	}
	if list, _, _ := idleSets[0].CheckResults(); len(list) != n {
		b.Fatalf("%d checks", len(list))
	}
	time.Sleep(100 * time.Millisecond) // waits until all observers block
	b.ReportMetric(float64(heapBytes()-before)/float64(len(idleSets)*n), "B/check")
	for _, s := range idleSets {
		s.StopChecks(true)
	}
}

func heapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
