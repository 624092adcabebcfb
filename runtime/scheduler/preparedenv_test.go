package scheduler_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// transactionRecorder records whether a transaction is in progress, how many were started, and how many failed.
type transactionRecorder struct {
	*schedtest.FaultyStore
	inTransaction            atomic.Bool
	attempts, failedAttempts atomic.Int64
}

func (t *transactionRecorder) Update(ctx context.Context, fn func(*store.Txn) error) (uint64, error) {
	return t.FaultyStore.Update(ctx, func(tx *store.Txn) error {
		t.inTransaction.Store(true)
		defer t.inTransaction.Store(false)
		t.attempts.Add(1)
		err := fn(tx)
		if err != nil {
			t.failedAttempts.Add(1)
		}
		return err
	})
}

// TestPortsAreCheckedOutsideOfTransactions checks that ids and port check results are prepared before a transaction. A second
// transaction is made only if the first needed more than was prepared.
func TestPortsAreCheckedOutsideOfTransactions(t *testing.T) {
	dynamic := func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
		g.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}, {Label: "b"}}}}
	}
	static := func(j *api.Job, g *api.TaskGroup, _ *api.Task) {
		g.Count = new(1)
		g.Networks = []*api.NetworkResource{{ReservedPorts: []api.Port{{Label: "a", Value: 8080}}}}
	}
	many := func(n int) func(*api.Job, *api.TaskGroup, *api.Task) {
		return func(j *api.Job, g *api.TaskGroup, _ *api.Task) { g.Count = new(n) }
	}
	inRange := func(first, last int) func(int) bool {
		return func(port int) bool { return first <= port && port <= last }
	}
	none := inRange(1, 0)
	tests := []struct {
		name     string
		job      func(*api.Job, *api.TaskGroup, *api.Task)
		inUse    func(port int) bool
		ports    []int
		failed   string // the placement's exhausted dimension
		checks   int    // port check count
		attempts int64
	}{
		{"a free static port", static, none, []int{8080}, "", 1, 1},
		{"a static port in use", static, inRange(8080, 8080), nil, "network: reserved port collision a=8080", 1, 1},
		{"free dynamic ports", dynamic, none, []int{20000, 20001, 20002, 20003, 20004, 20005}, "", 6, 1},
		{"the first dynamic ports in use", dynamic, inRange(20000, 29999), []int{30000, 30001, 30002, 30003, 30004, 30005}, "", 10006, 1},
		{"all dynamic ports in use", dynamic, inRange(20000, 32000), nil, "network: dynamic port selection failed", 12001, 1},
		{"more ids than are prepared for a small change", many(60), none, nil, "", 0, 1},
		{"more allocations than are announced", combineEdits(many(1001), dynamic), none, consecutivePorts(20000, 2002), "", 2002, 2},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			memory := &transactionRecorder{FaultyStore: schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(20000))}
			host := newTestEnv()
			outside := func(what string) {
				if memory.inTransaction.Load() {
					t.Errorf("%s in a transaction", what)
				}
			}
			newID, checks := host.NewID, 0
			host.NewID = func() string { outside("an id is made"); return newID() }
			host.IsPortFree = func(port scheduler.HostPort) bool {
				outside("a port is checked")
				checks++
				return !test.inUse(port.Port)
			}
			s := scheduler.New(scheduler.Config{NodeID: "node", Store: memory, HostEnv: host, Logger: hclog.NewNullLogger()})
			job := serviceJob(test.job)
			job.TaskGroups[0].Tasks[0].Resources = &api.Resources{CPU: new(1), MemoryMB: new(10)}
			model.Canonicalize(job)
			out, err := s.RegisterAndEvaluateJob(t.Context(), job, scheduler.RegisterOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var ports []int
			allocs := memory.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)
			for _, a := range allocs {
				if strings.Contains(a.ID, "placeholder") {
					t.Errorf("an allocation has the id %s", a.ID)
				}
				for _, p := range a.AllocatedResources.Shared.Ports {
					ports = append(ports, p.Value)
				}
			}
			slices.Sort(ports)
			if !slices.Equal(ports, test.ports) {
				t.Errorf("ports %v, want %v", ports, test.ports)
			}
			if test.failed == "" && len(allocs) != *job.TaskGroups[0].Count {
				t.Errorf("%d allocations, want %d", len(allocs), *job.TaskGroups[0].Count)
			}
			failed := ""
			if m := memory.Snapshot().Evaluation(nil, out.EvalID).FailedTGAllocs["g"]; m != nil {
				failed = strings.Join(slices.Sorted(maps.Keys(m.DimensionExhausted)), ", ")
			}
			if failed != test.failed {
				t.Errorf("failed by %q, want %q", failed, test.failed)
			}
			if checks != test.checks || memory.attempts.Load() != test.attempts {
				t.Errorf("%d port checks in %d attempts, want %d in %d", checks, memory.attempts.Load(), test.checks, test.attempts)
			}
		})
	}
}

