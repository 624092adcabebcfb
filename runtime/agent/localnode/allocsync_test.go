package localnode

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// flakyStore is a scheduler.Store with updates that can fail as on a full disk.
type flakyStore struct {
	*store.Store
	path     string
	diskFull atomic.Bool
	// beforeChange is called once, before the next change. It may be nil.
	beforeChange func()
}

func (f *flakyStore) Update(ctx context.Context, fn func(*store.Txn) error) (uint64, error) {
	if before := f.beforeChange; before != nil {
		f.beforeChange = nil
		before()
	}
	if f.diskFull.Load() {
		return 0, errors.New("no space left on device")
	}
	return f.Store.Update(ctx, fn)
}

// allocSyncFixture is an AllocSync with the scheduler that gets its reports.
type allocSyncFixture struct {
	*AllocSync
	scheduler *scheduler.Scheduler
	nodeID    string
}

func (f *allocSyncFixture) writeReports(ctx context.Context) error {
	return f.AllocSync.writeReports(ctx, f.scheduler)
}

// openAllocSync returns an AllocSync on a store without a node.
func openAllocSync(t testing.TB, path, nodeID string) (*allocSyncFixture, *flakyStore) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r := &allocSyncFixture{AllocSync: NewAllocSync(s, true, hclog.NewNullLogger()), nodeID: nodeID}
	f := &flakyStore{Store: s, path: path}
	r.scheduler = scheduler.New(scheduler.Config{
		Store:                  f,
		HostEnv:                scheduler.Env{NewID: uuid.NewString, IsPortFree: func(scheduler.HostPort) bool { return true }, RandIntN: func(int) int { return 0 }, Now: time.Now},
		NodeID:                 nodeID,
		Logger:                 hclog.NewNullLogger(),
		OnDesiredAllocsChanged: r.NotifyAllocsChanged,
	})
	return r, f
}

