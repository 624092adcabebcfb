package httpapi

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec"
	"github.com/nomad-lite/nomad-lite/runtime/job/jobspec/confined"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler/schedtest"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// clientFixture is an API with a real store, a real scheduler and a node that simulates its tasks. It has
// Nomad's API client.
type clientFixture struct {
	*fixture
	*api.Client
	ctx context.Context
}

// newClientFixture starts a clientFixture. lives has, by the name of the task group, the times at which an
// allocation changes its state. With the zero value an allocation is healthy at once and runs until it is
// stopped.
func newClientFixture(t testing.TB, lives map[string]schedtest.SimulatedAllocBehaviour, edits ...func(*api.Node)) *clientFixture {
	t.Helper()
	node := schedtest.NewReadyNodeWithMockDriver(4096)
	for _, edit := range edits {
		edit(node)
	}
	var testScheduler *scheduler.Scheduler
	f := newFixture(t, func(c *Config) {
		testScheduler = scheduler.New(scheduler.Config{Store: c.Store, NodeID: node.ID, Logger: hclog.NewNullLogger(), HostEnv: scheduler.Env{
			NewID: uuid.NewString, IsPortFree: func(scheduler.HostPort) bool { return true }, RandIntN: func(int) int { return 0 }, Now: time.Now,
		}})
		c.Scheduler, c.NodeID, c.JobParser = testScheduler, node.ID, inProcessParser{}
	})
	if _, err := f.store.Update(t.Context(), func(tx *store.Txn) error { tx.PutNodeWithStorageEvents(node); return nil }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var runningWG sync.WaitGroup
	runningWG.Go(func() { testScheduler.Run(ctx) })
	runningWG.Go(func() {
		n := &schedtest.SimulatedNode{Store: f.store, Scheduler: testScheduler, BehaviourOf: func(a *api.Allocation) schedtest.SimulatedAllocBehaviour { return lives[a.TaskGroup] }}
		n.Run(ctx)
	})
	server := httptest.NewServer(f)
	client, err := api.NewClient(&api.Config{Address: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		cancel()
		server.Close()
		runningWG.Wait()
	})
	return &clientFixture{f, client, ctx}
}

// inProcessParser parses the job files of tests without a child process.
type inProcessParser struct{}

func (inProcessParser) Parse(_ context.Context, text, variables string) (*api.Job, error) {
	file, diags := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: "input.hcl", Text: []byte(text), VarFileText: variables})
	if err := jobspec.Err(diags); err != nil {
		return nil, &confined.ParseError{Text: err.Error()}
	}
	return file.Job, nil
}

func (inProcessParser) PlaceConfigFaults(_ context.Context, text, variables string, faults []jobspec.ConfigFault) error {
	file, _ := jobspec.Parse(jobspec.ParseInput{DiagnosticFileName: "input.hcl", Text: []byte(text), VarFileText: variables})
	return &confined.ParseError{Text: file.ConfigFaultsText(faults)}
}

// newJob returns a job with one group. The name of the group selects the simulated times of its
// allocations.
func newJob(id, kind, group string, edit ...func(*api.Job)) *api.Job {
	job := &api.Job{ID: &id, Type: &kind, TaskGroups: []*api.TaskGroup{{
		Name: &group, Tasks: []*api.Task{{Name: "t", Driver: "mock", Config: map[string]any{"run_for": "1s"}}},
	}}}
	if kind == api.JobTypeService {
		job.Update = &api.UpdateStrategy{MinHealthyTime: new(time.Duration(0)), HealthCheck: new("task_states")}
	}
	for _, e := range edit {
		e(job)
	}
	return job
}

func withEnv(value string) func(*api.Job) {
	return func(j *api.Job) { j.TaskGroups[0].Tasks[0].Env = map[string]string{"V": value} }
}

func withCount(n int) func(*api.Job) { return func(j *api.Job) { j.TaskGroups[0].Count = &n } }

// registerAndWait submits a job and waits like `job run` for the end of the evaluation and of its
// deployment, if there is one.
func (c *clientFixture) registerAndWait(t testing.TB, job *api.Job) (*api.JobRegisterResponse, *api.Evaluation, *api.Deployment) {
	t.Helper()
	written, _, err := c.Jobs().Register(job, nil)
	if err != nil {
		t.Fatal(err)
	}
	eval, deployment := c.waitEvaluation(t, written.EvalID)
	return written, eval, deployment
}

// waitEvaluation waits for the end of an evaluation, like the monitor of the command line.
func (c *clientFixture) waitEvaluation(t testing.TB, evalID string) (*api.Evaluation, *api.Deployment) {
	t.Helper()
	if evalID == "" {
		return nil, nil
	}
	eval, _, err := c.Evaluations().Info(evalID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if eval.Status != api.EvalStatusComplete {
		t.Fatalf("evaluation is %s: %s", eval.Status, eval.StatusDescription)
	}
	if eval.DeploymentID == "" || len(eval.FailedTGAllocs) > 0 {
		return eval, nil
	}
	q := &api.QueryOptions{WaitTime: 5 * time.Second}
	for range 50 {
		d, meta, err := c.Deployments().Info(eval.DeploymentID, q)
		if err != nil {
			t.Fatal(err)
		}
		switch d.Status {
		case api.DeploymentStatusSuccessful, api.DeploymentStatusFailed, api.DeploymentStatusCancelled:
			return eval, d
		}
		if meta.LastIndex == q.WaitIndex {
			break // no change for seconds
		}
		q.WaitIndex = meta.LastIndex
	}
	t.Fatal("the deployment does not end")
	return nil, nil
}

// waitUntil calls ask, which sends a blocking query, until holds returns true for its result.
func waitUntil[T any](t testing.TB, what string, ask func(*api.QueryOptions) (T, *api.QueryMeta, error), holds func(T) bool) T {
	t.Helper()
	q := &api.QueryOptions{WaitTime: 5 * time.Second}
	for range 100 {
		value, meta, err := ask(q)
		if err != nil {
			t.Fatal(err)
		}
		if holds(value) {
			return value
		}
		q.WaitIndex = meta.LastIndex
	}
	t.Fatalf("waited in vain for: %s", what)
	panic("not reached")
}
