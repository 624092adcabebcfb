package orphans

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

func openStore(t *testing.T, path string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Config{StateFilePath: path, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// updater returns a function that stores what f writes.
func updater(t *testing.T, s *store.Store) (put func(f func(*store.Txn))) {
	return func(f func(*store.Txn)) {
		t.Helper()
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOrphansIncludeInterruptedRemovals(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	for _, id := range []string{"here", "gone"} {
		if err := os.MkdirAll(filepath.Join(c.AllocDirRoot, id, "alloc"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put := updater(t, s)
	put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "here", Job: &api.Job{}}) })
	if got := c.findOrphans(); !slices.Equal(got, []orphan{{allocID: "gone"}}) {
		t.Errorf("orphans %v, want the one that has only a directory", got)
	}
	// The agent may receive a request to delete the allocation before the node
	// runner first lists the allocations.
	put(func(tx *store.Txn) { tx.DeleteAllocationAndQueueRemoval("here") })
	if got := c.findOrphans(); !slices.Equal(got, []orphan{{allocID: "gone"}, {allocID: "here", hasRecords: true, isBeingRemoved: true, nodeRunnerRemovesAlloc: true}}) {
		t.Errorf("orphans %v, want the one that was being removed too", got)
	}
	c.DestroyOrAdoptOrphans(t.Context(), supervisor.New(supervisor.Config{Logger: c.Logger}), nil)
	if _, err := os.Stat(filepath.Join(c.AllocDirRoot, "here")); err != nil {
		t.Error("its hooks were not told yet that it is removed:", err)
	}
	if left := s.Snapshot().AllocationsPendingRemoval(); len(left) != 1 || left[0].ID != "here" {
		t.Errorf("pending removals %+v, want the one that its node removes", left)
	}
}

// Neither a driver nor a runner removes an orphan's cgroups.
func TestEmptyCgroupsOfOrphansAreRemoved(t *testing.T) {
	const task = "web"
	hierarchy, orphanID := cgroup.Open(cgroup.Options{}), uuid.NewString()
	_, err := hierarchy.Make(orphanID, task, 0)
	defer hierarchy.KillAndRemove(orphanID, task)
	if cgroups, _ := osprocess.TaskCgroups(orphanID, task); err != nil || len(cgroups) == 0 {
		t.Skipf("no cgroups can be made here: %v", err)
	}
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	updater(t, s)(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "here", Job: &api.Job{}}) })
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	if err := os.MkdirAll(filepath.Join(c.AllocDirRoot, orphanID, "alloc"), 0o755); err != nil { // the task's directory is lost
		t.Fatal(err)
	}
	c.DestroyOrAdoptOrphans(t.Context(), supervisor.New(supervisor.Config{Logger: c.Logger}), nil)
	if cgroups, err := osprocess.TaskCgroups(orphanID, task); err != nil || len(cgroups) > 0 {
		t.Errorf("cgroups %v remain, error %v", cgroups, err)
	}
}

