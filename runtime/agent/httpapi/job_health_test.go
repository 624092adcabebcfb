package httpapi

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// putFailedAlloc stores a job, unless it exists, and a failed allocation of it.
func (f *fixture) putFailedAlloc(t *testing.T, jobID string) (allocID string) {
	t.Helper()
	allocID = uuid.NewString()
	state := &api.TaskState{State: model.TaskDead}
	model.AppendTaskEvent(state, model.EventDriverFailure("command /bin/no: stat /bin/no: no such file or directory"), time.Now())
	model.AppendTaskEvent(state, model.EventNotRestarting(""), time.Now())
	if f.store.Snapshot().Job(nil, "default", jobID) == nil {
		f.putJob(t, jobID)
	}
	f.updateStore(t, func(tx *store.Txn) {
		tx.PutScheduledAllocation(&api.Allocation{
			ID: allocID, Namespace: "default", JobID: jobID, Job: tx.Job(nil, "default", jobID), TaskGroup: "g", NodeID: f.config.NodeID, Name: jobID + ".g[0]",
			ClientStatus: api.AllocClientStatusFailed, DesiredStatus: api.AllocDesiredStatusRun, TaskStates: map[string]*api.TaskState{"t": state},
		})
	})
	return allocID
}

func TestJobHealth(t *testing.T) {
	f := newFixture(t, nil)
	id := f.putFailedAlloc(t, "web/1")
	f.putJob(t, "idle")
	web := `{"AllocID":"` + id + `","Health":"failed","JobID":"web/1","Namespace":"default","NeedsAttention":true,"Reason":"task \"t\": cannot start: command /bin/no: stat /bin/no: no such file or directory, not restarted","Remedy":"Install /bin/no, or correct \"command\"","Task":"t"}`
	idle := `{"AllocID":"","Health":"stopped","JobID":"idle","Namespace":"default","NeedsAttention":false,"Reason":"the counts of all its groups are 0","Remedy":"","Task":""}`
	f.runRequests(t, []requestCase{
		{"one job", "GET", "/v1/job/web%2F1/health", "", 200, web},
		{"all jobs", "GET", "/v1/jobs/health", "", 200, "[" + idle + "," + web + "]"},
		{"all namespaces", "GET", "/v1/jobs/health?namespace=*", "", 200, "[" + idle + "," + web + "]"},
		{"another namespace", "GET", "/v1/jobs/health?namespace=x", "", 200, "[]"},
		{"no such job", "GET", "/v1/job/no/health", "", 404, "…job not found"},
	})
}

// A blocking query of the health of one job does not end when another job changes.
func TestJobHealthBlocksUntilItChanges(t *testing.T) {
	f := newFixture(t, nil)
	f.putJob(t, "web")
	index := f.send("GET", "/v1/job/web/health", nil).Header.Get("X-Nomad-Index")
	replies := make(chan string)
	go func() { replies <- bodyText(f.send("GET", "/v1/job/web/health?index="+index, nil)) }()
	f.putFailedAlloc(t, "other")
	if all := bodyText(f.send("GET", "/v1/jobs/health", nil)); !strings.Contains(all, `"Health":"failed"`) {
		t.Fatal(all)
	}
	f.putFailedAlloc(t, "web")
	if text := <-replies; !strings.Contains(text, `"Health":"failed"`) {
		t.Error(text)
	}
}

// The reasons have texts of drivers and tasks, which the read-only token does not show.
func TestReadOnlyTokenShowsHealthWithoutReason(t *testing.T) {
	f := readOnlyFixture(t)
	f.putFailedAlloc(t, "web")
	for _, path := range []string{"/v1/jobs/health", "/v1/job/web/health"} {
		text := bodyText(f.send("GET", path, nil, "X-Nomad-Token", "reader"))
		if !strings.Contains(text, `"Health":"failed"`) || strings.Contains(text, "bin/no") {
			t.Errorf("%s: %s", path, text)
		}
	}
}
