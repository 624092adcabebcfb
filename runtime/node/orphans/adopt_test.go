package orphans

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/netns"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/alloccopy"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// startUnknownTask starts a task in an allocation's directory that no state has.
func startUnknownTask(t *testing.T, allocDirs, allocID, task, driverName string, env ...string) osprocess.ID {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(allocDirs, allocID, task), 0o755); err != nil {
		t.Fatal(err)
	}
	alloc, err := allocdir.New(allocDirs, allocID)
	if err != nil {
		t.Fatal(err)
	}
	spans := timeline.NewFile(alloc, nil, hclog.NewNullLogger())
	spans.Recorder(task, nil).StartRunSpan(allocID+"/"+task+"/start", driverName, time.Now())
	spans.Close()
	cmd := exec.Command("sleep", "1000")
	cmd.Env = append([]string{"NOMAD_ALLOC_ID=" + allocID, "NOMAD_TASK_NAME=" + task}, env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // it is killed
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
	})
	id, err := osprocess.LookupID(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// namedDrivers are a node's drivers.
type namedDrivers map[string]driver.Driver

func (d namedDrivers) DriverInfoByName() map[string]supervisor.DriverInfo {
	all := make(map[string]supervisor.DriverInfo)
	for name := range d {
		all[name] = supervisor.DriverInfo{}
	}
	return all
}

func (namedDrivers) WaitBrieflyForFirstReports(context.Context) error { return nil }

func (d namedDrivers) Driver(_ context.Context, name string) (driver.Driver, error) {
	return d[name], nil
}

// sdkDriver is a driver that searches for its tasks, because another process has started them.
type sdkDriver struct{ driver.Driver }

func (sdkDriver) InspectTask(context.Context, string) (*driver.TaskStatus, error) {
	return &driver.TaskStatus{StartStatus: &driver.StartStatus{Phase: driver.StartNotFound}}, nil
}

// foreignDriver is not made with package sdk: its process does not know another one's tasks.
type foreignDriver struct{ driver.Driver }

func (foreignDriver) InspectTask(context.Context, string) (*driver.TaskStatus, error) {
	return nil, driver.ErrTaskNotFound
}

// putAllocCopy writes the copy of an allocation with one group, as its runner does.
func putAllocCopy(t *testing.T, allocDirs string, alloc *api.Allocation) {
	t.Helper()
	dir, err := allocdir.New(allocDirs, alloc.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := alloccopy.Write(dir, alloc); err != nil {
		t.Fatal(err)
	}
}

// newCopiedAlloc returns a service job's allocation with tasks for the given drivers, by task name.
func newCopiedAlloc(jobID string, index int, driverByTask map[string]string) *api.Allocation {
	group := &api.TaskGroup{Name: new("g"), Count: new(2)}
	for _, name := range slices.Sorted(maps.Keys(driverByTask)) {
		group.Tasks = append(group.Tasks, &api.Task{Name: name, Driver: driverByTask[name], Config: map[string]any{"count": 7}})
	}
	job := &api.Job{ID: &jobID, Namespace: new("default"), Type: new(api.JobTypeService), TaskGroups: []*api.TaskGroup{group}, Version: new(uint64(3)), CreateIndex: new(uint64(11))}
	model.Canonicalize(job)
	return &api.Allocation{
		ID: uuid.NewString(), Name: model.AllocName(job, group, index), Namespace: "default", JobID: jobID, TaskGroup: "g", Job: job,
		DesiredStatus: api.AllocDesiredStatusRun, ClientStatus: api.AllocClientStatusPending,
	}
}

// The allocations for a job in the state are adopted, and other jobs' allocations if the operator orders it. An allocation
// stays unknown if its driver does not find a task, or if its copy is damaged.
func TestUnknownAllocsAreAdopted(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		dir := t.TempDir()
		allocDirs := filepath.Join(dir, "alloc")
		s := openStore(t, filepath.Join(dir, "state.db"))
		defer s.Close()
		known, ended, foreign := newCopiedAlloc("known", 0, map[string]string{"main": "sdk", "side": "sdk"}), newCopiedAlloc("known", 1, map[string]string{"main": "sdk"}), newCopiedAlloc("known", 1, map[string]string{"main": "foreign"})
		other, damaged := newCopiedAlloc("other", 0, map[string]string{"main": "sdk"}), newCopiedAlloc("other", 1, map[string]string{"main": "sdk"})
		updater(t, s)(func(tx *store.Txn) {
			job := *known.Job
			tx.PutJobAndVersion(&job)
		})
		known.Job.CreateIndex = s.Snapshot().Job(nil, "default", "known").CreateIndex
		ended.Job.CreateIndex, foreign.Job.CreateIndex = known.Job.CreateIndex, known.Job.CreateIndex
		for _, alloc := range []*api.Allocation{known, foreign, other, damaged} {
			for _, task := range alloc.GetTaskGroup().Tasks {
				if task.Name == "main" {
					startUnknownTask(t, allocDirs, alloc.ID, "main", task.Driver, "NOMAD_HOST_PORT_http=21000")
				}
			}
			putAllocCopy(t, allocDirs, alloc)
		}
		if err := os.MkdirAll(filepath.Join(allocDirs, ended.ID, "main"), 0o755); err != nil {
			t.Fatal(err)
		}
		putAllocCopy(t, allocDirs, ended)
		path := filepath.Join(allocDirs, damaged.ID, alloccopy.FileName)
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content[len(content)/2] ^= 1
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}

		var log bytes.Buffer
		stored := make(map[string]*api.Allocation)
		var endedPlugins []string
		c := &Cleaner{Logger: hclog.New(&hclog.LoggerOptions{Output: &log}), AllocDirRoot: allocDirs, Store: s, AdoptUnknownAllocs: ordered}
		adoption := &Adoption{
			Node: model.NodeFacts{ID: "node", Name: "here"},
			EndPluginsOfEarlierAgent: func(_ context.Context, name string) error {
				endedPlugins = append(endedPlugins, name)
				return nil
			},
			Store: func(ctx context.Context, allocs []*api.Allocation, edit func(*store.Txn)) error {
				for _, a := range allocs {
					stored[a.ID] = a
				}
				_, err := s.Update(ctx, func(tx *store.Txn) error {
					for _, a := range allocs {
						tx.PutScheduledAllocation(a)
					}
					edit(tx)
					return nil
				})
				return err
			},
		}
		c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"sdk": sdkDriver{}, "foreign": foreignDriver{}}, adoption)

		want := []string{known.ID}
		if ordered {
			want = append(want, other.ID)
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(stored)); !slices.Equal(got, want) {
			t.Fatalf("ordered %t: adopted %q, want %q\n%s", ordered, got, want, log.String())
		}
		a := stored[known.ID]
		if a.NodeID != "node" || a.ClientStatus != api.AllocClientStatusRunning || a.TaskStates["main"].State != model.TaskRunning || a.TaskStates["side"].State != model.TaskPending {
			t.Errorf("adopted allocation %+v, tasks %+v", a, a.TaskStates)
		}
		if local, found, err := s.Snapshot().TaskFields(known.ID, "main"); err != nil || !found || local.StartID != known.ID+"/main/start" {
			t.Errorf("record of the running task %+v, %t, %v", local, found, err)
		}
		if config := a.Job.TaskGroups[0].Tasks[0].Config["count"]; config != 7 {
			t.Errorf("a number of the config is %v (%[1]T)", config)
		}
		if !slices.Contains(endedPlugins, "sdk") || slices.Contains(endedPlugins, "foreign") {
			t.Errorf("ended the former plugins of %q", endedPlugins)
		}
		unknown := []string{state.UnknownAllocPrefix + ended.ID, state.UnknownAllocPrefix + foreign.ID, state.UnknownAllocPrefix + damaged.ID}
		if !ordered {
			unknown = append(unknown, state.UnknownAllocPrefix+other.ID)
		}
		slices.Sort(unknown)
		if got := s.Snapshot().AgentRecordNames(state.UnknownAllocPrefix); !slices.Equal(got, unknown) {
			t.Errorf("ordered %t: unknown allocations %q, want %q", ordered, got, unknown)
		}
		for _, part := range []string{"unknown allocation not adopted: alloc_id=" + foreign.ID, "unknown allocation not adopted: alloc_id=" + damaged.ID, "checksum does not match"} {
			if !strings.Contains(log.String(), part) {
				t.Errorf("no %q in the log:\n%s", part, log.String())
			}
		}
		if !c.UnknownTaskUsesHostPort(21000) || !c.isUnknownAlloc(foreign.ID) || c.isUnknownAlloc(known.ID) {
			t.Error("the port of the unknown tasks is free")
		}
		job := s.Snapshot().Job(nil, "default", "known")
		if id := c.FindUnknownInstance(job, foreign.Name); id != foreign.ID {
			t.Errorf("the instance of the known job is %q, want %q", id, foreign.ID)
		}
		if id := c.FindUnknownInstance(job, known.Name); id != "" {
			t.Errorf("the adopted allocation is the unknown instance %q", id)
		}
	}
}

