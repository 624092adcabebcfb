package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/systemtest"
)

// ledger is the record that tasks write themselves, into files that neither agents nor servers know.
type ledger struct {
	t   testing.TB
	dir string
}

func newLedger(t testing.TB) *ledger { return &ledger{t, t.TempDir()} }

// ledgerScript records the start of the task, and each number that it prints, and ends with the exit code 0 after SIGTERM.
const ledgerScript = `
finish() { :; }
` + ledgerLoop

// ledgerLoop is ledgerScript without the function finish, which it calls before the task ends. It records without a process and
// without a lock, because tasks on a busy machine would wait for both until they are killed: echo writes a line with one call.
const ledgerLoop = `
trap 'kill $! 2>/dev/null; finish; record end; exit 0' TERM INT
record() {
  event=$1
  read -r stat </proc/$$/stat
  set -- $stat
  shift 21
  echo "$event $NOMAD_ALLOC_ID $NOMAD_JOB_NAME/$NOMAD_GROUP_NAME/$NOMAD_ALLOC_INDEX $$ $1" >>$LEDGER/runs
}
record start
i=0
while :; do
  i=$((i+1))
  echo $i >>$LEDGER/counts.$NOMAD_ALLOC_ID
  echo $i
  sleep $PAUSE &
  wait $!
done
`

// newTask returns a task that writes the ledger.
func (l *ledger) newTask(name string) *api.Task {
	task := api.NewTask(name, "raw_exec").SetConfig("command", "/bin/sh").SetConfig("args", []string{"-c", ledgerScript})
	task.Env = map[string]string{"LEDGER": l.dir, "PAUSE": "1"}
	task.Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
	task.LogConfig = &api.LogConfig{MaxFiles: new(2), MaxFileSizeMB: new(2)}
	task.KillTimeout = new(20 * time.Second)
	return task
}

// newJob returns a service job with one group of count allocations, whose tasks are not restarted by a node.
func (l *ledger) newJob(id string, count int, edit ...func(*api.TaskGroup)) *api.Job {
	group := api.NewTaskGroup("g", count)
	group.EphemeralDisk = &api.EphemeralDisk{SizeMB: new(20)}
	group.RestartPolicy = &api.RestartPolicy{Attempts: new(0), Mode: new("fail")}
	group.ReschedulePolicy = &api.ReschedulePolicy{Attempts: new(0), Unlimited: new(false)}
	group.Update = &api.UpdateStrategy{MinHealthyTime: new(100 * time.Millisecond), HealthCheck: new("task_states"), HealthyDeadline: new(5 * time.Minute)}
	group.AddTask(l.newTask("t"))
	for _, e := range edit {
		e(group)
	}
	job := api.NewServiceJob(id, id, api.GlobalRegion, 50).AddTaskGroup(group)
	job.Datacenters = []string{"*"}
	return job
}

// run is one start of a task by its own record.
type run struct {
	allocID, allocName string // the name has the job, the group and the index
	pid                int
	startTime          string // in ticks since the boot, which with the pid identifies the process
	ended              bool   // the task has recorded its end
}

// alive reports whether the process of the run lives.
func (r run) alive() bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.pid))
	if err != nil {
		return false
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	return len(fields) > 19 && fields[19] == r.startTime && fields[0] != "Z"
}

// countsFile returns the path of the file with the numbers that the task of an allocation has printed.
func (l *ledger) countsFile(allocID string) string { return filepath.Join(l.dir, "counts."+allocID) }