// An earlier version left the directories open. The runners close running allocations' directories, because the runners have the
// list of the tasks' users.
func TestDirectoriesOfEndedAllocationsAreClosed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("an agent that is not root closes its data directory")
	}
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	want := map[string]fs.FileMode{"running": 0o755, "complete": 0o700, "unknown": 0o700}
	for id := range want {
		if err := os.MkdirAll(filepath.Join(c.AllocDirRoot, id, "alloc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if id != "unknown" {
			_, err := s.Update(t.Context(), func(tx *store.Txn) error {
				tx.PutScheduledAllocation(&api.Allocation{ID: id, Job: &api.Job{}, ClientStatus: id})
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 2 {
		c.denyAccessToDirsOfEndedAllocs()
		for id, mode := range want {
			if info, err := os.Stat(filepath.Join(c.AllocDirRoot, id)); err != nil || info.Mode().Perm() != mode {
				t.Errorf("%s: %v, %v; want mode %o", id, info.Mode(), err, mode)
			}
		}
	}
}

// If an allocation was being removed, its directory is removed even if the removal record is unusable.
func TestOrphanWithQuarantinedRecordIsRemoved(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	if err := os.MkdirAll(filepath.Join(c.AllocDirRoot, "gone", "alloc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []func(*store.Txn){
		func(tx *store.Txn) { tx.PutAgentRecord(state.PendingRemovalPrefix+"gone", "text") },
		func(*store.Txn) { s.Snapshot().AllocationsPendingRemoval() },
		func(*store.Txn) {},
	} {
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if got := c.findOrphans(); !slices.Equal(got, []orphan{{allocID: "gone", hasRecords: true, isBeingRemoved: true}}) {
		t.Errorf("orphans %v", got)
	}
	c.DestroyOrAdoptOrphans(t.Context(), supervisor.New(supervisor.Config{Logger: c.Logger}), nil)
	if _, err := os.Stat(filepath.Join(c.AllocDirRoot, "gone")); err == nil {
		t.Error("its directory is left")
	}
}

// An agent with a damaged state ends the plugin processes of earlier agents, whose records may be lost.
func TestFormerPluginsEndAfterDamage(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		s := openStore(t, filepath.Join(t.TempDir(), "state.db"))
		defer s.Close()
		put := updater(t, s)
		if damaged {
			put(func(tx *store.Txn) { tx.PutAgentRecord(state.PendingRemovalPrefix+"gone", "text") })
			s.Snapshot().AllocationsPendingRemoval()
			put(func(*store.Txn) {})
		}
		adoption, _ := newAdoption(s)
		var ended []string
		adoption.EndPluginsOfEarlierAgent = func(_ context.Context, name string) error {
			ended = append(ended, name)
			return nil
		}
		c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: t.TempDir(), Store: s}
		c.DestroyOrAdoptOrphans(t.Context(), namedDrivers{"sdk": sdkDriver{}}, adoption)
		if (len(ended) == 1) != damaged {
			t.Errorf("damaged %t: ended the former plugins of %q", damaged, ended)
		}
	}
}

// recordingDriver records the ids to destroy.
type recordingDriver struct {
	driver.Driver
	destroyed []string
}

func (d *recordingDriver) RecoverTask(context.Context, *driver.Handle) error { return nil }

func (d *recordingDriver) DestroyTask(_ context.Context, id string, _ bool) error {
	d.destroyed = append(d.destroyed, id)
	return nil
}

// singleDriverSource is a node's only driver.
type singleDriverSource struct{ *recordingDriver }

func (s singleDriverSource) DriverInfoByName() map[string]supervisor.DriverInfo {
	return map[string]supervisor.DriverInfo{"recording": {}}
}

func (singleDriverSource) WaitBrieflyForFirstReports(context.Context) error { return nil }

func (s singleDriverSource) Driver(context.Context, string) (driver.Driver, error) {
	return s.recordingDriver, nil
}

func TestEachStartOfAnOrphanIsDestroyed(t *testing.T) {
	handle := func(id string) *driver.Handle { return &driver.Handle{Config: &driver.TaskConfig{ID: id}} }
	for _, tt := range []struct {
		local record.Fields
		want  string
	}{
		{record.Fields{}, ""},
		{record.Fields{StartID: "1"}, "1"},
		{record.Fields{StartID: "1", Handle: handle("1")}, "1"},
		{record.Fields{StartID: "1", Handle: handle("1"), UnhandledExit: &restart.RunEnd{}, NextStartID: "2"}, "1 2"},
		{record.Fields{FirstPendingDestroy: &record.PendingDestroy{StartID: "1", Next: &record.PendingDestroy{StartID: "2"}}}, "1 2"},
	} {
		dir := t.TempDir()
		s := openStore(t, filepath.Join(dir, "state.db"))
		defer s.Close()
		put := updater(t, s)
		put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "gone", Job: &api.Job{}}) })
		if err := s.PutTask("gone", "web", tt.local, &api.TaskState{}, state.DurabilitySync)(); err != nil {
			t.Fatal(err)
		}
		put(func(tx *store.Txn) { tx.DeleteAllocationAndQueueRemoval("gone") })
		c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
		d := &recordingDriver{}
		c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{d}, nil)
		if got := strings.Join(d.destroyed, " "); got != tt.want {
			t.Errorf("%+v: destroyed %q, want %q", tt.local, got, tt.want)
		}
	}
}

// startingDriverSource is a node with only one driver, which has reported when WaitBrieflyForFirstReports returns.
type startingDriverSource struct {
	singleDriverSource
	reported bool
}

func (s *startingDriverSource) WaitBrieflyForFirstReports(context.Context) error {
	s.reported = true
	return nil
}

func (s *startingDriverSource) DriverInfoByName() map[string]supervisor.DriverInfo {
	if !s.reported {
		return nil
	}
	return s.singleDriverSource.DriverInfoByName()
}