// newAllocSyncFixture returns an AllocSync with a node and a placed job with count instances.
func newAllocSyncFixture(t testing.TB, count int) (*allocSyncFixture, *flakyStore) {
	t.Helper()
	r, f := openAllocSync(t, filepath.Join(t.TempDir(), "state.db"), uuid.NewString())
	_, err := r.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.PutNodeWithStorageEvents(&api.Node{
			ID: r.nodeID, Name: "n", Datacenter: "dc1", NodePool: "default", Status: api.NodeStatusReady,
			SchedulingEligibility: api.NodeSchedulingEligible, Attributes: map[string]string{"kernel.name": "linux"},
			Drivers: map[string]*api.DriverInfo{"d": {Detected: true, Healthy: true}},
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.registerJob(t, count, map[string]any{})
	return r, f
}

// registerJob registers the job with count instances and a configuration for its task.
func (f *allocSyncFixture) registerJob(t testing.TB, count int, config map[string]any) {
	t.Helper()
	job := &api.Job{ID: new("job"), Type: new("batch"), TaskGroups: []*api.TaskGroup{{
		Name: new("g"), Count: &count,
		Tasks: []*api.Task{{Name: "t", Driver: "d", Config: config}},
	}}}
	model.Canonicalize(job)
	if _, err := f.scheduler.RegisterAndEvaluateJob(t.Context(), job, scheduler.RegisterOptions{}); err != nil {
		t.Fatal(err)
	}
}

// startWriter runs the writer until the caller calls stop.
func (f *allocSyncFixture) startWriter(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var writerWG sync.WaitGroup
	writerWG.Go(func() { f.Run(ctx, f.scheduler) })
	return func() {
		cancel()
		writerWG.Wait()
	}
}

func (f *allocSyncFixture) ids(t testing.TB) []string {
	t.Helper()
	wanted, _ := f.Assignments()
	var ids []string
	for _, a := range wanted {
		if a.StartedByEarlierAgent {
			t.Errorf("alloc %s counts as started", a.Alloc.ID)
		}
		ids = append(ids, a.Alloc.ID)
	}
	return ids
}

func allocUpdate(id, status string) model.AllocReport {
	state := map[string]string{api.AllocClientStatusRunning: model.TaskRunning, api.AllocClientStatusComplete: model.TaskDead}[status]
	return model.AllocReport{AllocID: id, ClientStatus: status, TaskStates: map[string]*api.TaskState{"t": {State: state}}, Time: time.Now()}
}

func TestReportsShareWrites(t *testing.T) {
	const allocCount = 200
	r, _ := newAllocSyncFixture(t, allocCount)
	ids := r.ids(t)
	if len(ids) != allocCount {
		t.Fatalf("%d allocations", len(ids))
	}
	before := r.store.CommitCount()
	stop := r.startWriter(t)
	for _, status := range []string{api.AllocClientStatusRunning, api.AllocClientStatusComplete} {
		for _, id := range ids {
			r.ReportStatus(allocUpdate(id, status))
		}
	}
	for _, id := range ids {
		r.ReportEnded(id, nil)
	}
	stop()
	for _, id := range ids {
		a := r.store.Snapshot().Allocation(nil, id)
		if a.ClientStatus != api.AllocClientStatusComplete || !r.store.Snapshot().AllocationEnded(id) {
			t.Fatalf("alloc %s is %s", id, a.ClientStatus)
		}
	}
	if writes := r.store.CommitCount() - before; writes > allocCount/4 {
		t.Errorf("%d reports took %d writes", 3*allocCount, writes)
	}
	if job := r.store.Snapshot().Job(nil, "default", "job"); *job.Status != model.JobDead {
		t.Errorf("job is %s", *job.Status)
	}
}

func TestReportsSurviveAFullDisk(t *testing.T) {
	r, f := newAllocSyncFixture(t, 1)
	id := r.ids(t)[0]
	f.diskFull.Store(true)
	r.ReportStatus(allocUpdate(id, api.AllocClientStatusRunning))
	if err := r.writeReports(t.Context()); err == nil {
		t.Fatal("a full disk is no error")
	}
	r.ReportStatus(allocUpdate(id, api.AllocClientStatusComplete)) // the allocation's newer report
	if err := r.writeReports(t.Context()); err == nil {
		t.Fatal("a full disk is no error")
	}
	reports, removed := r.takeUrgentReports()
	r.ReportEnded(id, nil) // ReportEnded is called while the store refuses the reports
	r.requeueReports(reports, removed)
	f.diskFull.Store(false)
	if err := r.writeReports(t.Context()); err != nil {
		t.Fatal(err)
	}
	snapshot := r.store.Snapshot()
	if a := snapshot.Allocation(nil, id); a.ClientStatus != api.AllocClientStatusComplete || !snapshot.AllocationEnded(id) {
		t.Errorf("alloc is %s, ended %v", a.ClientStatus, snapshot.AllocationEnded(id))
	}
	if len(r.pendingReportByAllocID) > 0 {
		t.Errorf("still to write: %v", r.pendingReportByAllocID)
	}
}

// TestReportIsComparedWithTheOneThatIsBeingStored checks that isUrgentLocked counts a report being written as stored.
func TestReportIsComparedWithTheOneThatIsBeingStored(t *testing.T) {
	r, f := newAllocSyncFixture(t, 1)
	id := r.ids(t)[0]
	for _, status := range []string{api.AllocClientStatusRunning, api.AllocClientStatusPending} {
		r.ReportStatus(allocUpdate(id, status))
		if status == api.AllocClientStatusPending {
			f.beforeChange = func() { r.ReportStatus(allocUpdate(id, api.AllocClientStatusRunning)) }
		}
		if err := r.writeReports(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if !r.urgentReportAllocIDs[id] {
		t.Error("the task runs again, and the report of that waits")
	}
}

// TestReportsOfEventsWait checks that a state change is written at once, and events wait for their allocation's next state
// change, or for maxReportDelay.
func TestReportsOfEventsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newAllocSyncFixture(t, 2)
		ids := r.ids(t)
		id := ids[0]
		defer r.startWriter(t)()
		begin := time.Now()
		report := func(u model.AllocReport, events int) {
			u.TaskStates["t"].Events = make([]*api.TaskEvent, events)
			for i := range u.TaskStates["t"].Events {
				u.TaskStates["t"].Events[i] = &api.TaskEvent{Type: "x", Time: int64(i)}
			}
			r.ReportStatus(u)
		}
		check := func(state string, events int, at time.Duration) {
			t.Helper()
			synctest.Wait()
			got := api.TaskState{State: model.TaskPending}
			if known := r.store.Snapshot().Allocation(nil, id).TaskStates["t"]; known != nil {
				got = *known
			}
			if got.State != state || len(got.Events) != events || time.Since(begin) != at {
				t.Errorf("%s with %d events after %v, want %s with %d after %v", got.State, len(got.Events), time.Since(begin), state, events, at)
			}
		}
		pending := allocUpdate(id, api.AllocClientStatusPending)
		pending.TaskStates["t"].State = model.TaskPending
		report(pending, 1)
		check(model.TaskPending, 0, 0)
		report(allocUpdate(id, api.AllocClientStatusRunning), 2)
		check(model.TaskRunning, 2, 0)
		report(allocUpdate(id, api.AllocClientStatusRunning), 3)
		check(model.TaskRunning, 2, 0)
		r.ReportStatus(allocUpdate(ids[1], api.AllocClientStatusRunning)) // a state change is written at once, without the other allocation's events
		check(model.TaskRunning, 2, 0)
		if other := r.store.Snapshot().Allocation(nil, ids[1]); other.ClientStatus != api.AllocClientStatusRunning {
			t.Errorf("the other one is %s", other.ClientStatus)
		}
		time.Sleep(maxReportDelay)
		check(model.TaskRunning, 3, maxReportDelay)
		report(pending, 4)
		check(model.TaskPending, 4, maxReportDelay)
	})
}

// TestUnchangedReportIsNotWritten checks that a new agent's unchanged reports are not
// written.
func TestUnchangedReportIsNotWritten(t *testing.T) {
	r, f := newAllocSyncFixture(t, 1)
	id := r.ids(t)[0]
	status := &api.TaskState{}
	now := time.Now()
	model.AppendTaskEvent(status, model.EventReceived(), now)
	model.SetTaskState(status, model.TaskRunning, now)
	model.AppendTaskEvent(status, model.EventStarted(), now)
	if err := r.store.PutTaskState(id, "t", status, state.DurabilitySync)(); err != nil {
		t.Fatal(err)
	}
	u := allocUpdate(id, api.AllocClientStatusRunning)
	u.TaskStates["t"] = status
	u.Health = &model.DeploymentHealth{Healthy: true, DecidedAt: now}
	r.ReportStatus(u)
	if err := r.writeReports(t.Context()); err != nil {
		t.Fatal(err)
	}

	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ = openAllocSync(t, f.path, r.nodeID)
	var err error
	if u.TaskStates["t"], err = r.store.Snapshot().TaskState(id, "t"); err != nil {
		t.Fatal(err)
	}
	said := func() (commits int64, index uint64) {
		r.ReportStatus(u)
		r.markAllReportsUrgent()
		if err := r.writeReports(t.Context()); err != nil {
			t.Fatal(err)
		}
		return r.store.CommitCount(), r.store.Index()
	}
	before := r.store.Index()
	if commits, index := said(); commits != 0 || index != before {
		t.Errorf("the same again is written: %d commits, index %d, was %d", commits, index, before)
	}
	model.AppendTaskEvent(u.TaskStates["t"], model.EventReceived(), now)
	if commits, index := said(); commits != 1 || index != before+1 {
		t.Errorf("an event is not written: %d commits, index %d, was %d", commits, index, before)
	}
	r.ReportEnded(id, nil)
	if err := r.writeReports(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !r.store.Snapshot().AllocationEnded(id) {
		t.Error("an end without another state is not written")
	}
}

func TestReportsDoNotWakeTheNode(t *testing.T) {
	r, _ := newAllocSyncFixture(t, 1)
	wanted, changed := r.Assignments()
	id := wanted[0].Alloc.ID
	r.ReportStatus(allocUpdate(id, api.AllocClientStatusRunning))
	if err := r.writeReports(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
		t.Fatal("a report of the node makes it look again")
	default:
	}
	if _, err := r.scheduler.DeregisterJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "job"}, scheduler.DeregisterOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Fatal("a stop does not")
	}
	if wanted, _ := r.Assignments(); wanted[0].Alloc.DesiredStatus != api.AllocDesiredStatusStop {
		t.Errorf("desired %s", wanted[0].Alloc.DesiredStatus)
	}
}

