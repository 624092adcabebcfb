package scheduler_test

import (
	"context"
	"errors"
	"slices"
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

// putDrivers replaces the stored node's drivers with healthy drivers.
func putDrivers(t *testing.T, to scheduler.Store, names ...string) {
	t.Helper()
	_, err := to.Update(context.Background(), func(tx *store.Txn) error {
		node := *tx.Node(nil, "node")
		node.Drivers = make(map[string]*api.DriverInfo)
		for _, name := range names {
			node.Drivers[name] = &api.DriverInfo{Detected: true, Healthy: true}
		}
		tx.PutNodeWithStorageEvents(&node)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// If a request needs a driver that plugins may soon report, it waits for these plugins. No other change waits.
func TestRequestsWaitForStartingPlugins(t *testing.T) {
	withID := func(id string) func(*api.Job, *api.TaskGroup, *api.Task) {
		return func(j *api.Job, _ *api.TaskGroup, _ *api.Task) { j.ID = &id }
	}
	withNewDriver := func(_ *api.Job, _ *api.TaskGroup, task *api.Task) { task.Driver = "new" }
	synctest.Test(t, func(t *testing.T) {
		memory := schedtest.NewFaultyStoreWithNode(t, schedtest.NewReadyNodeWithMockDriver(1000))
		reported := make(chan struct{})
		env := newTestEnv()
		env.FirstPluginReports = reported
		s := scheduler.New(scheduler.Config{NodeID: "node", Store: memory, HostEnv: env, Logger: hclog.NewNullLogger()})
		began := time.Now()
		if _, err := s.RegisterAndEvaluateJob(t.Context(), batchJob(nil), scheduler.RegisterOptions{}); err != nil || time.Since(began) != 0 {
			t.Errorf("a job whose driver is there is registered after %v, %v", time.Since(began), err)
		}
		failedAlloc := memory.Snapshot().AllocationsByJob(nil, webJobKey.Namespace, webJobKey.ID)[0]
		putDrivers(t, memory)
		report := model.AllocReport{
			AllocID: failedAlloc.ID, ClientStatus: api.AllocClientStatusFailed, TasksAndHooksEnded: true,
			TaskStates: map[string]*api.TaskState{"t": {State: "dead", Failed: true, FinishedAt: time.Now().Add(-time.Hour)}},
		}
		if _, err := s.ApplyAllocReports(t.Context(), report); err != nil || time.Since(began) != 0 {
			t.Errorf("a report is stored after %v, %v", time.Since(began), err)
		}
		if evals := memory.Snapshot().EvaluationsByJob(nil, webJobKey.Namespace, webJobKey.ID); !slices.ContainsFunc(evals, func(e *api.Evaluation) bool { return e.Status == api.EvalStatusBlocked }) {
			t.Errorf("evaluations %+v after a failure on a node without drivers; want a blocked one", evals)
		}
		canceled, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.RegisterAndEvaluateJob(canceled, serviceJob(combineEdits(withID("canceled"), withNewDriver)), scheduler.RegisterOptions{}); !errors.Is(err, context.DeadlineExceeded) || memory.Snapshot().Job(nil, webJobKey.Namespace, "canceled") != nil {
			t.Errorf("a request of a client that has disconnected: %v", err)
		}

		go func() {
			time.Sleep(300 * time.Millisecond)
			putDrivers(t, memory, "mock", "new")
			close(reported)
		}()
		began = time.Now()
		planned := make(chan scheduler.PlanChanges, 1)
		go func() {
			plan, _, err := s.DryRunRegister(t.Context(), serviceJob(combineEdits(withID("planned"), withNewDriver)))
			if err != nil {
				t.Error(err)
			}
			planned <- plan
		}()
		out, err := s.RegisterAndEvaluateJob(t.Context(), serviceJob(combineEdits(withID("new"), withNewDriver)), scheduler.RegisterOptions{})
		if err != nil || time.Since(began) != 300*time.Millisecond {
			t.Errorf("registered after %v, %v", time.Since(began), err)
		}
		if e := memory.Snapshot().Evaluation(nil, out.EvalID); len(e.FailedTGAllocs) > 0 || e.Status != api.EvalStatusComplete {
			t.Errorf("evaluation %+v", e)
		}
		if plan := <-planned; len(plan.ProcessedEval.FailedTGAllocs) > 0 || len(plan.PlacedAllocs) == 0 {
			t.Errorf("plan %+v", plan)
		}
		out, err = s.RegisterAndEvaluateJob(t.Context(), serviceJob(func(j *api.Job, _ *api.TaskGroup, task *api.Task) { j.ID, task.Driver = new("blocked"), "missing" }), scheduler.RegisterOptions{})
		if err != nil || len(memory.Snapshot().Evaluation(nil, out.EvalID).FailedTGAllocs) != 1 {
			t.Errorf("a job with an unknown driver, after all plugins have reported: %v", err)
		}
	})
}
