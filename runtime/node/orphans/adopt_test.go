package orphans

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// startUnknownTask starts a task in the directory of an allocation that no state has.
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

// namedDrivers are the drivers of a node.
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

// sdkDriver is a driver whose process has not started its tasks, and finds them after formerEnded.
type sdkDriver struct {
	driver.Driver
	formerEnded bool
	found       map[string]*driver.TaskConfig
}

func (d *sdkDriver) InspectTask(_ context.Context, id string) (*driver.TaskStatus, error) {
	config := d.found[id]
	if config == nil {
		return &driver.TaskStatus{StartStatus: &driver.StartStatus{Phase: driver.StartNotFound}}, nil
	}
	return &driver.TaskStatus{
		State:       driver.TaskRunning,
		StartStatus: &driver.StartStatus{Phase: driver.StartReturned, Handle: &driver.Handle{Version: 1, Config: config, DriverState: []byte(id)}},
	}, nil
}

func (d *sdkDriver) RecoverTask(_ context.Context, h *driver.Handle) error {
	if !d.formerEnded || h.Version != 0 {
		return driver.ErrTaskNotFound
	}
	d.found[h.Config.ID] = h.Config
	return nil
}

// foreignDriver is not made with package sdk: a process of it does not know the tasks of another one.
type foreignDriver struct{ driver.Driver }

func (foreignDriver) InspectTask(context.Context, string) (*driver.TaskStatus, error) {
	return nil, driver.ErrTaskNotFound
}

// Allocations whose tasks all have a handle get records, by which a runner restores them. The others stay unknown.
func TestUnknownTasksAreAdopted(t *testing.T) {
	dir := t.TempDir()
	allocDirs := filepath.Join(dir, "alloc")
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	env := func(job, index string, more ...string) []string {
		return append([]string{
			"NOMAD_JOB_ID=" + job, "NOMAD_GROUP_NAME=g", "NOMAD_ALLOC_NAME=" + job + ".g[" + index + "]", "NOMAD_NAMESPACE=team", "NOMAD_REGION=global", "NOMAD_CPU_LIMIT=200", "NOMAD_MEMORY_LIMIT=64",
		}, more...)
	}
	first, second, mixed := uuid.NewString(), uuid.NewString(), uuid.NewString()
	startUnknownTask(t, allocDirs, first, "main", "sdk", env("web", "0", "NOMAD_HOST_PORT_http=21000", "NOMAD_PORT_http=80", "NOMAD_HOST_IP_http=192.0.2.1")...)
	side := startUnknownTask(t, allocDirs, first, "side", "sdk", env("web", "0")...)
	startUnknownTask(t, allocDirs, second, "main", "sdk", env("web", "1")...)
	startUnknownTask(t, allocDirs, mixed, "main", "sdk", env("other", "0")...)
	startUnknownTask(t, allocDirs, mixed, "foreign", "foreign", env("other", "0")...)

	var log bytes.Buffer
	var adopted []AdoptedJob
	own := &sdkDriver{found: make(map[string]*driver.TaskConfig)}
	var reserved []osprocess.ID
	c := &Cleaner{
		Logger: hclog.New(&hclog.LoggerOptions{Output: &log}), AllocDirRoot: allocDirs, Store: s,
		AdoptUnknownAllocs: true, Node: model.NodeFacts{ID: "node", Name: "here"},
		OnProcessLeftRunning: func(_, _ string, p osprocess.ID) { reserved = append(reserved, p) },
		EndPluginsOfEarlierAgent: func(_ context.Context, name string) error {
			own.formerEnded = own.formerEnded || name == "sdk"
			return nil
		},
		StoreAdoptedJob: func(ctx context.Context, j AdoptedJob) error {
			adopted = append(adopted, j)
			_, err := s.Update(ctx, func(tx *store.Txn) error {
				model.Canonicalize(j.Job)
				tx.PutJobAndVersion(j.Job)
				for _, a := range j.Allocs {
					a.Job = j.Job
					tx.PutScheduledAllocation(a)
				}
				j.StoreTaskRecords(tx)
				return nil
			})
			return err
		},
	}
	c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"sdk": own, "foreign": foreignDriver{}})

	if len(adopted) != 1 {
		t.Fatalf("adopted %+v, want one job\n%s", adopted, log.String())
	}
	job, group := adopted[0].Job, adopted[0].Job.TaskGroups[0]
	if *job.ID != "web" || *job.Namespace != "team" || !model.IsJobMadeForOrphanTasks(job) || len(job.TaskGroups) != 1 || *group.Count != 2 || len(group.Tasks) != 2 || *group.RestartPolicy.Attempts != 0 {
		t.Errorf("job %+v, group %+v", job, group)
	}
	snapshot := s.Snapshot()
	for _, a := range adopted[0].Allocs {
		if want := map[string]string{first: "web.g[0]", second: "web.g[1]"}[a.ID]; a.Name != want || a.NodeID != "node" || a.NodeName != "here" {
			t.Errorf("allocation %s of node %s (%s) is %s, want %s", a.ID, a.NodeID, a.NodeName, a.Name, want)
		}
		if ports := a.AllocatedResources.Shared.Ports; a.ID == first && (len(ports) != 1 || ports[0].Value != 21000 || ports[0].To != 80 || ports[0].HostIP != "192.0.2.1") {
			t.Errorf("ports %+v", ports)
		}
	}
	for key, wantState := range map[[2]string]string{{first, "main"}: "running", {first, "side"}: "running", {second, "main"}: "running", {second, "side"}: "dead"} {
		local, known, err := snapshot.TaskLocalState(key[0], key[1])
		status, stateErr := snapshot.TaskState(key[0], key[1])
		if err != nil || stateErr != nil || !known || status.State != wantState {
			t.Fatalf("%v: %+v, %t, %v; state %+v, %v", key, local, known, err, status, stateErr)
		}
		if wantState == "dead" {
			if !local.RunComplete || local.Handle != nil {
				t.Errorf("%v did not run, and is %+v", key, local)
			}
			continue
		}
		if id := key[0] + "/" + key[1] + "/start"; local.StartID != id || local.Handle == nil || string(local.Handle.DriverState) != id || local.Handle.Config.AllocDir != filepath.Join(allocDirs, key[0]) {
			t.Errorf("%v: %+v", key, local)
		}
	}
	if got := snapshot.AgentRecordNames(state.UnknownAllocPrefix); !slices.Equal(got, []string{state.UnknownAllocPrefix + mixed}) {
		t.Errorf("unknown allocations %q, want only the one with a task of a foreign driver", got)
	}
	if want := `unknown allocation not adopted: alloc_id=` + mixed; !strings.Contains(log.String(), want) {
		t.Errorf("no %q in the log:\n%s", want, log.String())
	}
	if !slices.Contains(reserved, side) || c.UnknownTaskUsesHostPort(21000) || !c.isUnknownAlloc(mixed) || c.isUnknownAlloc(first) {
		t.Errorf("reserved processes %v; port of an adopted allocation unknown: %t", reserved, c.UnknownTaskUsesHostPort(21000))
	}
}