// TestEndWakesTheNodeAtOnceForAReplacement ends two allocations. The node gets the last version of each, and the second one has a
// replacement, which must not wait longer than for the end.
func TestEndWakesTheNodeAtOnceForAReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newAllocSyncFixture(t, 2)
		ids := r.ids(t)
		report := func(id, status string, ended bool) {
			t.Helper()
			r.ReportStatus(allocUpdate(id, status))
			if ended {
				r.ReportEnded(id, nil)
			}
			if err := r.writeReports(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for _, id := range ids {
			report(id, api.AllocClientStatusRunning, false)
		}
		_, changed := r.Assignments()
		report(ids[0], api.AllocClientStatusComplete, true)
		if wait.IsClosed(changed) {
			t.Error("an end without a replacement wakes the node at once")
		}
		time.Sleep(endedNotifyDelay)
		synctest.Wait()
		if !wait.IsClosed(changed) {
			t.Errorf("the node does not get the last version after %v", endedNotifyDelay)
		}

		r.registerJob(t, 2, map[string]any{"changed": true})
		_, changed = r.Assignments()
		before := r.ids(t)
		report(ids[1], api.AllocClientStatusComplete, true)
		if !wait.IsClosed(changed) {
			t.Error("the replacement waits although the replaced allocation has ended")
		}
		if after := r.ids(t); len(after) != len(before)+1 {
			t.Errorf("allocations before the end %q, and after it %q", before, after)
		}
	})
}

