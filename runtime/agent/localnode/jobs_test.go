package localnode

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/scheduler"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Each event has its operation's name; a change may have several operations, in order.
func TestEventsOfAJob(t *testing.T) {
	r, _ := newAllocSyncFixture(t, 1)
	alloc := r.ids(t)[0]
	job := func() *api.Job { return r.store.Snapshot().Job(nil, "default", "job") }
	report := func(status string) {
		t.Helper()
		if _, err := r.scheduler.ApplyAllocReports(t.Context(), model.AllocReport{AllocID: alloc, ClientStatus: status, TasksAndHooksEnded: status == api.AllocClientStatusComplete}); err != nil {
			t.Fatal(err)
		}
	}
	report(api.AllocClientStatusRunning)
	if _, err := r.scheduler.StopAndReplaceAlloc(t.Context(), alloc, scheduler.StopOptions{Reschedule: true}); err != nil {
		t.Fatal(err)
	}
	report(api.AllocClientStatusComplete)
	if _, err := r.scheduler.DeregisterJob(t.Context(), scheduler.JobKey{Namespace: "default", ID: "job"}, scheduler.DeregisterOptions{Purge: true}); err != nil {
		t.Fatal(err)
	}
	if job() != nil {
		t.Fatal("the job is there")
	}

	var got []string
	for sub := r.store.Subscribe(2); len(got) == 0 || !strings.Contains(got[len(got)-1], "JobDeregistered"); { // index 1 is the node
		changed, err := sub.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var descriptions []string
		for _, e := range changed {
			status := ""
			switch o := e.Object.(type) {
			case *api.Job:
				status = *o.Status
			case *api.Allocation:
				status = o.DesiredStatus + "," + o.ClientStatus
			case *api.Evaluation:
				status = o.Status
			}
			descriptions = append(descriptions, fmt.Sprintf("%s %s %s", e.Type, e.Topic, status))
		}
		got = append(got, strings.Join(descriptions, "; "))
	}
	want := []string{
		"JobRegistered Job pending; JobRegistered Evaluation pending; PlanResult Allocation run,pending; PlanResult Evaluation pending; EvaluationUpdated Evaluation complete; PlanResult Job running",
		"AllocationUpdated Allocation run,running; AllocationUpdated Node ",
		"AllocationUpdateDesiredStatus Allocation run,running; AllocationUpdateDesiredStatus Evaluation pending; PlanResult Allocation stop,running; PlanResult Allocation run,pending; PlanResult Evaluation pending; EvaluationUpdated Evaluation complete",
		"AllocationUpdated Allocation stop,complete; AllocationUpdated Node ",
		"JobDeregistered Job running; JobDeregistered Evaluation pending; PlanResult Allocation stop,pending; PlanResult Evaluation pending; EvaluationUpdated Evaluation complete",
	}
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestJobsInNamespaces(t *testing.T) {
	r, _ := newAllocSyncFixture(t, 1)
	register := func() error {
		job := &api.Job{ID: new("other"), Namespace: new("prod"), Type: new("batch"), TaskGroups: []*api.TaskGroup{{
			Name: new("g"), Tasks: []*api.Task{{Name: "t", Driver: "d", Config: map[string]any{}}},
		}}}
		model.Canonicalize(job)
		_, err := r.scheduler.RegisterAndEvaluateJob(t.Context(), job, scheduler.RegisterOptions{})
		return err
	}
	change := func(f func(*store.Txn)) {
		if _, err := r.store.Update(t.Context(), func(tx *store.Txn) error { f(tx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	const missingNamespaceText = "1 error occurred:\n\t* job \"other\" is in nonexistent namespace \"prod\"\n\n"
	if err := register(); err == nil || err.Error() != missingNamespaceText {
		t.Errorf("error %v", err)
	}
	change(func(tx *store.Txn) { tx.PutNamespace(&api.Namespace{Name: "prod"}) })
	if err := register(); err != nil {
		t.Error(err)
	}
	change(func(tx *store.Txn) { tx.DeleteNamespace("prod") })
	if err := register(); err == nil || err.Error() != missingNamespaceText {
		t.Errorf("error %v", err)
	}
}