// A task that ended before the state was lost does not run again if its end was its success.
func TestTaskStatesOfAdoptedAllocs(t *testing.T) {
	start := time.Now().Add(-time.Hour)
	runs := map[string]tracespan.Span{"never": {}, "runs": {Start: start}, "succeeded": {Start: start, End: start.Add(time.Minute)}, "failed": {Start: start, End: start.Add(time.Minute), Failed: true}}
	prestart, sidecar := &api.TaskLifecycle{Hook: "prestart"}, &api.TaskLifecycle{Hook: "prestart", Sidecar: true}
	for _, tt := range []struct {
		jobType   string
		lifecycle *api.TaskLifecycle
		run, want string
	}{
		{api.JobTypeService, nil, "never", model.TaskPending},
		{api.JobTypeService, nil, "runs", model.TaskRunning},
		{api.JobTypeService, nil, "succeeded", model.TaskPending},
		{api.JobTypeService, prestart, "succeeded", model.TaskDead},
		{api.JobTypeService, prestart, "failed", model.TaskPending},
		{api.JobTypeService, sidecar, "succeeded", model.TaskPending},
		{api.JobTypeBatch, nil, "succeeded", model.TaskDead},
		{api.JobTypeBatch, nil, "failed", model.TaskPending},
		{api.JobTypeSysbatch, nil, "succeeded", model.TaskDead},
		{api.JobTypeSystem, nil, "succeeded", model.TaskPending},
	} {
		if got := newTaskStateFromRun(&api.Job{Type: &tt.jobType}, &api.Task{Lifecycle: tt.lifecycle}, runs[tt.run]); got.State != tt.want {
			t.Errorf("%s, %+v, %s: %s, want %s", tt.jobType, tt.lifecycle, tt.run, got.State, tt.want)
		}
	}
}

