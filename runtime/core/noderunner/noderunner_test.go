package noderunner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/hclspec/block"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/builtinhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/services/servicestest"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func newAssignment(id string, index uint64) Assignment {
	return Assignment{Alloc: &api.Allocation{
		ID: id, JobID: "job", TaskGroup: "g", AllocModifyIndex: index,
		DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusPending,
		Job: &api.Job{ID: new("job"), Name: new("job"), Type: new("batch"), TaskGroups: []*api.TaskGroup{{
			Name:  new("g"),
			Tasks: []*api.Task{{Name: "t", Driver: "none"}},
		}}},
		AllocatedResources: &api.AllocatedResources{Tasks: map[string]*api.AllocatedTaskResources{"t": {}}},
	}}
}

func TestCompareAssignments(t *testing.T) {
	has := func(index uint64, gone bool) *allocEntry {
		return &allocEntry{alloc: &api.Allocation{AllocModifyIndex: index}, runner: new(allocrunner.Runner), entryRemovalStarted: gone}
	}
	stopped := newAssignment("a", 2)
	stopped.Alloc.DesiredStatus = api.AllocDesiredStatusStop
	for _, c := range []struct {
		name                  string
		wanted                []Assignment
		have                  map[string]*allocEntry
		start, update, remove []string
		ending                bool
	}{
		{"what is missing is started", []Assignment{newAssignment("a", 1)}, nil, []string{"a"}, nil, nil, false},
		{"what is the same is left alone", []Assignment{newAssignment("a", 1)}, map[string]*allocEntry{"a": has(1, false)}, nil, nil, nil, false},
		{"what is newer is an update", []Assignment{newAssignment("a", 2)}, map[string]*allocEntry{"a": has(1, false)}, nil, []string{"a"}, nil, false},
		{"what is older is not", []Assignment{newAssignment("a", 1)}, map[string]*allocEntry{"a": has(2, false)}, nil, nil, nil, false},
		{"what is not wanted is removed", nil, map[string]*allocEntry{"a": has(1, false)}, nil, nil, []string{"a"}, true},
		{"but once only", nil, map[string]*allocEntry{"a": has(1, true)}, nil, nil, nil, false},
		{"what is being removed gets no update", []Assignment{newAssignment("a", 2)}, map[string]*allocEntry{"a": has(1, true)}, nil, nil, nil, false},
		{"what has no runner is as it was reported last", []Assignment{newAssignment("a", 1)}, map[string]*allocEntry{"a": {alloc: &api.Allocation{AllocModifyIndex: 1}}}, nil, []string{"a"}, nil, false},
		{"what has to stop ends", []Assignment{stopped}, map[string]*allocEntry{"a": has(1, false)}, nil, []string{"a"}, nil, true},
		{"unless it has ended", []Assignment{stopped}, map[string]*allocEntry{"a": {alloc: &api.Allocation{AllocModifyIndex: 1}}}, nil, []string{"a"}, nil, false},
		{"what restored servers have not given up starts after its removal", []Assignment{newAssignment("a", 2)}, map[string]*allocEntry{"a": {alloc: &api.Allocation{ClientStatus: api.AllocClientStatusLost}}}, nil, nil, []string{"a"}, false},
		{"what has ended is removed", nil, map[string]*allocEntry{"a": {alloc: &api.Allocation{}}}, nil, nil, []string{"a"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := compareAssignments(c.wanted, c.have)
			var startIDs, updateIDs []string
			for _, a := range d.toStart {
				startIDs = append(startIDs, a.Alloc.ID)
			}
			for _, a := range d.allocsToUpdate {
				updateIDs = append(updateIDs, a.ID)
			}
			if !slices.Equal(startIDs, c.start) || !slices.Equal(updateIDs, c.update) || !slices.Equal(d.idsToRemove, c.remove) || d.stopsLiveAlloc != c.ending {
				t.Errorf("start %q update %q remove %q, ending: %t", startIDs, updateIDs, d.idsToRemove, d.stopsLiveAlloc)
			}
		})
	}
}

