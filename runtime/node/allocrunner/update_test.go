package allocrunner

import (
	"context"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// newTestUpdater returns the updates of an allocation without tasks, whose version is 1. calls counts the
// calls of the Update hooks, stops counts the requests to stop the allocation.
func newTestUpdater() (u *allocUpdater, calls, stops *int) {
	r := new(Runner)
	r.alloc.Store(allocVersion(1, api.AllocDesiredStatusRun))
	calls, stops = new(int), new(int)
	return &allocUpdater{
		currentAlloc: &r.alloc, callUpdateHooks: func(context.Context) { *calls++ }, requestStop: func() { *stops++ }, logger: nullLogger,
		nextAllocReceived: make(chan struct{}, 1), stopVersionReceived: make(chan struct{}),
	}, calls, stops
}

func allocVersion(index uint64, desired string) *api.Allocation {
	return &api.Allocation{
		AllocModifyIndex: index, TaskGroup: "g", DesiredStatus: desired,
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g")}}},
	}
}

func TestNewestVersionIsApplied(t *testing.T) {
	u, calls, _ := newTestUpdater()
	for _, index := range []uint64{2, 4, 3} {
		u.putNextAlloc(allocVersion(index, api.AllocDesiredStatusRun))
	}
	wantEqual(t, "one tick", len(u.nextAllocReceived), 1)
	u.applyNextAlloc(t.Context())
	u.applyNextAlloc(t.Context())
	wantEqual(t, "version and calls of the hooks", []any{u.currentAlloc.Load().AllocModifyIndex, *calls}, "[4 1]")
	u.putNextAlloc(allocVersion(3, api.AllocDesiredStatusRun))
	u.applyNextAlloc(t.Context())
	wantEqual(t, "after an older version", []any{u.currentAlloc.Load().AllocModifyIndex, *calls}, "[4 1]")
}

func TestVersionWithoutTheGroupIsIgnored(t *testing.T) {
	u, calls, _ := newTestUpdater()
	renamed := allocVersion(2, api.AllocDesiredStatusRun)
	renamed.TaskGroup = "other"
	u.putNextAlloc(renamed)
	u.applyNextAlloc(t.Context())
	wantEqual(t, "version and calls of the hooks", []any{u.currentAlloc.Load().AllocModifyIndex, *calls}, "[1 0]")
}

func TestVersionThatStopsIsAnnounced(t *testing.T) {
	u, calls, stops := newTestUpdater()
	wantEqual(t, "announced", wait.IsClosed(u.stopVersionReceived), false)
	u.putNextAlloc(allocVersion(2, api.AllocDesiredStatusStop))
	wantEqual(t, "announced before it is applied", []any{wait.IsClosed(u.stopVersionReceived), *stops}, "[true 0]")
	u.applyNextAlloc(t.Context())
	wantEqual(t, "stops and calls of the hooks", []any{*stops, *calls}, "[1 0]")
	u.putNextAlloc(allocVersion(3, api.AllocDesiredStatusStop))
	u.applyNextAlloc(t.Context())
	wantEqual(t, "stops after another such version", *stops, 1)
}