// newAdoption returns an adoption that stores the allocations, and the allocations stored by it, by ID.
func newAdoption(s *store.Store) (adoption *Adoption, adopted map[string]*api.Allocation) {
	adopted = make(map[string]*api.Allocation)
	return &Adoption{
		Node:                     model.NodeFacts{ID: "node", Name: "here"},
		EndPluginsOfEarlierAgent: func(context.Context, string) error { return nil },
		Store: func(ctx context.Context, allocs []*api.Allocation, edit func(*store.Txn)) error {
			_, err := s.Update(ctx, func(tx *store.Txn) error {
				for _, a := range allocs {
					adopted[a.ID] = a
					tx.PutScheduledAllocation(a)
				}
				edit(tx)
				return nil
			})
			return err
		},
	}, adopted
}

// By the records of an adopted allocation its runner finds the running task, and does not run the finished one again. Records that the
// state still has are kept.
func TestRecordsOfAdoptedAllocs(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "state.db"))
	defer s.Close()
	alloc := newCopiedAlloc("known", 0, map[string]string{"runs": "sdk", "done": "sdk", "recorded": "sdk", "new": "sdk"})
	alloc.GetTaskGroup().Networks = []*api.NetworkResource{{Mode: "bridge"}}
	alloc.TaskStates = map[string]*api.TaskState{"runs": {State: model.TaskRunning}, "done": {State: model.TaskDead}, "recorded": {State: model.TaskRunning}, "new": {State: model.TaskPending}}
	put := updater(t, s)
	put(func(tx *store.Txn) {
		tx.PutScheduledAllocation(alloc)
		tx.PutTask(alloc.ID, "recorded", record.Fields{StartID: "stored"}, alloc.TaskStates["recorded"])
	})
	a := &adoptable{alloc: alloc, networkPath: "/run/netns/" + alloc.ID, lastRunByTask: map[string]tracespan.Span{"runs": {Name: "last"}, "done": {Name: "last"}, "recorded": {Name: "last"}}}
	put(a.putRecords)
	for task, want := range map[string]record.Fields{"runs": {StartID: "last"}, "done": {RunComplete: true}, "recorded": {StartID: "stored"}} {
		got, found, err := s.Snapshot().TaskFields(alloc.ID, task)
		if err != nil || !found || got.StartID != want.StartID || got.RunComplete != want.RunComplete {
			t.Errorf("%s: %+v, %t, %v; want %+v", task, got, found, err, want)
		}
	}
	if got, found, err := s.Snapshot().TaskFields(alloc.ID, "new"); found || err != nil {
		t.Errorf("record of a task that was not started: %+v, %v", got, err)
	}
	readNetwork := func() (n state.NetworkRecord) {
		t.Helper()
		if found, err := s.Snapshot().ReadAgentRecord(state.NetworkPrefix+alloc.ID, &n); !found || err != nil {
			t.Fatalf("record of the network: %t, %v", found, err)
		}
		return n
	}
	if n := readNetwork(); n.AllocID != alloc.ID || n.Mode != "bridge" || n.Isolation == nil || n.Isolation.Path != a.networkPath {
		t.Errorf("network %+v", n)
	}
	put(func(tx *store.Txn) {
		tx.PutAgentRecord(state.NetworkPrefix+alloc.ID, &state.NetworkRecord{AllocID: alloc.ID, Mode: "bridge", Hostname: "stored"})
	})
	put(a.putRecords)
	if n := readNetwork(); n.Hostname != "stored" {
		t.Errorf("the stored record of the network is replaced by %+v", n)
	}
}