func TestChooseCandidates(t *testing.T) {
	now := time.Now()
	const notFailed, failed = false, true
	ended := func(id string, age time.Duration, failed bool) gcCandidate {
		return gcCandidate{&allocEntry{id: id, endTime: now.Add(-age)}, failed}
	}
	list := []gcCandidate{
		ended("young", time.Second, notFailed), ended("failed", 3*time.Hour, failed),
		ended("older", 2*time.Hour, notFailed), ended("old", time.Hour, notFailed), ended("failed later", time.Hour, failed),
	}
	g := GCLimits{}.withDefaults()
	for _, c := range []struct {
		name   string
		ended  []gcCandidate
		onDisk int
		usage  diskUsage
		want   string
		reason string
	}{
		{"nothing within the limits", list, 50, diskUsage{80, 70}, "[]", ""},
		{"the oldest of too many, failed or not", list, 53, diskUsage{}, "[failed older]", "53 allocations are on the disk, which is more than gc_max_allocs = 50"},
		{"no more than there are too many", list, 51, diskUsage{99, 99}, "[failed]", "more than gc_max_allocs"},
		{"the oldest that has not failed for a full disk", list, 5, diskUsage{usedBlocksPercent: 81}, "[older]", "disk usage of 81 % is above gc_disk_usage_threshold = 80"},
		{"the same for a lack of inodes", list, 5, diskUsage{usedInodesPercent: 71}, "[older]", "inode usage of 71 % is above gc_inode_usage_threshold = 70"},
		{"one that has ended just now stays", list[:1], 1, diskUsage{99, 99}, "[]", ""},
		{"until it has its age", []gcCandidate{ended("a", g.MinEndedTimeForDiskUsageGC, notFailed)}, 1, diskUsage{99, 99}, "[a]", "disk usage"},
		{"failed ones last, the oldest first", []gcCandidate{list[4], list[1], list[0]}, 3, diskUsage{99, 0}, "[failed]", "disk usage"},
	} {
		t.Run(c.name, func(t *testing.T) {
			chosen, reason := g.chooseAllocsToCollect(slices.Clone(c.ended), c.onDisk, c.usage, now)
			var ids []string
			for _, e := range chosen {
				ids = append(ids, e.id)
			}
			if fmt.Sprint(ids) != c.want || !strings.Contains(reason, c.reason) || (reason == "") != (c.reason == "") {
				t.Errorf("%v, %q; want %s, %q", ids, reason, c.want, c.reason)
			}
		})
	}
}

// fakeSource is an AssignmentSource with a fixed allocation list. It records calls.
type fakeSource struct {
	removalCount atomic.Int32 // number of OnAllocDirRemoved calls

	mu          sync.Mutex
	assignments []Assignment
	changed     chan struct{}
	endErrors   map[string]error
	removedIDs  []string

	collectAtEndIDs []string          // ids for which StoreRemoveDirAtEnd was called
	collectReasons  map[string]string // reasons passed to ReportDirRemoved, by allocation id
}

func (f *fakeSource) Assignments() ([]Assignment, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.assignments, f.changed
}

func (f *fakeSource) ReportStatus(model.AllocReport) {}

func (f *fakeSource) ReportEnded(id string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, twice := f.endErrors[id]; twice {
		err = errors.New("told twice")
	}
	f.endErrors[id] = err
}

func (f *fakeSource) StoreRemoveDirAtEnd(_ context.Context, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.collectAtEndIDs = append(f.collectAtEndIDs, id)
	return nil
}

func (f *fakeSource) requestedCollectIDs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.collectAtEndIDs)
}

func (f *fakeSource) ReportDirRemoved(id, reason string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.collectReasons == nil {
		f.collectReasons = make(map[string]string)
	}
	f.collectReasons[id] = reason
}

func (f *fakeSource) collectReason(id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.collectReasons[id]
}

func (f *fakeSource) ReportAllocRemoved(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removedIDs = append(f.removedIDs, id)
}

// setAssignments replaces the allocation list.
func (f *fakeSource) setAssignments(wanted ...Assignment) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.assignments = wanted
	close(f.changed)
	f.changed = make(chan struct{})
}

