package allocrunner

import (
	"context"
	"fmt"
	"testing"

	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
)

// BenchmarkNoOpAlloc measures what an allocation with one task costs without the driver: directories, hooks,
// environment, events.
func BenchmarkNoOpAlloc(b *testing.B) {
	job := parseJob(b, job("batch", `task "web" {
		driver = "fake"
		config { run_for = "0s" }
	}`))
	root := b.TempDir() + "/allocs"
	w := newFakeDrivers()
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		alloc := newAllocation(job)
		alloc.ID = fmt.Sprintf("%08d-2222-3333-4444-555555555555", n)
		n++
		c := testConfig{Config{
			Alloc: alloc, Node: taskenv.Node{NodeFacts: model.NodeFacts{ID: "node-id", Name: "node-name"}}, Drivers: w, EncodeTaskConfig: block.EncodeConfig, ReportStatus: func(model.AllocReport) {}, Logger: nullLogger,
		}, machineConfig{LogCollector: newFakeLogs(), Services: new(servicestest.Registry), AllocDirRoot: root}}
		r, err := New(c.withMachine())
		if err != nil {
			b.Fatal(err)
		}
		r.Run(context.Background())
		if r.Status().ClientStatus != "complete" {
			b.Fatal(r.Status().ClientDescription)
		}
		if err := r.Destroy(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