func TestPurgedAllocIsForgottenWhenItHasEnded(t *testing.T) {
	r, _ := newAllocSyncFixture(t, 1)
	id := r.ids(t)[0]
	if err := r.store.PutTaskState(id, "t", &api.TaskState{State: model.TaskRunning}, state.DurabilitySync)(); err != nil {
		t.Fatal(err)
	}
	r.ReportStatus(allocUpdate(id, api.AllocClientStatusRunning))
	if err := r.writeReports(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.scheduler.DeregisterJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "job"}, scheduler.DeregisterOptions{Purge: true}); err != nil {
		t.Fatal(err)
	}
	if got := r.ids(t); !slices.Equal(got, []string{id}) {
		t.Fatalf("allocations %q: one runs", got)
	}
	r.ReportStatus(allocUpdate(id, api.AllocClientStatusComplete))
	r.ReportEnded(id, nil)
	if err := r.writeReports(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.ids(t); len(got) > 0 {
		t.Errorf("allocations %q", got)
	}
	r.ReportAllocRemoved(id)
	if err := r.writeReports(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.store.Snapshot().AllocIDsWithLocalRecords(); len(got) > 0 || len(r.store.Snapshot().AgentRecordNames("")) > 0 {
		t.Errorf("records of %q are left", got)
	}
}

// A request to collect is stored until the allocation is deleted.
func TestRemoveDirAtEndIsStored(t *testing.T) {
	r, _ := newAllocSyncFixture(t, 2)
	first := r.ids(t)[0]
	if err := r.StoreRemoveDirAtEnd(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	assignments, _ := r.Assignments()
	for _, a := range assignments {
		if want := a.Alloc.ID == first; a.RemoveDirWhenEnded != want {
			t.Errorf("%s: Collect is %t, want %t", a.Alloc.ID, a.RemoveDirWhenEnded, want)
		}
	}
	_, err := r.store.Update(t.Context(), func(tx *store.Txn) error {
		tx.DeleteAllocationAndQueueRemoval(first)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.StoreRemoveDirAtEnd(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if left := r.store.Snapshot().AgentRecordNames("collect/"); len(left) > 0 {
		t.Errorf("records left: %q", left)
	}
}

func BenchmarkReports(b *testing.B) {
	for _, count := range []int{100, 500} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			r, _ := newAllocSyncFixture(b, count)
			ids := r.ids(b)
			for b.Loop() {
				before := r.store.CommitCount()
				stop := r.startWriter(b)
				for _, id := range ids {
					r.ReportStatus(allocUpdate(id, api.AllocClientStatusRunning))
				}
				stop()
				b.ReportMetric(float64(r.store.CommitCount()-before), "writes")
			}
		})
	}
}

// The removal of a directory adds an event to each of the allocation's tasks, after the last report's events. The allocation gets
// no new version for the node.
func TestCollectedDirectoryAddsEvent(t *testing.T) {
	s := openStore(t)
	alloc := &api.Allocation{ID: "a", Job: &api.Job{}, TaskStates: map[string]*api.TaskState{
		"one": {State: "dead", Events: []*api.TaskEvent{model.EventStarted()}}, "two": {State: "dead"},
	}}
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error { tx.PutScheduledAllocation(alloc); return nil }); err != nil {
		t.Fatal(err)
	}
	r := NewAllocSync(s, true, hclog.NewNullLogger())
	r.ReportDirRemoved("a", "the disk is full")
	r.ReportDirRemoved("deleted", "the disk is full")
	for range 2 { // the second writeGCEvents call has nothing to write
		if err := r.writeReports(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	got := s.Snapshot().Allocation(nil, "a")
	for task, n := range map[string]int{"one": 2, "two": 1} {
		events := got.TaskStates[task].Events
		if len(events) != n || events[n-1].Type != model.TaskAllocDirRemoved || events[n-1].DisplayMessage != "the directory of the allocation and its logs were removed: the disk is full" {
			t.Errorf("%s: %+v", task, events)
		}
	}
	if got.AllocModifyIndex != alloc.AllocModifyIndex || len(alloc.TaskStates["one"].Events) != 1 {
		t.Error("it is a new version, or the old one was changed")
	}
}

// An allocation deleted before the node runner first lists the allocations is assigned once, so that its hooks are called before
// it is removed.
func TestDeletedAllocationIsAssignedOnce(t *testing.T) {
	s := openStore(t)
	put := func(f func(*store.Txn)) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "here", Job: &api.Job{}}) })
	r := NewAllocSync(s, true, hclog.NewNullLogger())
	put(func(tx *store.Txn) { tx.DeleteAllocationAndQueueRemoval("here") })

	first, changed := r.Assignments()
	if len(first) != 1 || first[0].Alloc.ID != "here" || !first[0].AllocEnded {
		t.Errorf("the node gets %+v, want the one that has to be removed", first)
	}
	select {
	case <-changed:
	default:
		t.Error("the node is not told to look again")
	}
	if second, _ := r.Assignments(); len(second) != 0 {
		t.Errorf("the node gets %+v again", second)
	}
	r.ReportAllocRemoved("here")
	if err := r.writeReports(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if left := s.Snapshot().AllocationsPendingRemoval(); len(left) != 0 {
		t.Errorf("%+v are left", left)
	}
}

func TestWithheldAllocsAreAssignedAfterRelease(t *testing.T) {
	s := openStore(t)
	if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
		for _, id := range []string{"withheld", "other"} {
			tx.PutScheduledAllocation(&api.Allocation{ID: id, Job: &api.Job{}, DesiredStatus: api.AllocDesiredStatusRun})
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r := NewAllocSync(s, true, hclog.NewNullLogger())
	r.WithholdAllocs(map[string]bool{"withheld": true})
	assigned, changed := r.Assignments()
	if len(assigned) != 1 || assigned[0].Alloc.ID != "other" {
		t.Fatalf("assigned %+v, want only the other allocation", assigned)
	}
	r.ReleaseAllocs()
	select {
	case <-changed:
	default:
		t.Error("the node runner is not woken by the release")
	}
	if assigned, _ := r.Assignments(); len(assigned) != 2 {
		t.Errorf("after the release %d allocations are assigned, want 2", len(assigned))
	}
}