// An allocation is adopted with what the state still has of its tasks, and with its network.
func TestAdoptionKeepsTaskStatesAndNetwork(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can create network namespaces; TestRecordsOfAdoptedAllocs runs")
	}
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	alloc := newCopiedAlloc("other", 0, map[string]string{"main": "sdk"})
	alloc.GetTaskGroup().Networks = []*api.NetworkResource{{Mode: "bridge"}}
	if err := netns.Create(alloc.ID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(alloc.ID); err != nil {
			t.Error(err)
		}
	})
	updater(t, s)(func(tx *store.Txn) {
		tx.PutScheduledAllocation(alloc)
		tx.PutTask(alloc.ID, "main", record.Fields{StartID: "stored"}, &api.TaskState{State: model.TaskRunning, Restarts: 5})
		tx.DeleteAllocationAndQueueRemoval(alloc.ID)
		tx.DeleteAgentRecord(state.PendingRemovalPrefix + alloc.ID)
	})
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, AdoptUnknownAllocs: true}
	startUnknownTask(t, c.AllocDirRoot, alloc.ID, "main", "sdk")
	putAllocCopy(t, c.AllocDirRoot, alloc)
	adoption, adopted := newAdoption(s)
	c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"sdk": sdkDriver{}}, adoption)
	if a := adopted[alloc.ID]; a == nil || a.TaskStates["main"].Restarts != 5 {
		t.Errorf("adopted %+v", a)
	}
	if !s.Snapshot().HasAgentRecord(state.NetworkPrefix + alloc.ID) {
		t.Error("the network of the adopted allocation has no record")
	}
}

