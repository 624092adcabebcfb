package docker

import (
	"net/http"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/nomad-lite/nomad-lite/sdk/process"
)

// The engine can reply long after it has read the counters, so the usage is computed for the time between its readings.
func TestProcessorUsageIsForTheTimeOfTheCounters(t *testing.T) {
	e := newFakeEngine(t)
	d := newTestDriver(t, e.host, nil)
	_, engine, err := d.currentConfigAndClient()
	if err != nil {
		t.Fatal(err)
	}
	task := &task{engine: newUntypedEngineClient(engine), state: taskState{ContainerID: "c1"}}
	began := time.Unix(1700000000, 0)
	for i, c := range []struct {
		read time.Duration
		used time.Duration
		want float64 // percent of a core
	}{{0, 0, 0}, {2 * time.Second, time.Second, 50}, {3 * time.Second, 2 * time.Second, 100}} {
		e.handle("GET /containers/c1/stats", reply(http.StatusOK, container.StatsResponse{
			Read: began.Add(c.read), CPUStats: container.CPUStats{CPUUsage: container.CPUUsage{TotalUsage: uint64(c.used)}},
		}))
		stats, err := task.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := stats.Total.CPU; got.Percent != c.want || got.TotalTicks != process.TotalTicks(c.want) {
			t.Errorf("sample %d: %v%% and %v MHz, want %v%%", i, got.Percent, got.TotalTicks, c.want)
		}
	}
}