func consecutivePorts(first, n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = first + i
	}
	return all
}

// TestReplacementsWithPortsNeedOneTransaction checks that a rolling update, a stop and a scaling prepare their ports in
// advance.
func TestReplacementsWithPortsNeedOneTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		port := func(_ *api.Job, g *api.TaskGroup, _ *api.Task) {
			g.Networks = []*api.NetworkResource{{DynamicPorts: []api.Port{{Label: "a"}}}}
		}
		memory := &transactionRecorder{FaultyStore: schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))}
		s := scheduler.New(scheduler.Config{NodeID: "node", Store: memory, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()})
		b := &harness{t: t, store: memory.FaultyStore, Scheduler: s, node: &schedtest.SimulatedNode{Store: memory.FaultyStore, Scheduler: s}}
		b.startLoops()
		request := func(what string, make func() error) {
			t.Helper()
			memory.attempts.Store(0)
			memory.failedAttempts.Store(0)
			if err := make(); err != nil {
				t.Fatal(err)
			}
			b.advance(time.Minute)
			if memory.failedAttempts.Load() > 0 {
				t.Errorf("%s: %d of %d transactions were repeated", what, memory.failedAttempts.Load(), memory.attempts.Load())
			}
		}
		request("registration", func() error {
			_, err := s.RegisterAndEvaluateJob(t.Context(), serviceJob(combineEdits(port, withRollingUpdate(nil))), scheduler.RegisterOptions{})
			return err
		})
		request("rolling update", func() error {
			_, err := s.RegisterAndEvaluateJob(t.Context(), serviceJob(combineEdits(port, withRollingUpdate(nil), withEnv("1"))), scheduler.RegisterOptions{})
			return err
		})
		request("stop", func() error {
			_, err := s.StopAndReplaceAlloc(t.Context(), b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)[5].ID, scheduler.StopOptions{})
			return err
		})
		request("scaling", func() error {
			_, err := s.ScaleGroup(t.Context(), webJobKey, scheduler.ScaleRequest{Group: "g", Count: new(int64(5))})
			return err
		})
		live := 0
		for _, a := range b.store.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID) {
			if !a.ServerTerminalStatus() {
				live++
			}
		}
		if live != 5 {
			t.Errorf("%d allocations, want 5", live)
		}
	})
}

// TestARefusedChangeIsNotRepeated checks that a change rejected by the store is not attempted again.
func TestARefusedChangeIsNotRepeated(t *testing.T) {
	memory := &transactionRecorder{FaultyStore: schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))}
	s := scheduler.New(scheduler.Config{NodeID: "node", Store: memory, HostEnv: newTestEnv(), Logger: hclog.NewNullLogger()})
	_, err := s.EvaluateJob(t.Context(), webJobKey, false)
	var requestErr *scheduler.RequestError
	if !errors.As(err, &requestErr) || memory.attempts.Load() != 1 {
		t.Errorf("%v after %d attempts", err, memory.attempts.Load())
	}
}