// noDrivers has no driver, so every allocation fails at once.
type noDrivers struct{}

func (noDrivers) Driver(context.Context, string) (driver.Driver, error) {
	return nil, errors.New("there is no driver")
}

// failingLogs is a log collector that fails to start.
type failingLogs struct{}

func (failingLogs) Start(context.Context, logs.Task) (string, string, error) {
	return "", "", errors.New("no logs")
}
func (failingLogs) Stop(context.Context, string, string, bool) error                    { return nil }
func (failingLogs) StopCollectionOfEarlierAgent(context.Context, logs.Task, bool) error { return nil }
func (failingLogs) StopUnlessStopped(context.Context, string, string) error             { return nil }

// discardLogs discards task output.
type discardLogs struct{ failingLogs }

func (discardLogs) Start(context.Context, logs.Task) (string, string, error) {
	return os.DevNull, os.DevNull, nil
}

// startRunner runs a Runner with a fakeSource until the test ends.
func startRunner(t *testing.T, gc GCLimits, wanted ...Assignment) (*Runner, *fakeSource, string) {
	t.Helper()
	return startRunnerWith(t, allocrunner.Config{Drivers: noDrivers{}}, failingLogs{}, gc, wanted...)
}

// newMachine returns a machine with its allocation directories below root.
func newMachine(root string, collector builtinhooks.LogCollector) *builtinhooks.Machine {
	return builtinhooks.NewMachine(builtinhooks.MachineConfig{AllocDirRoot: root, LogCollector: collector, Services: new(servicestest.Registry)})
}

// discardStore is a store that keeps no record.
type discardStore struct{}

func (discardStore) PutTaskState(string, string, *api.TaskState, state.Durability) state.WaitDurableFunc {
	return func() error { return nil }
}

func (discardStore) PutTask(string, string, record.Fields, *api.TaskState, state.Durability) state.WaitDurableFunc {
	return func() error { return nil }
}

func (discardStore) TaskHandle(string, string, string) (*driver.Handle, error) { return nil, nil }