// An orphan's driver can be a plugin without a known earlier run.
func TestOrphansAreDestroyedAfterTheFirstReports(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	put := updater(t, s)
	put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "gone", Job: &api.Job{}}) })
	if err := s.PutTask("gone", "web", record.Fields{StartID: "1"}, &api.TaskState{}, state.DurabilitySync)(); err != nil {
		t.Fatal(err)
	}
	put(func(tx *store.Txn) { tx.DeleteAllocationAndQueueRemoval("gone") })
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	d := &startingDriverSource{singleDriverSource: singleDriverSource{&recordingDriver{}}}
	c.DestroyOrAdoptOrphans(t.Context(), d, nil)
	if !slices.Equal(d.destroyed, []string{"1"}) {
		t.Errorf("destroyed %q", d.destroyed)
	}
}

// failingDriver fails to recover or to destroy tasks.
type failingDriver struct {
	driver.Driver
	recoverErr, err error
}

func (d failingDriver) RecoverTask(context.Context, *driver.Handle) error { return d.recoverErr }

func (d failingDriver) DestroyTask(context.Context, string, bool) error { return d.err }

// driverSequence is a node's only driver. Each Driver call returns the next element, a driver or an error.
type driverSequence struct{ left []any }

func (s *driverSequence) DriverInfoByName() map[string]supervisor.DriverInfo {
	return map[string]supervisor.DriverInfo{"sequence": {}}
}

func (*driverSequence) WaitBrieflyForFirstReports(context.Context) error { return nil }

func (s *driverSequence) Driver(context.Context, string) (driver.Driver, error) {
	next := s.left[0]
	s.left = s.left[1:]
	if err, ok := next.(error); ok {
		return nil, err
	}
	return next.(driver.Driver), nil
}

func TestRecordsOfOrphanStayUntilItsTaskIsDestroyed(t *testing.T) {
	for _, tt := range []struct {
		name     string
		drivers  []any
		stay     bool
		rebooted bool
	}{
		{"the driver does not have the task", []any{failingDriver{err: driver.ErrTaskNotFound}}, false, false},
		{"the plugin exits once", []any{failingDriver{err: driver.ErrPluginDown}, &recordingDriver{}}, false, false},
		{"the plugin exits and is unavailable", []any{failingDriver{err: driver.ErrPluginDown}, &driver.UnavailableError{Err: driver.ErrPluginDown}}, true, false},
		{"the driver fails", []any{failingDriver{err: errors.New("device busy")}}, true, false},
		{"the driver does not know the handle", []any{failingDriver{recoverErr: errors.New("another driver's state"), err: errors.New("device busy")}}, false, false},
		{"the driver cannot recover the task now", []any{failingDriver{recoverErr: driver.Recoverable(errors.New("no resources"))}}, true, false},
		{"the plugin exits while it recovers the task", []any{failingDriver{recoverErr: driver.ErrPluginDown}, &recordingDriver{}}, false, false},
		{"the plugin exits while it recovers the task, and is unavailable", []any{failingDriver{recoverErr: driver.ErrPluginDown}, &driver.UnavailableError{Err: driver.ErrPluginDown}}, true, false},
		{"no driver has the task's process after a reboot", []any{failingDriver{recoverErr: driver.Recoverable(errors.New("no resources"))}}, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			s := openStore(t, filepath.Join(dir, "state.db"))
			defer s.Close()
			put := updater(t, s)
			put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "lost", Job: &api.Job{}}) })
			if err := s.PutTask("lost", "web", record.Fields{StartID: "1", Handle: &driver.Handle{Config: &driver.TaskConfig{ID: "1"}}}, &api.TaskState{State: "running"}, state.DurabilitySync)(); err != nil {
				t.Fatal(err)
			}
			put(func(tx *store.Txn) {
				tx.DeleteAllocationAndQueueRemoval("lost")
				tx.DeleteAgentRecord(state.PendingRemovalPrefix + "lost")
			})
			c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, EndTasksOfUnknownAllocs: true, Rebooted: tt.rebooted}
			if err := os.MkdirAll(filepath.Join(c.AllocDirRoot, "lost", "alloc"), 0o755); err != nil {
				t.Fatal(err)
			}
			drivers := &driverSequence{tt.drivers}
			c.DestroyOrAdoptOrphans(t.Context(), drivers, nil)
			if left := s.Snapshot().AllocIDsWithLocalRecords(); slices.Contains(left, "lost") != tt.stay || len(drivers.left) > 0 {
				t.Errorf("records left of %v, want that of the allocation: %v; driver processes not asked: %d", left, tt.stay, len(drivers.left))
			}
			if _, err := os.Stat(filepath.Join(c.AllocDirRoot, "lost")); (err == nil) != tt.stay {
				t.Errorf("directory of the allocation: %v, want it to exist: %v", err, tt.stay)
			}
		})
	}
}