// A node of a cluster adopts the allocations that servers have assigned to it, and no others. The processes of both are left running.
func TestClusterNodeAdoptsItsAllocs(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, AdoptAllocsOfNode: true}
	own, foreign := newCopiedAlloc("other", 0, map[string]string{"main": "sdk"}), newCopiedAlloc("other", 1, map[string]string{"main": "sdk"})
	own.NodeID, foreign.NodeID = "node", "before"
	for _, alloc := range []*api.Allocation{own, foreign} {
		startUnknownTask(t, c.AllocDirRoot, alloc.ID, "main", "sdk")
		putAllocCopy(t, c.AllocDirRoot, alloc)
	}
	leftRunning := make(map[string]bool)
	c.OnProcessLeftRunning = func(allocID, _ string, _ osprocess.ID) { leftRunning[allocID] = true }
	adoption, adopted := newAdoption(s)
	c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"sdk": sdkDriver{}}, adoption)
	if !leftRunning[own.ID] || !leftRunning[foreign.ID] {
		t.Errorf("processes left running of %v", leftRunning)
	}
	if adopted[own.ID] == nil || adopted[foreign.ID] != nil || !c.isUnknownAlloc(foreign.ID) {
		t.Errorf("adopted %v; the allocation of another node is unknown: %t", adopted, c.isUnknownAlloc(foreign.ID))
	}
}

// An allocation whose adoption cannot be stored stays unknown, and its tasks continue.
func TestUnstoredAdoptionLeavesTheAllocUnknown(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	alloc := newCopiedAlloc("known", 0, map[string]string{"main": "sdk"})
	updater(t, s)(func(tx *store.Txn) {
		job := *alloc.Job
		tx.PutJobAndVersion(&job)
	})
	job := s.Snapshot().Job(nil, "default", "known")
	alloc.Job = job
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	process := startUnknownTask(t, c.AllocDirRoot, alloc.ID, "main", "sdk")
	putAllocCopy(t, c.AllocDirRoot, alloc)
	adoption, _ := newAdoption(s)
	adoption.Store = func(context.Context, []*api.Allocation, func(*store.Txn)) error { return errors.New("disk full") }
	c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"sdk": sdkDriver{}}, adoption)
	if id := c.FindUnknownInstance(job, alloc.Name); id != alloc.ID || !c.isUnknownAlloc(alloc.ID) || !process.Alive() {
		t.Errorf("the instance is %q, unknown: %t, its process lives: %t", id, c.isUnknownAlloc(alloc.ID), process.Alive())
	}
}

// The state has a job while anything is left of it from which the scheduler recovers it.
func TestIsJobInState(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*store.Txn, *api.Job)
		want   bool
	}{
		"the job":                      {func(*store.Txn, *api.Job) {}, true},
		"another job with its ID":      {func(_ *store.Txn, job *api.Job) { job.CreateIndex = new(*job.CreateIndex + 1) }, false},
		"nothing":                      {func(tx *store.Txn, _ *api.Job) { tx.DeleteJob("default", "known") }, false},
		"a running allocation":         {putAllocAndDeleteJob(api.AllocDesiredStatusRun, api.AllocClientStatusRunning), true},
		"a stopping allocation":        {putAllocAndDeleteJob(api.AllocDesiredStatusStop, api.AllocClientStatusRunning), false},
		"an allocation that has ended": {putAllocAndDeleteJob(api.AllocDesiredStatusRun, api.AllocClientStatusComplete), false},
		"an earlier version": {func(tx *store.Txn, job *api.Job) {
			tx.DeleteJob("default", "known")
			tx.PutJobVersion(job)
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, filepath.Join(t.TempDir(), "state.db"))
			defer s.Close()
			put := updater(t, s)
			put(func(tx *store.Txn) { tx.PutJobAndVersion(newCopiedAlloc("known", 0, nil).Job) })
			job := *s.Snapshot().Job(nil, "default", "known")
			put(func(tx *store.Txn) { tt.change(tx, &job) })
			if got := (&Cleaner{Logger: hclog.NewNullLogger(), Store: s}).isJobInState(&job); got != tt.want {
				t.Errorf("the job is in the state: %t, want %t", got, tt.want)
			}
		})
	}
}

// putAllocAndDeleteJob leaves only an allocation of a job.
func putAllocAndDeleteJob(desired, client string) func(*store.Txn, *api.Job) {
	return func(tx *store.Txn, job *api.Job) {
		alloc := newCopiedAlloc("known", 0, nil)
		alloc.Job, alloc.DesiredStatus, alloc.ClientStatus = job, desired, client
		tx.PutScheduledAllocation(alloc)
		tx.DeleteJob("default", "known")
	}
}
