package orphans

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// After the state file's loss, the tasks continue under each agent until the operator orders their end.
func TestTasksOfALostStateContinue(t *testing.T) {
	dir := t.TempDir()
	allocDirs, allocID := filepath.Join(dir, "alloc"), uuid.NewString()
	pid := startUnknownTask(t, allocDirs, allocID, "web", "raw_exec", "NOMAD_HOST_PORT_http=21000")
	path := filepath.Join(dir, "state.db")
	nextAgent := func(change func(*Cleaner)) (c *Cleaner, log string, destroyed []string) {
		t.Helper()
		s := openStore(t, path)
		defer s.Close()
		var text bytes.Buffer
		c = &Cleaner{Logger: hclog.New(&hclog.LoggerOptions{Output: &text}), AllocDirRoot: allocDirs, Store: s}
		change(c)
		d := &recordingDriver{}
		c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{d}, nil)
		c.denyAccessToDirsOfEndedAllocs()
		return c, text.String(), d.destroyed
	}
	for _, name := range []string{"first", "second, which has a job"} {
		var processes []osprocess.ID
		c, log, destroyed := nextAgent(func(c *Cleaner) {
			c.OnProcessLeftRunning = func(_, _ string, p osprocess.ID) { processes = append(processes, p) }
		})
		if !slices.Equal(processes, []osprocess.ID{pid}) {
			t.Errorf("%s agent: processes %v, want %v", name, processes, pid)
		}
		if len(destroyed) > 0 || !pid.Alive() || !c.UnknownTaskUsesHostPort(21000) || c.UnknownTaskUsesHostPort(21001) {
			t.Errorf("%s agent: destroyed %q, process alive: %t, port in use: %t", name, destroyed, pid.Alive(), c.UnknownTaskUsesHostPort(21000))
		}
		if want := "alloc_id=" + allocID + " task=web driver=raw_exec pids=[" + strconv.Itoa(pid.PID) + "]"; !strings.Contains(strings.ReplaceAll(log, `"`, ""), want) {
			t.Errorf("%s agent: no %q in the log:\n%s", name, want, log)
		}
		if info, err := os.Stat(filepath.Join(allocDirs, allocID)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s agent: the directory has the mode %v, %v", name, info.Mode(), err)
		}
		s := openStore(t, path)
		if _, err := s.Update(t.Context(), func(tx *store.Txn) error {
			tx.PutJobAndVersion(&api.Job{ID: new("new"), Namespace: new("default"), Version: new(uint64(0))})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		s.Close()
	}
	if c, _, destroyed := nextAgent(func(c *Cleaner) { c.EndTasksOfUnknownAllocs = true }); len(destroyed) != 1 || pid.Alive() || c.UnknownTaskUsesHostPort(21000) {
		t.Errorf("with the order to end unknown tasks: destroyed %q, process alive: %t", destroyed, pid.Alive())
	}
	if _, log, _ := nextAgent(func(*Cleaner) {}); strings.Contains(log, "continues") {
		t.Errorf("after the end of the unknown tasks:\n%s", log)
	}
}

// The record of an unknown allocation is deleted after its directory was removed.
func TestRecordOfARemovedUnknownAllocIsDeleted(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s}
	if err := os.MkdirAll(filepath.Join(c.AllocDirRoot, "here", "web"), 0o755); err != nil {
		t.Fatal(err)
	}
	updater(t, s)(func(tx *store.Txn) { tx.PutAgentRecord(state.UnknownAllocPrefix+"removed", true) })
	c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{&recordingDriver{}}, nil)
	if got := s.Snapshot().AgentRecordNames(state.UnknownAllocPrefix); !slices.Equal(got, []string{state.UnknownAllocPrefix + "here"}) {
		t.Errorf("records %q", got)
	}
}

// An agent that keeps no state ends what an earlier one has left.
func TestTasksOfAnEphemeralStateAreEnded(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "alloc", "a", "web"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, filepath.Join(dir, "run.db"))
	defer s.Close()
	c := &Cleaner{Logger: hclog.NewNullLogger(), AllocDirRoot: filepath.Join(dir, "alloc"), Store: s, StateWasEphemeral: true}
	d := &recordingDriver{}
	c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{d}, nil)
	if len(d.destroyed) != 1 {
		t.Errorf("destroyed %q", d.destroyed)
	}
}

// loseEnv moves a process to a task's cgroup without the task's environment.
func loseEnv(t *testing.T, allocDirs, allocID, task string) osprocess.ID {
	t.Helper()
	p := startUnknownTask(t, allocDirs, allocID, task, "raw_exec")
	other := exec.Command("sleep", "1000")
	other.SysProcAttr, other.Env = &syscall.SysProcAttr{Setsid: true}, []string{"PATH=/bin"}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	_ = p.KillAndWait(t.Context()) // the process with the environment has ended
	id, err := osprocess.LookupID(other.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(osprocess.CgroupMount, "freezer/nomad", allocID+"."+task)
	if version, base, _ := osprocess.FindCgroups(osprocess.CgroupMount); version == 2 {
		dir = filepath.Join(base, "nomad.slice/share.slice", allocID+"."+task+".scope")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("no cgroups can be made here: %v", err)
	}
	t.Cleanup(func() {
		_ = osprocess.Cgroup(dir).Kill(t.Context()) // it is empty if the test has passed
		_ = osprocess.Cgroup(dir).Remove()
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(id.PID)), 0); err != nil {
		t.Fatal(err)
	}
	return id
}

// A task outside its session and without an environment is found by its cgroup: as an unknown task, and as an
// orphan's process. One search is for all allocations.
func TestTasksWithoutEnvironmentAreFound(t *testing.T) {
	searches := 0
	t.Cleanup(func() { findTaskProcesses = osprocess.FindTaskProcesses })
	findTaskProcesses = func(s osprocess.TaskSearch) (map[osprocess.TaskEnvID][]osprocess.ID, error) {
		searches++
		return osprocess.FindTaskProcesses(s)
	}
	dir := t.TempDir()
	allocDirs := filepath.Join(dir, "alloc")
	var processes []osprocess.ID
	for range 5 {
		processes = append(processes, loseEnv(t, allocDirs, uuid.NewString(), "web"))
	}
	allAlive := func() bool { return !slices.ContainsFunc(processes, func(p osprocess.ID) bool { return !p.Alive() }) }
	s := openStore(t, filepath.Join(dir, "state.db"))
	defer s.Close()
	nextAgent := func(change func(*Cleaner)) string {
		t.Helper()
		var text bytes.Buffer
		c := &Cleaner{Logger: hclog.New(&hclog.LoggerOptions{Output: &text}), AllocDirRoot: allocDirs, Store: s}
		change(c)
		searches = 0
		c.DestroyOrAdoptOrphans(t.Context(), singleDriverSource{&recordingDriver{}}, nil)
		return text.String()
	}
	if log := nextAgent(func(*Cleaner) {}); strings.Count(log, "task of an unknown allocation runs, and continues") != 5 || searches != 1 || !allAlive() {
		t.Errorf("unknown: %d searches, alive: %t\n%s", searches, allAlive(), log)
	}
	log := nextAgent(func(c *Cleaner) { c.EndTasksOfUnknownAllocs = true })
	if strings.Count(log, "remove its directory") != 5 || slices.ContainsFunc(processes, osprocess.ID.Alive) {
		t.Errorf("end of orphans:\n%s", log)
	}
}
