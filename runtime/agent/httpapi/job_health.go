package httpapi

import (
	"github.com/nomad-lite/nomad-lite/runtime/agent/healthtracker"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// jobHealthHandler serves the health of jobs, an addition to Nomad's API. Its replies have an index of their own, because
// health changes also with the results of checks, and with time.
type jobHealthHandler struct {
	store   *store.Store
	tracker *healthtracker.Tracker
}

// jobHealth is the health of a job.
type jobHealth struct {
	JobID, Namespace string
	// Health is failing, failed, blocked, degraded, deploying, waiting, running, complete or stopped.
	Health         string
	NeedsAttention bool
	Reason, Remedy string // each in one line without a period; can be empty
	AllocID, Task  string // what the reason is about; can be empty
	// FailedDeployment is the failed deployment of the current version, unless the job works by now, or the one whose failure
	// has rolled the job back to the current version.
	FailedDeployment *failedDeployment `json:",omitempty"`
}

// failedDeployment is a failed deployment in the health of a job.
type failedDeployment struct {
	ID            string
	JobVersion    uint64
	Description   string // status description of the deployment, which names the version of a rollback
	Reason        string // which task has made an allocation unhealthy, and why, in one line; can be empty
	AllocID, Task string // what the reason is about; can be empty
}

func newJobHealth(h healthtracker.JobHealth) jobHealth {
	out := jobHealth{
		JobID: h.JobID, Namespace: h.Namespace, Health: string(h.Health.Word), NeedsAttention: h.Health.Word.NeedsAttention(),
		Reason: h.Health.Cause, Remedy: h.Health.Remedy, AllocID: h.Health.AllocID, Task: h.Health.Task,
	}
	if d := h.Health.FailedDeployment; d != nil {
		out.FailedDeployment = &failedDeployment{ID: d.ID, JobVersion: d.Version, Description: d.Description, Reason: d.Cause, AllocID: d.AllocID, Task: d.Task}
	}
	return out
}

func (h *jobHealthHandler) list(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		all, index := h.tracker.Jobs(s.Unrestricted(), ws, r.namespace) // the tracker's cache is shared by all clients
		list := make([]jobHealth, 0, len(all))
		for _, one := range all {
			if health := newJobHealth(one); s.Job(nil, health.Namespace, health.JobID) != nil {
				list = append(list, health)
			}
		}
		return list, index, nil
	})
}

func (h *jobHealthHandler) read(r *request) (any, error) {
	return r.blockingQuery(h.store, func(s *store.Snapshot, ws store.WatchSet) (any, uint64, error) {
		one, ok := h.tracker.Job(s.Unrestricted(), ws, r.namespace, r.pathID)
		if !ok || s.Job(nil, r.namespace, r.pathID) == nil {
			return nil, one.Index, notFoundError("job not found")
		}
		return newJobHealth(one), one.Index, nil
	})
}