// runs returns all runs, in the order of their starts.
func (l *ledger) runs() (runs []run) {
	l.t.Helper()
	text, err := os.ReadFile(filepath.Join(l.dir, "runs"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 5 {
			l.t.Fatalf("line %q in the ledger", line)
		}
		pid, err := strconv.Atoi(f[3])
		if err != nil {
			l.t.Fatal(err)
		}
		r := run{allocID: f[1], allocName: f[2], pid: pid, startTime: f[4]}
		if f[0] == "start" {
			runs = append(runs, r)
		} else if i := slices.Index(runs, r); i >= 0 {
			runs[i].ended = true
		} else {
			l.t.Fatalf("the end without a start: %q", line)
		}
	}
	return runs
}

// runsOf returns the runs of an allocation.
func (l *ledger) runsOf(allocID string) []run {
	return slices.DeleteFunc(l.runs(), func(r run) bool { return r.allocID != allocID })
}

// checkOnce checks that no allocation was started more than once, and that no two allocations with the same name run.
func (l *ledger) checkOnce() {
	l.t.Helper()
	runByAlloc, aliveByName := map[string]run{}, map[string]run{}
	for _, r := range l.runs() {
		if first, twice := runByAlloc[r.allocID]; twice {
			l.t.Errorf("allocation %s was started twice: %+v and %+v", r.allocID, first, r)
		}
		runByAlloc[r.allocID] = r
		if r.alive() {
			if other, twice := aliveByName[r.allocName]; twice {
				l.t.Errorf("two allocations run as %s: %+v and %+v", r.allocName, other, r)
			}
			aliveByName[r.allocName] = r
		}
	}
}

// alive returns the runs whose processes live, by allocation.
func (l *ledger) alive() map[string]run {
	found := map[string]run{}
	for _, r := range l.runs() {
		if r.alive() {
			found[r.allocID] = r
		}
	}
	return found
}

// register registers a job.
func (c *cluster) register(job *api.Job) {
	c.t.Helper()
	_, _, err := c.api().Jobs().Register(job, nil)
	c.check(err)
}

// allocs returns the allocations of a job that the servers have.
func (c *cluster) allocs(jobID string) ([]*api.AllocationListStub, error) {
	list, _, err := c.api().Jobs().Allocations(jobID, true, nil)
	return list, err
}

// awaitRunning waits until the servers have exactly count running allocations of a job that are desired to run, and until the
// ledger has the process of each of them. It returns them by their ids.
func (c *cluster) awaitRunning(l *ledger, jobID string, count int) map[string]*api.AllocationListStub {
	c.t.Helper()
	var running map[string]*api.AllocationListStub
	c.eventually(fmt.Sprintf("%d allocations of %s run", count, jobID), func() error {
		running = map[string]*api.AllocationListStub{}
		list, err := c.allocs(jobID)
		if err != nil {
			return err
		}
		alive := l.alive()
		var others []string
		for _, a := range list {
			_, isAlive := alive[a.ID]
			if a.DesiredStatus == api.AllocDesiredStatusRun && a.ClientStatus == api.AllocClientStatusRunning && isAlive {
				running[a.ID] = a
				continue
			}
			// An allocation that the node has stopped because of stop_on_client_after is desired to run for ever.
			ended := a.ClientStatus == api.AllocClientStatusComplete || a.ClientStatus == api.AllocClientStatusFailed || a.ClientStatus == api.AllocClientStatusLost
			if isAlive || !ended && (a.DesiredStatus == api.AllocDesiredStatusRun || a.ClientStatus == api.AllocClientStatusRunning) {
				others = append(others, fmt.Sprintf("%s on %s desired %s is %s, alive %t: %s", a.ID, a.NodeName, a.DesiredStatus, a.ClientStatus, isAlive, eventsOf(a)))
			}
		}
		if len(running) != count || len(others) > 0 {
			return fmt.Errorf("%d run; others: %s", len(running), strings.Join(others[:min(5, len(others))], "\n"))
		}
		return nil
	})
	return running
}

// awaitServices waits until the servers have count registrations of a service, and returns them.
func (c *cluster) awaitServices(name string, count int) []*api.ServiceRegistration {
	c.t.Helper()
	var list []*api.ServiceRegistration
	c.eventually(fmt.Sprintf("there are %d registrations of service %s", count, name), func() (err error) {
		if list, _, err = c.api().Services().Get(name, nil); err == nil && len(list) != count {
			err = fmt.Errorf("there are %d", len(list))
		}
		return err
	})
	return list
}

func eventsOf(a *api.AllocationListStub) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(a.TaskStates)) {
		all = append(all, name+" "+a.TaskStates[name].State+": "+systemtest.FormatEvents(a.TaskStates[name]))
	}
	return strings.Join(all, "; ")
}

