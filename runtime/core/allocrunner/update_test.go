package allocrunner

import (
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

// newUpdatedTasks returns the tasks for an allocation without tasks and with version 1. updates records Update hook
// calls, stops counts the requests to stop the allocation.
func newUpdatedTasks() (a *allocTasks, updates *recordingHook, stops *int) {
	state := newAllocState(allocVersion(1, api.AllocDesiredStatusRun))
	updates, stops = &recordingHook{name: "hook"}, new(int)
	state.setHooks(hooks.NewChain(hooks.ChainConfig{Logger: nullLogger}, newHookEntries([]hooks.Hook{recordingAllocHook{updates}})))
	state.cancelStopped = func() { *stops++ }
	return &allocTasks{state: state, logger: nullLogger}, updates, stops
}

func allocVersion(index uint64, desired string) *api.Allocation {
	return &api.Allocation{
		AllocModifyIndex: index, TaskGroup: "g", DesiredStatus: desired,
		Job: &api.Job{TaskGroups: []*api.TaskGroup{{Name: new("g")}}},
	}
}

func TestNewestVersionIsApplied(t *testing.T) {
	a, updates, _ := newUpdatedTasks()
	for _, index := range []uint64{2, 4, 3} {
		a.state.putNextAlloc(allocVersion(index, api.AllocDesiredStatusRun))
	}
	apply := func() { a.applyVersionUnlessOlder(t.Context(), <-a.state.nextAlloc, Limits{}) }
	apply()
	wantEqual(t, "more versions", len(a.state.nextAlloc), 0)
	wantEqual(t, "version and calls of the hooks", []any{a.state.currentAlloc().AllocModifyIndex, len(updates.calls())}, "[4 1]")
	a.state.putNextAlloc(allocVersion(3, api.AllocDesiredStatusRun))
	apply()
	wantEqual(t, "after an older version", []any{a.state.currentAlloc().AllocModifyIndex, len(updates.calls())}, "[4 1]")
}

func TestVersionWithoutTheGroupIsIgnored(t *testing.T) {
	a, updates, _ := newUpdatedTasks()
	renamed := allocVersion(2, api.AllocDesiredStatusRun)
	renamed.TaskGroup = "other"
	a.state.putNextAlloc(renamed)
	a.applyVersionUnlessOlder(t.Context(), <-a.state.nextAlloc, Limits{})
	wantEqual(t, "version and calls of the hooks", []any{a.state.currentAlloc().AllocModifyIndex, len(updates.calls())}, "[1 0]")
}

func TestVersionThatStopsIsAnnounced(t *testing.T) {
	a, updates, stops := newUpdatedTasks()
	wantEqual(t, "announced", wait.IsClosed(a.state.stopVersionReceived), false)
	a.state.putNextAlloc(allocVersion(2, api.AllocDesiredStatusStop))
	wantEqual(t, "announced before it is applied", []any{wait.IsClosed(a.state.stopVersionReceived), *stops}, "[true 0]")
	a.applyVersionUnlessOlder(t.Context(), <-a.state.nextAlloc, Limits{})
	wantEqual(t, "stops and calls of the hooks", []any{*stops, len(updates.calls())}, "[1 0]")
	a.state.putNextAlloc(allocVersion(3, api.AllocDesiredStatusStop))
	a.applyVersionUnlessOlder(t.Context(), <-a.state.nextAlloc, Limits{})
	wantEqual(t, "stops after another such version", *stops, 1)
}
