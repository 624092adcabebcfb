package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/testsupport/endurance"
	"github.com/nomad-lite/nomad-lite/internal/testsupport/slowtest"
)

// TestDamagedStateKeepsTasks damages the state file of a killed agent at random places while tasks of all kinds run. The
// next agents end no task, start no second instance of a task, report all allocations of the jobs that they still know as
// running, unless only a killed plugin process knew their tasks, and log the allocations that they do not know. A copy of
// the state file that is put back restores everything.
//
//	make test-damage
func TestDamagedStateKeepsTasks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have cgroups and task directories like an agent's")
	}
	long := endurance.CurrentMode() != endurance.Sample
	taskCount := 12
	if long {
		taskCount = 24
	} else {
		slowtest.Skip(t, "starts agents on many damaged files")
		t.Parallel()
	}
	run := endurance.Start(t, endurance.Config{Sample: 8, Unit: "damages", Load: fmt.Sprintf("%d tasks of all kinds", taskCount)})
	n := newKillNode(t, agentEnvironment{})
	if long {
		n.startEngines()
	}
	r := newRandomKillsRun(n, taskCount)
	run.Each(func(seed uint64) error {
		r.end(syscall.SIGKILL)
		before := r.taskRecords()
		path := filepath.Join(r.dataDir(), "state.db")
		intact, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		random := rand.New(rand.NewPCG(seed, 0))
		name, damaged := newDamage(random, intact)
		if random.IntN(2) == 0 {
			plugins := slices.DeleteFunc(slices.Clone(r.required), func(kind string) bool { return kind == "keeper" || kind == "log-collector" })
			victim := plugins[random.IntN(len(plugins))]
			r.killVictim(victim)
			name += ", " + victim + " killed"
		}
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			return err
		}
		for range 1 + random.IntN(2) {
			logStart := r.logSize()
			r.startAgent()
			r.waitNoError(fmt.Sprintf("seed %d: %s: the tasks continue", seed, name), func() error { return r.checkAfterDamage(before, logStart) })
			r.end(syscall.SIGKILL)
		}
		if err := os.WriteFile(path, intact, 0o600); err != nil {
			return err
		}
		r.startAgent()
		r.checkTasks()
		run.Add(1)
		return nil
	})
	r.stopAndCheck()
}

// newDamage returns a damaged copy of a state file, and the name of the damage.
func newDamage(random *rand.Rand, intact []byte) (name string, damaged []byte) {
	damaged = slices.Clone(intact)
	randomRange := func() (from, to int) {
		from = random.IntN(len(damaged))
		return from, min(len(damaged), from+1+random.IntN(1+random.IntN(16*stateBlockSize)))
	}
	from, to := randomRange()
	switch random.IntN(5) {
	case 0:
		return fmt.Sprintf("cut at %d of %d", from, len(damaged)), damaged[:from]
	case 1:
		clear(damaged[from:to])
		return fmt.Sprintf("zeroed from %d to %d of %d", from, to, len(damaged)), damaged
	case 2:
		size := min(to-from, len(damaged)/2)
		other := random.IntN(len(damaged) - size)
		from = min(from, len(damaged)-size)
		copy(damaged[from:from+size], intact[other:other+size])
		copy(damaged[other:other+size], intact[from:from+size])
		return fmt.Sprintf("%d bytes at %d and %d exchanged, of %d", size, from, other, len(damaged)), damaged
	case 3:
		for i := from; i < to; i++ {
			damaged[i] = byte(random.Uint32())
		}
		return fmt.Sprintf("overwritten from %d to %d of %d", from, to, len(damaged)), damaged
	}
	bits := 1 + random.IntN(64)
	for range bits {
		damaged[random.IntN(len(damaged))] ^= 1 << random.IntN(8)
	}
	return fmt.Sprintf("%d bits inverted", bits), damaged
}

// taskRecords returns what the tasks have recorded, by allocation ID.
func (r *randomKillsRun) taskRecords() map[string]taskRecord {
	records := make(map[string]taskRecord)
	for _, id := range r.allocIDs {
		records[id] = r.readTaskRecord(id)
	}
	return records
}

func (r *randomKillsRun) logSize() int64 {
	info, err := r.log.Stat()
	if err != nil {
		r.Fatal(err)
	}
	return info.Size()
}

// checkAfterDamage returns an error if a task does not run as before, or if the agent, whose log starts at logStart, neither
// reports its allocation as running nor logs it as unknown.
func (r *randomKillsRun) checkAfterDamage(before map[string]taskRecord, logStart int64) error {
	list, _, err := r.client.Allocations().List(nil)
	if err != nil {
		return err
	}
	jobs, _, err := r.client.Jobs().List(nil)
	if err != nil {
		return err
	}
	log, err := os.ReadFile(r.log.Name())
	if err != nil {
		return err
	}
	log = log[logStart:]
	processes := r.processes()
	stubs := make(map[string]*api.AllocationListStub)
	for _, a := range list {
		stubs[a.ID] = a
		if _, known := before[a.ID]; !known && a.DesiredStatus == api.AllocDesiredStatusRun {
			r.Fatalf("allocation %s of %s was placed although the tasks of the former ones run", a.ID, a.JobID)
		}
	}
	for id, record := range before {
		kind := r.kindByAlloc[id].name
		isLogged := strings.Contains(string(log), "task of an unknown allocation runs, and continues: alloc_id="+id[:8])
		now := r.readTaskRecord(id)
		if !slices.Equal(now.pids, record.pids) || now.runsOverlapped {
			r.Fatalf("%s: task of %s: runs %v, before the damage %v; overlapped: %t", kind, id, now.pids, record.pids, now.runsOverlapped)
		}
		if n := len(processes[taskProcessKind(id)]); n != 1 {
			r.Fatalf("%s: %d processes of the task of %s", kind, n, id)
		}
		switch stub := stubs[id]; {
		case stub != nil && (stub.DesiredStatus != api.AllocDesiredStatusRun || stub.ClientStatus != api.AllocClientStatusRunning):
			err = errors.Join(err, fmt.Errorf("%s: allocation %s is %s/%s", kind, id, stub.DesiredStatus, stub.ClientStatus))
		case stub == nil && r.kindByAlloc[id].foreign && isLogged:
		case stub == nil && slices.ContainsFunc(jobs, func(j *api.JobListStub) bool { return j.ID == kind }):
			err = errors.Join(err, fmt.Errorf("%s: allocation %s of the known job is missing", kind, id))
		case stub == nil && !isLogged:
			err = errors.Join(err, fmt.Errorf("%s: allocation %s is silently gone", kind, id))
		}
	}
	return err
}