// checkUntouched checks that allocations have run on since they were seen: the same processes, no restart, no new event, and a
// log that has all numbers once.
func (n *node) checkUntouched(l *ledger, when string, before map[string]*api.AllocationListStub) {
	n.t.Helper()
	l.checkOnce()
	sizes := map[string]int64{}
	for id := range before {
		sizes[id] = fileSize(l.countsFile(id))
	}
	for id, was := range before {
		a, _, err := n.cluster.api().Allocations().Info(id, nil)
		n.cluster.check(err)
		runs := l.runsOf(id)
		if len(runs) != 1 || !runs[0].alive() {
			n.t.Errorf("%s: allocation %s has the runs %+v", when, id, runs)
			continue
		}
		state, wasState := a.TaskStates["t"], was.TaskStates["t"]
		if a.DesiredStatus != "run" || a.ClientStatus != "running" || state == nil || state.Restarts != 0 || state.Failed || !state.StartedAt.Equal(wasState.StartedAt) {
			n.t.Errorf("%s: allocation %s is %s, desired %s: %+v", when, id, a.ClientStatus, a.DesiredStatus, state)
			continue
		}
		if got, want := systemtest.FormatEvents(state), systemtest.FormatEvents(wasState); got != want {
			n.t.Errorf("%s: allocation %s has the events %s, had %s", when, id, got, want)
		}
		n.checkLog(l, when, id, sizes[id])
	}
}

func fileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return -1
	}
	return info.Size()
}

// checkLog checks that the task of an allocation counts on, and that its log has all numbers.
func (n *node) checkLog(l *ledger, when, id string, size int64) {
	n.t.Helper()
	counts := l.countsFile(id)
	n.cluster.eventually("the task of "+id+" counts on", func() error {
		if now := fileSize(counts); now <= size {
			return fmt.Errorf("%d bytes", now)
		}
		return nil
	})
	counted, err := os.ReadFile(counts)
	if err != nil {
		n.t.Fatal(err)
	}
	want := strings.Count(string(counted), "\n")
	var lines []string
	n.cluster.eventually("the log of "+id+" is complete", func() error {
		text, err := os.ReadFile(filepath.Join(n.dataDir, "alloc", id, "alloc", "logs", "t.stdout.0"))
		if lines = strings.Fields(string(text)); err == nil && len(lines) < want {
			err = fmt.Errorf("%d lines, want %d", len(lines), want)
		}
		return err
	})
	for i, line := range lines[:want] {
		if line != strconv.Itoa(i+1) {
			n.t.Errorf("%s: line %d of the log of %s is %q", when, i+1, id, line)
			return
		}
	}
}

// checkReachable checks that each running server reaches the tasks of the node: a command, the statistics and the log of one
// allocation.
func (n *node) checkReachable(when, allocID string) {
	n.t.Helper()
	alloc := &api.Allocation{ID: allocID} // without the id of the node, so that the client does not connect to the node
	for _, s := range n.cluster.servers {
		if s.process == nil {
			continue
		}
		n.cluster.eventually(fmt.Sprintf("%s: %s reaches allocation %s", when, s.name, allocID), func() error {
			var out bytes.Buffer
			code, err := s.Allocations().Exec(n.t.Context(), alloc, "t", false, []string{"/bin/sh", "-c", "cat; exit 4"}, strings.NewReader("ran"), &out, &out, nil, nil)
			if err != nil || code != 4 || out.String() != "ran" {
				return fmt.Errorf("exec: %d, %w, %q", code, err, out.String())
			}
			if _, err := s.Allocations().Stats(alloc, nil); err != nil {
				return fmt.Errorf("stats: %w", err)
			}
			log, err := s.AllocFS().Cat(alloc, "alloc/logs/t.stdout.0", nil)
			if err != nil {
				return fmt.Errorf("cat: %w", err)
			}
			defer log.Close()
			if text, err := io.ReadAll(log); err != nil || !strings.HasPrefix(string(text), "1\n") {
				return fmt.Errorf("cat: %q, %w", text, err)
			}
			return nil
		})
	}
}