// A driver call that has ended with its context says nothing about the task.
func TestStartIsNotDestroyedAfterTheTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := record.PendingDestroy{StartID: "1", Handle: &driver.Handle{Config: &driver.TaskConfig{ID: "1"}}}
	drivers := namedDrivers{"d": failingDriver{recoverErr: errors.New("the call was cancelled")}}
	if err := (&Cleaner{Logger: hclog.NewNullLogger()}).destroyTaskStart(ctx, drivers, "d", start); err == nil {
		t.Error("the start counts as destroyed")
	}
}

// A process without a driver, which is not ended because another account can forge its environment, is not said to have ended,
// and keeps its directory and its records.
func TestOrphanWithForeignProcessIsNotSaidToHaveEnded(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("starts a process of another user: needs root")
	}
	dir, id := t.TempDir(), uuid.NewString()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	put := updater(t, s)
	put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: id, Job: &api.Job{}}) })
	if err := s.PutTask(id, "web", record.Fields{StartID: "1"}, &api.TaskState{State: "running"}, state.DurabilitySync)(); err != nil {
		t.Fatal(err)
	}
	put(func(tx *store.Txn) {
		tx.DeleteAllocationAndQueueRemoval(id)
		tx.DeleteAgentRecord(state.PendingRemovalPrefix + id)
	})
	process := exec.Command("/bin/sleep", "600")
	process.Env = []string{"NOMAD_ALLOC_ID=" + id, "NOMAD_TASK_NAME=web"}
	process.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}()
	for message, endsTasks := range map[string]bool{"may still run": true, "names it in its environment": false} {
		var text bytes.Buffer
		c := &Cleaner{Logger: hclog.New(&hclog.LoggerOptions{Output: &text}), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, EndTasksOfUnknownAllocs: endsTasks}
		taskDir := filepath.Join(c.AllocDirRoot, id, "web")
		if err := os.MkdirAll(taskDir, 0o755); err != nil {
			t.Fatal(err)
		}
		c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{&recordingDriver{}}, nil)
		if p, err := osprocess.LookupID(process.Process.Pid); err != nil || !p.Alive() {
			t.Fatal("the process of another user was ended:", err)
		}
		if said := text.String(); strings.Contains(said, "are ended") || strings.Contains(said, "remove its directory") || !strings.Contains(said, message) {
			t.Errorf("while the process runs, the agent says:\n%s", said)
		}
		if _, running := c.RunningUnknownAllocs()[id]; running == endsTasks {
			t.Errorf("while the process runs, the running unknown allocations are %v", c.RunningUnknownAllocs())
		}
		if _, err := os.Stat(taskDir); err != nil || !slices.Contains(s.Snapshot().AllocIDsWithLocalRecords(), id) {
			t.Errorf("while the process runs, its directory or its records are removed: %v", err)
		}
	}
}

// Mounts below an ended allocation's directory are unmounted at the start, unless a process uses them.
func TestDirectoriesOfEndedAllocationsAreUnmounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	const ended, unveiled, endedWithProcess, running = "0e5f3b8e-0000-4000-8000-000000000001", "0e5f3b8e-0000-4000-8000-000000000002", "0e5f3b8e-0000-4000-8000-000000000003", "0e5f3b8e-0000-4000-8000-000000000004"
	put := updater(t, s)
	mountPoints := map[string]string{
		ended:            filepath.Join(c.AllocDirRoot, ended, "web", "secrets"),
		unveiled:         filepath.Join(c.AllocDirRoot+"_mounts", unveiled+"-web", "local"),
		endedWithProcess: filepath.Join(c.AllocDirRoot, endedWithProcess, "web", "secrets"),
		running:          filepath.Join(c.AllocDirRoot, running, "web", "secrets"),
	}
	for id, point := range mountPoints {
		put(func(tx *store.Txn) {
			tx.PutScheduledAllocation(&api.Allocation{ID: id, Job: &api.Job{}})
			if id != running {
				tx.MarkAllocationEnded(id)
			}
		})
		if err := os.MkdirAll(point, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", point, "tmpfs", 0, ""); err != nil {
			t.Skip(err)
		}
		defer unix.Unmount(point, unix.MNT_DETACH)
	}
	process := exec.Command("/bin/sleep", "600")
	process.Env = []string{"NOMAD_ALLOC_ID=" + endedWithProcess, "NOMAD_TASK_NAME=web"}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = process.Process.Kill()
		_ = process.Wait()
	}()
	check := func(wantMounted ...string) {
		t.Helper()
		c.CleanUpAfterEndedAllocs()
		table, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		for id, point := range mountPoints {
			if got, want := bytes.Contains(table, []byte(" "+point+" ")), slices.Contains(wantMounted, id); got != want {
				t.Errorf("%s is mounted: %t, want %t", point, got, want)
			}
		}
	}
	check(endedWithProcess, running)
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // a killed process's status is an error
	check(running)
}

