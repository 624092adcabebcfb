package collect

import (
	"cmp"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/metrics"
	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/agent/healthtracker"
	"github.com/nomad-lite/nomad-lite/runtime/explain/jobhealth"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/jobsummary"
)

// addJobs adds job counts by state, and each group's allocations by state.
func (r *metricSetBuilder) addJobs(s *store.Snapshot) {
	var pending, running, dead int
	for _, j := range s.Jobs(nil, "*", "") {
		switch pointer.Value(j.Status) {
		case model.JobPending:
			pending++
		case model.JobRunning:
			running++
		default:
			dead++
		}
		if !j.Dispatched || !r.settings.OmitDispatchedJobSummary {
			r.addJobSummary(jobsummary.New(s, nil, j), pointer.Value(j.ParentID))
		}
	}
	r.Add("nomad.nomad.job_status.pending", float64(pending), r.hostLabel)
	r.Add("nomad.nomad.job_status.running", float64(running), r.hostLabel)
	r.Add("nomad.nomad.job_status.dead", float64(dead), r.hostLabel)
}

// addJobHealth adds job counts by health, and each job's health. A job has one series at a time, for its present health: a series
// for each word would multiply the series by nine, and an alert needs the others as little.
func (r *metricSetBuilder) addJobHealth(t *healthtracker.Tracker, s *store.Snapshot) {
	count := make(map[jobhealth.Word]int)
	all, _ := t.Jobs(s, nil, store.AnyNamespace)
	for _, j := range all {
		count[j.Health.Word]++
		if !j.IsDispatched || !r.settings.OmitDispatchedJobSummary {
			r.Add("nomad_lite_job_health", 1, metrics.NewLabels("health", string(j.Health.Word), "job", j.JobID, "namespace", j.Namespace))
		}
	}
	for _, word := range jobhealth.Words {
		r.Add("nomad_lite_jobs", float64(count[word]), metrics.NewLabels("health", string(word)))
	}
}

func (r *metricSetBuilder) addJobSummary(sum *api.JobSummary, parentID string) {
	for group, counts := range sum.Summary {
		labels := r.hostLabel.With("job", sum.JobID, "namespace", sum.Namespace, "task_group", group)
		if parentID != "" {
			labels = labels.With("parent_id", parentID)
		}
		r.Add("nomad.nomad.job_summary.queued", float64(counts.Queued), labels)
		r.Add("nomad.nomad.job_summary.starting", float64(counts.Starting), labels)
		r.Add("nomad.nomad.job_summary.running", float64(counts.Running), labels)
		r.Add("nomad.nomad.job_summary.complete", float64(counts.Complete), labels)
		r.Add("nomad.nomad.job_summary.failed", float64(counts.Failed), labels)
		r.Add("nomad.nomad.job_summary.lost", float64(counts.Lost), labels)
		r.Add("nomad.nomad.job_summary.unknown", float64(counts.Unknown), labels)
	}
}

// addEvaluations adds unprocessed evaluation counts by state.
func (r *metricSetBuilder) addEvaluations(evals []*api.Evaluation, now time.Time) {
	var blocked, ready, waiting int
	for _, e := range evals {
		switch {
		case e.Status == api.EvalStatusBlocked:
			blocked++
		case e.Status != api.EvalStatusPending:
		case e.WaitUntil.After(now):
			waiting++
		default:
			ready++
		}
	}
	r.Add("nomad.nomad.blocked_evals.total_blocked", float64(blocked), r.hostLabel)
	r.Add("nomad.nomad.broker.total_ready", float64(ready), r.hostLabel)
	r.Add("nomad.nomad.broker.total_waiting", float64(waiting), r.hostLabel)
}

// addBlockedResources adds the CPU and memory of the allocations that could not be placed, by node class and by job.
func (r *metricSetBuilder) addBlockedResources(s *store.Snapshot, node *api.Node, evals []*api.Evaluation) {
	byJob := make(map[[2]string]allocatedResources) // by namespace and job
	for _, e := range evals {
		job := s.Job(nil, e.Namespace, e.JobID)
		if e.Status != api.EvalStatusBlocked || job == nil {
			continue
		}
		sum := byJob[[2]string{e.Namespace, e.JobID}]
		for name, failure := range e.FailedTGAllocs {
			group := job.LookupTaskGroup(name)
			if group == nil {
				continue
			}
			for _, task := range group.Tasks {
				count := int64(1 + failure.CoalescedFailures)
				sum.cpuShares += count * int64(*task.Resources.CPU)
				sum.memoryMB += count * int64(*task.Resources.MemoryMB)
			}
		}
		byJob[[2]string{e.Namespace, e.JobID}] = sum
	}
	var total allocatedResources
	for key, sum := range byJob {
		total.cpuShares += sum.cpuShares
		total.memoryMB += sum.memoryMB
		labels := r.hostLabel.With("namespace", key[0], "job", key[1])
		r.Add("nomad.nomad.blocked_evals.job.cpu", float64(sum.cpuShares), labels)
		r.Add("nomad.nomad.blocked_evals.job.memory", float64(sum.memoryMB), labels)
	}
	labels := r.hostLabel.With("datacenter", node.Datacenter, "node_class", cmp.Or(node.NodeClass, "none"), "node_pool", node.NodePool)
	r.Add("nomad.nomad.blocked_evals.cpu", float64(total.cpuShares), labels)
	r.Add("nomad.nomad.blocked_evals.memory", float64(total.memoryMB), labels)
}