func startRunnerWith(t *testing.T, c allocrunner.Config, collector builtinhooks.LogCollector, gc GCLimits, wanted ...Assignment) (*Runner, *fakeSource, string) {
	t.Helper()
	root := t.TempDir()
	source := &fakeSource{assignments: wanted, changed: make(chan struct{}), endErrors: make(map[string]error)}
	for _, a := range wanted {
		if a.AllocEnded {
			if err := os.Mkdir(filepath.Join(root, a.Alloc.ID), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.Store, c.Machine, c.EncodeTaskConfig, c.Logger = discardStore{}, newMachine(root, collector), block.EncodeConfig, hclog.NewNullLogger()
	r := New(Config{
		Source:              source,
		AllocRunnerTemplate: c,
		AllocDirRoot:        root,
		OnAllocDirRemoved:   func() { source.removalCount.Add(1) },
		GCLimits:            gc,
		Logger:              hclog.NewNullLogger(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return r, source, root
}

// eventually polls until the function holds returns true.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what + ": not within a minute")
		}
	}
}

func allocDirNames(t *testing.T, root string) []string {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (f *fakeSource) endError(id string) (err error, yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err, yes = f.endErrors[id]
	return err, yes
}

func endedAssignment(id string, age time.Duration) Assignment {
	a := newAssignment(id, 1)
	a.AllocEnded = true
	a.Alloc.ClientStatus = api.AllocClientStatusComplete
	a.Alloc.ModifyTime = time.Now().Add(-age).UnixNano()
	return a
}

func TestOldestAllocationsAreCollectedFirst(t *testing.T) {
	var wantedAssignments []Assignment
	for i := range 6 {
		wantedAssignments = append(wantedAssignments, endedAssignment(fmt.Sprint("a", i), time.Duration(i)*time.Minute))
	}
	_, _, root := startRunner(t, GCLimits{MaxAllocsOnDisk: 3, MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, wantedAssignments...)
	eventually(t, "three are left", func() bool { return slices.Equal(allocDirNames(t, root), []string{"a0", "a1", "a2"}) })
}

// On a disk filled by other programs, an allocation's directory stays for
// MinEndedTimeForDiskUsageGC after its end. The source then gets the reason for the removal.
func TestDiskUsageSparesRecentlyEndedAllocations(t *testing.T) {
	full := GCLimits{MaxDiskUsagePercent: 1e-9, MaxInodeUsagePercent: 101}
	r, source, root := startRunner(t, full, endedAssignment("old", time.Hour), endedAssignment("young", time.Second))
	eventually(t, "the old one is collected", func() bool { return source.collectReason("old") != "" })
	if reason := source.collectReason("old"); !strings.Contains(reason, "gc_disk_usage_threshold") {
		t.Errorf("reason %q", reason)
	}
	// Another disk check removes nothing.
	r.removeExcessAllocDirs(t.Context(), full.withDefaults())
	if got := allocDirNames(t, root); !slices.Equal(got, []string{"young"}) {
		t.Errorf("on disk: %q", got)
	}
	if err := r.RemoveDirOfEndedAlloc(t.Context(), "young"); err != nil || source.collectReason("young") != "" {
		t.Errorf("collected on request: %v, reason %q", err, source.collectReason("young"))
	}
}

// Below the limits, no directory is removed (rule RS-097 of docs/reference/rules.md).
func TestNoCollectionBelowLimits(t *testing.T) {
	r, _, root := startRunner(t, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, endedAssignment("a", time.Hour))
	eventually(t, "it is known", func() bool { return r.RemoveDirOfEndedAlloc(t.Context(), "b") != nil && len(r.allocIDs()) == 1 })
	time.Sleep(20 * time.Millisecond)
	if got := allocDirNames(t, root); len(got) != 1 {
		t.Errorf("on disk: %q", got)
	}
	// RemoveDirOfEndedAlloc removes the directory even below the limits.
	if err := r.RemoveDirOfEndedAlloc(t.Context(), "a"); err != nil || len(allocDirNames(t, root)) != 0 {
		t.Errorf("collect: %v", err)
	}
	if err := r.RemoveDirOfEndedAlloc(t.Context(), "a"); err != nil {
		t.Errorf("collect again: %v", err)
	}
	if err := r.RemoveDirOfEndedAlloc(t.Context(), "nope"); !errors.Is(err, ErrNotCollectable) {
		t.Errorf("collect what is not here: %v", err)
	}
	if len(r.allocIDs()) != 1 {
		t.Error("what was collected is not known any more")
	}
}

// blockingPlugins has a driver lookup and a hook that block until their channels are closed.
type blockingPlugins struct {
	hooks.BuiltinHookDefaults
	releaseDriver, releaseHook chan struct{}
}

func (b blockingPlugins) Driver(context.Context, string) (driver.Driver, error) {
	<-b.releaseDriver
	return nil, errors.New("there is no driver")
}
func (blockingPlugins) Name() string { return "slow" }
func (b blockingPlugins) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	<-b.releaseHook
	return hook.AllocPostrunResponse{}, nil
}
func (b blockingPlugins) NewAllocHooks(*api.Allocation, hooks.AttachTarget) []hooks.OrderedHook {
	return []hooks.OrderedHook{{Order: hooks.OrderPlugin, Hook: b}}
}
func (blockingPlugins) NewTaskHooks(*api.Allocation, *api.Task, hooks.AttachTarget) []hooks.OrderedHook {
	return nil
}
func (blockingPlugins) PluginLaunchWaiterOrNil(*api.Allocation) func(context.Context, func(*api.TaskEvent)) {
	return nil
}

func TestCollectWaitsForHooksOnly(t *testing.T) {
	s := blockingPlugins{releaseDriver: make(chan struct{}), releaseHook: make(chan struct{})}
	findDriver, endHook := sync.OnceFunc(func() { close(s.releaseDriver) }), sync.OnceFunc(func() { close(s.releaseHook) })
	r, _, root := startRunnerWith(t, allocrunner.Config{Drivers: s, HookFactory: s}, failingLogs{}, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, newAssignment("a", 1))
	t.Cleanup(findDriver)
	t.Cleanup(endHook)
	eventually(t, "it is there", func() bool { return r.AllocRunner("a") != nil })
	if err := r.RemoveDirOfEndedAlloc(t.Context(), "a"); !errors.Is(err, ErrNotCollectable) {
		t.Errorf("collect what runs: %v", err)
	}
	findDriver()
	eventually(t, "its task has failed", func() bool { return onlyHooksCanRun(r.AllocRunner("a")) })

	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client has gone")
	cancel(gone)
	if err := r.RemoveDirOfEndedAlloc(ctx, "a"); !errors.Is(err, gone) {
		t.Errorf("collect for nobody: %v", err)
	}
	collected := make(chan error)
	go func() { collected <- r.RemoveDirOfEndedAlloc(t.Context(), "a") }()
	endHook()
	if err := <-collected; err != nil || len(allocDirNames(t, root)) != 0 {
		t.Errorf("collect what has ended: %v; on disk: %q", err, allocDirNames(t, root))
	}
}

// vanishingDriver is a driver on which tasks complete at once. It is unavailable from then on until
// back is closed.
type vanishingDriver struct {
	driver.Driver // nil, because the other methods are not called
	taskEnded     atomic.Bool
	available     chan struct{}
}

func (d *vanishingDriver) lookUp(context.Context, string) (driver.Driver, error) {
	if d.taskEnded.Load() && !wait.IsClosed(d.available) {
		return nil, &driver.UnavailableError{Plugin: "lost", Err: errors.New("its plugin does not start"), RetryOnClose: d.available}
	}
	return d, nil
}

func (d *vanishingDriver) TaskConfigSchema(context.Context) (*hclspec.Spec, error) {
	return hclspec.Object(nil), nil
}

func (d *vanishingDriver) Capabilities(context.Context) (*driver.Capabilities, error) {
	return &driver.Capabilities{}, nil
}

func (d *vanishingDriver) StartTask(_ context.Context, c *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	return &driver.Handle{Version: 1, Config: c, State: driver.TaskRunning}, nil, nil
}

func (d *vanishingDriver) WaitTask(context.Context, string) (*driver.ExitResult, error) {
	d.taskEnded.Store(true)
	return &driver.ExitResult{}, nil
}

func (d *vanishingDriver) DestroyTask(context.Context, string, bool) error { return nil }

// driversFunc implements driver lookups.
type driversFunc func(context.Context, string) (driver.Driver, error)

func (f driversFunc) Driver(ctx context.Context, name string) (driver.Driver, error) {
	return f(ctx, name)
}

// A request to collect returns while the driver is unavailable. The directory is
// removed when the driver has destroyed the task, and not earlier.
func TestCollectDoesNotWaitForAPendingDestroy(t *testing.T) {
	d := &vanishingDriver{available: make(chan struct{})}
	a := newAssignment("a", 1)
	model.Canonicalize(a.Alloc.Job)
	r, source, root := startRunnerWith(t, allocrunner.Config{Drivers: driversFunc(d.lookUp)}, discardLogs{}, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, a)
	back := sync.OnceFunc(func() { close(d.available) })
	t.Cleanup(back)
	eventually(t, "its task is dead", func() bool { runner := r.AllocRunner("a"); return runner != nil && onlyHooksCanRun(runner) })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 2 {
		if err := r.RemoveDirOfEndedAlloc(ctx, "a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, yes := source.endError("a"); yes || len(allocDirNames(t, root)) != 1 {
		t.Errorf("before the task is destroyed: has ended %t, on disk %q", yes, allocDirNames(t, root))
	}
	if got := source.requestedCollectIDs(); len(got) == 0 || got[0] != "a" {
		t.Errorf("stored requests: %q", got)
	}
	back()
	eventually(t, "its directory is removed", func() bool { return len(allocDirNames(t, root)) == 0 })
	if err, yes := source.endError("a"); !yes || err != nil {
		t.Errorf("has ended: %t, %v", yes, err)
	}
}

// A node that shuts down for good does not wait for a driver to destroy its ended task.
func TestUndestroyedTaskIsGivenUp(t *testing.T) {
	d := &vanishingDriver{available: make(chan struct{})}
	t.Cleanup(func() { close(d.available) })
	a := newAssignment("a", 1)
	model.Canonicalize(a.Alloc.Job)
	r, source, _ := startRunnerWith(t, allocrunner.Config{Drivers: driversFunc(d.lookUp)}, discardLogs{}, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, a)
	eventually(t, "its task is dead", func() bool { runner := r.AllocRunner("a"); return runner != nil && onlyHooksCanRun(runner) })
	givenUp := false
	r.ForceKillAllocsIfDestroyTimesOut(t.Context(), func() { givenUp = true })
	if !givenUp {
		t.Error("the task is destroyed although its driver is unavailable")
	}
	eventually(t, "the allocation has ended", func() bool { _, yes := source.endError("a"); return yes })
	r.ForceKillAllocsIfDestroyTimesOut(t.Context(), func() { t.Error("an ended allocation is given up") })
}

// A request stored by an earlier agent takes effect as soon as the allocation has ended.
func TestStoredCollectRequest(t *testing.T) {
	over, running, kept := endedAssignment("over", time.Hour), newAssignment("running", 1), endedAssignment("kept", time.Hour)
	over.RemoveDirWhenEnded, running.RemoveDirWhenEnded = true, true
	r, source, root := startRunner(t, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, over, running, kept)
	eventually(t, "the directories are removed", func() bool {
		_, yes := source.endError("running")
		return yes && fmt.Sprint(allocDirNames(t, root)) == "[kept]"
	})
	for _, id := range []string{"over", "running"} {
		if err := r.RemoveDirOfEndedAlloc(t.Context(), id); err != nil {
			t.Errorf("collect %s once more: %v", id, err)
		}
	}
}

func TestEndedAllocLeavesNoRunner(t *testing.T) {
	s := blockingPlugins{releaseDriver: make(chan struct{}), releaseHook: make(chan struct{})}
	findDriver, endHook := sync.OnceFunc(func() { close(s.releaseDriver) }), sync.OnceFunc(func() { close(s.releaseHook) })
	destroyed := make(chan string, 1)
	r, source, root := startRunnerWith(t, allocrunner.Config{Drivers: s, HookFactory: destroyRecorder{s, destroyed}}, failingLogs{}, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, newAssignment("a", 1))
	t.Cleanup(findDriver)
	t.Cleanup(endHook)
	var runner weak.Pointer[allocrunner.Runner]
	eventually(t, "it is there", func() bool { runner = weak.Make(r.AllocRunner("a")); return runner.Value() != nil })
	findDriver()
	endHook()
	eventually(t, "it has ended", func() bool { _, yes := source.endError("a"); return yes })
	eventually(t, "its runner is forgotten", func() bool {
		runtime.GC()
		return runner.Value() == nil
	})

	// If the entry has no runner, the source's version is sufficient for the removal.
	last := newAssignment("a", 1)
	last.AllocEnded, last.Alloc.Name = true, "as reported last"
	source.setAssignments(last)
	eventually(t, "it is the one to have", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.entryByAllocID["a"].alloc == last.Alloc
	})
	if err := r.RemoveDirOfEndedAlloc(t.Context(), "a"); err != nil || len(allocDirNames(t, root)) != 0 {
		t.Errorf("collect: %v; on disk: %q", err, allocDirNames(t, root))
	}
	if got := <-destroyed; got != last.Alloc.Name {
		t.Errorf("a hook was told to destroy %q", got)
	}
}

// destroyRecorder is a blockingPlugins that records which allocations it destroys.
type destroyRecorder struct {
	blockingPlugins
	destroyedAllocs chan<- string
}

func (d destroyRecorder) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	d.destroyedAllocs <- req.Alloc.Name
	return hook.AllocDestroyResponse{}, nil
}
func (d destroyRecorder) NewAllocHooks(*api.Allocation, hooks.AttachTarget) []hooks.OrderedHook {
	return []hooks.OrderedHook{{Order: hooks.OrderPlugin, Hook: d}}
}

// allocIDs returns the allocation ids.
func (r *Runner) allocIDs() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []string
	for id := range r.entryByAllocID {
		ids = append(ids, id)
	}
	return ids
}

func TestEndIsReportedOnceBeforeRemoval(t *testing.T) {
	r, source, root := startRunner(t, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, newAssignment("a", 1))
	eventually(t, "it has failed", func() bool { _, yes := source.endError("a"); return yes })
	if err, _ := source.endError("a"); err != nil {
		t.Errorf("it was run, and ended with %v", err)
	}
	if r.AllocRunner("a") != nil || r.AllocRunner("b") != nil {
		t.Error("it has a runner, though nothing runs")
	}
	source.setAssignments()
	eventually(t, "it is removed", func() bool {
		source.mu.Lock()
		defer source.mu.Unlock()
		return slices.Equal(source.removedIDs, []string{"a"})
	})
	if got := allocDirNames(t, root); len(got) != 0 {
		t.Errorf("on disk: %q", got)
	}
	// The agent returns the removed allocation's memory.
	eventually(t, "the removal is announced", func() bool { return source.removalCount.Load() == 1 })
}

// A started allocation without records is restored, not started again (rule RS-071 of
// docs/reference/rules.md).
func TestStartedAllocationWithoutRecordsIsRestored(t *testing.T) {
	lost := newAssignment("a", 1)
	lost.Alloc.ClientStatus = api.AllocClientStatusRunning
	_, source, _ := startRunner(t, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, lost)
	eventually(t, "it has ended", func() bool { _, yes := source.endError("a"); return yes })
	if err, _ := source.endError("a"); err == nil || !strings.Contains(err.Error(), "no records to restore it from") {
		t.Errorf("it ended with %v, want it to be restored", err)
	}
}

func TestRunnerThatCannotBeBuilt(t *testing.T) {
	bad := newAssignment("a", 1)
	bad.Alloc.TaskGroup = "nope"
	_, source, _ := startRunner(t, GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101}, bad)
	eventually(t, "it is told", func() bool { err, _ := source.endError("a"); return err != nil })
	source.setAssignments()
	eventually(t, "it is removed", func() bool {
		source.mu.Lock()
		defer source.mu.Unlock()
		return len(source.removedIDs) == 1
	})
}

// blockingDrivers blocks lookups until ctx ends.
type blockingDrivers struct{}

func (blockingDrivers) Driver(ctx context.Context, _ string) (driver.Driver, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// Other methods do not block while a runner is built, and they take effect on that runner.
func TestRunnersAreBuiltWithoutTheLock(t *testing.T) {
	first, second := newAssignment("a", 1), newAssignment("b", 1)
	second.Alloc.PreviousAllocation = "a"
	source := &fakeSource{assignments: []Assignment{first, second}, changed: make(chan struct{}), endErrors: make(map[string]error)}
	var r *Runner
	built := 0
	r = New(Config{
		Source: source,
		AllocRunnerTemplate: allocrunner.Config{
			Drivers: blockingDrivers{}, Store: discardStore{}, Machine: newMachine(t.TempDir(), failingLogs{}), Logger: hclog.NewNullLogger(),
		},
		NodeForTasks: func() taskenv.Node {
			built++
			if !r.mu.TryLock() {
				t.Error("the lock is held while a runner is built")
				return taskenv.Node{}
			}
			r.mu.Unlock()
			if wait.IsClosed(r.allocRunReturned("a")) || wait.IsClosed(r.allocRunReturned("b")) {
				t.Error("an allocation that is being built counts as ended")
			}
			if built == 2 {
				r.ForceKillAllAllocs()
			}
			return taskenv.Node{}
		},
		GCLimits: GCLimits{MaxDiskUsagePercent: 101, MaxInodeUsagePercent: 101},
		Logger:   hclog.NewNullLogger(),
	})
	ctx, cancel := context.WithCancel(t.Context())
	var runningWG sync.WaitGroup
	runningWG.Go(func() { r.Run(ctx) })
	defer runningWG.Wait()
	defer cancel()
	for _, id := range []string{"a", "b"} {
		eventually(t, id+" is killed", func() bool { _, yes := source.endError(id); return yes })
	}
	if built != 2 {
		t.Errorf("%d runners built", built)
	}
}