// A lost or unknown allocation's directory has no mount and no secret when the log says that it can be removed.
func TestDirectoryToRemoveIsUnmounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	for message, endsTasks := range map[string]bool{
		"tasks of a lost allocation are ended; remove its directory":                              true,
		"allocation is unknown, and no process of its tasks was found; remove its directory when": false,
	} {
		dir := t.TempDir()
		s := openStore(t, filepath.Join(dir, "state.db"))
		defer s.Close()
		var text bytes.Buffer
		c := &Cleaner{Logger: hclog.New(&hclog.LoggerOptions{Output: &text}), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, EndTasksOfUnknownAllocs: endsTasks}
		d, err := allocdir.New(c.AllocDirRoot, uuid.NewString())
		if err != nil {
			t.Fatal(err)
		}
		defer d.Destroy()
		if err := d.Build(); err != nil {
			t.Fatal(err)
		}
		task, err := d.BuildTaskDir("web", allocdir.TaskDirOptions{Isolation: driver.FSIsolationChroot, ChrootEnv: map[string]string{"/etc": "/etc"}})
		if err != nil {
			t.Skip(err)
		}
		if err := os.WriteFile(filepath.Join(task.SecretsDir, "token"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{&recordingDriver{}}, nil)
		if !strings.Contains(text.String(), message) {
			t.Errorf("no %q in the log:\n%s", message, text.String())
		}
		table, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil || bytes.Contains(table, []byte(" "+d.Path()+"/")) {
			t.Errorf("%s: something is mounted below %s: %v", message, d.Path(), err)
		}
		if _, err := os.Stat(filepath.Join(task.SecretsDir, "token")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a secret: %v", message, err)
		}
	}
}

// If the directory cannot be removed, the next agent needs the records: without them the directory is an unknown allocation's.
func TestRecordsStayUntilTheDirectoryIsRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	put := updater(t, s)
	put(func(tx *store.Txn) { tx.PutScheduledAllocation(&api.Allocation{ID: "lost", Job: &api.Job{}}) })
	if err := s.PutTask("lost", "web", record.Fields{StartID: "1"}, &api.TaskState{State: "running"}, state.DurabilitySync)(); err != nil {
		t.Fatal(err)
	}
	put(func(tx *store.Txn) {
		tx.DeleteAllocationAndQueueRemoval("lost")
		tx.DeleteAgentRecord(state.PendingRemovalPrefix + "lost")
	})
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, EndTasksOfUnknownAllocs: true}
	if err := os.MkdirAll(filepath.Join(c.AllocDirRoot, "lost", "alloc"), 0o755); err != nil {
		t.Fatal(err)
	}
	makeReadOnly := func(flags uintptr) {
		if err := unix.Mount(c.AllocDirRoot, c.AllocDirRoot, "", unix.MS_BIND|flags, ""); err != nil {
			t.Fatal(err)
		}
	}
	makeReadOnly(0)
	defer unix.Unmount(c.AllocDirRoot, unix.MNT_DETACH) // fails if the test has unmounted it
	makeReadOnly(unix.MS_REMOUNT | unix.MS_RDONLY)
	cleanUp := func() []string {
		c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{&recordingDriver{}}, nil)
		return s.Snapshot().AllocIDsWithLocalRecords()
	}
	if ids := cleanUp(); !slices.Contains(ids, "lost") {
		t.Errorf("the records left are of %q, want those of the allocation whose directory is not removed", ids)
	}
	if err := unix.Unmount(c.AllocDirRoot, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if ids := cleanUp(); len(ids) > 0 {
		t.Errorf("the records of %q stay after the directory was removed", ids)
	}
}
