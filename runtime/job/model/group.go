package model

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const minEphemeralDiskMB = 10

func positionText(i int) string { return strconv.Itoa(i) }

func checkGroup(r *faultReport, job *api.Job, g *api.TaskGroup) {
	jobType := pointer.Value(job.Type)
	switch name := pointer.Value(g.Name); {
	case name == "":
		r.addFault("Missing task group name")
	case strings.Contains(name, "\x00"):
		r.addFault("Task group name contains null character")
	}
	if pointer.Value(g.Count) < 0 {
		r.atPath("count").addFault("Task group count can't be negative")
	}
	if len(g.Tasks) == 0 && !hasConnectGateway(g) {
		r.addFault("Missing tasks for task group")
	}
	checkMaxRunDuration(r.atPath("max_run_duration"), jobType, g.MaxRunDuration)
	checkConstraints(r, g.Constraints)
	checkAffinities(r, jobType, g.Affinities)
	checkSpreads(r, jobType, g.Spreads)
	checkRestartPolicy(r.atPath("restart"), g.RestartPolicy)
	checkReschedule(r.atPath("reschedule"), jobType, g.ReschedulePolicy)
	if d := g.EphemeralDisk; d != nil && pointer.Value(d.SizeMB) < minEphemeralDiskMB {
		r.atPath("ephemeral_disk").addFault("minimum DiskMB value is %d; got %d", minEphemeralDiskMB, pointer.Value(d.SizeMB))
	}
	checkUpdate(r.atPath("update"), jobType, g.Update)
	checkMigrate(r.atPath("migrate"), jobType, g.Migrate)
	checkDisconnect(r.atPath("disconnect"), jobType, g.Disconnect)
	checkNamesLeaderAndMainTasks(r, g)
	checkNetworks(r, g.Networks)
	checkGroupServices(r, g)
	checkVolumes(r, jobType, g)
	checkScaling(r, g)
	for _, t := range g.Tasks {
		at := r.nestedReport("task", t.Name)
		checkTask(at, jobType, g, t)
		r.addNested(at, "Task %s validation failed:", t.Name)
	}
}

// hasConnectGateway reports whether a server would add a Connect gateway's proxy task to the group.
func hasConnectGateway(g *api.TaskGroup) bool {
	return slices.ContainsFunc(g.Services, func(s *api.Service) bool { return s.Connect != nil && s.Connect.Gateway != nil })
}

func checkMaxRunDuration(r *faultReport, jobType string, limit *time.Duration) {
	if limit == nil {
		return
	}
	if jobType != api.JobTypeBatch && jobType != api.JobTypeSysbatch {
		r.addFault("Job type %q does not allow max_run_duration", jobType)
	}
	if *limit <= 0 {
		r.addFault("MaxRunDuration must be greater than zero")
	}
}

// checkNamesLeaderAndMainTasks checks rules across a group's tasks.
func checkNamesLeaderAndMainTasks(r *faultReport, g *api.TaskGroup) {
	first := map[string]int{}
	leaders, mains := 0, 0
	for i, t := range g.Tasks {
		at := r.atPath("task", t.Name)
		if before, repeated := first[t.Name]; t.Name == "" {
			at.addFault("Task %d missing name", i+1)
		} else if repeated {
			at.addFault("Task %d redefines '%s' from task %d", i+1, t.Name, before)
		} else {
			first[t.Name] = i + 1
		}
		if t.Leader {
			leaders++
		}
		if t.Lifecycle == nil {
			mains++
		}
	}
	if leaders > 1 {
		r.addFault("Only one task may be marked as leader")
	}
	if mains == 0 && len(g.Tasks) > 0 {
		r.addFault("Task group %s must have at least one main task", pointer.Value(g.Name))
	}
}

func checkDisconnect(r *faultReport, jobType string, d *api.DisconnectStrategy) {
	if d == nil {
		return
	}
	if pointer.Value(d.LostAfter) < 0 {
		r.addFault("lost_after cannot be a negative duration")
	}
	if pointer.Value(d.StopOnClientAfter) < 0 {
		r.addFault("stop_after cannot be a negative duration")
	}
	if d.StopOnClientAfter != nil {
		if jobType != api.JobTypeService && jobType != api.JobTypeBatch {
			r.addFault("stop_after can only be used with service or batch job types")
		}
		if pointer.Value(d.LostAfter) > 0 {
			r.addFault("Disconnect cannot be configured with both lost_after and stop_after")
		}
	}
	switch reconcile := pointer.Value(d.Reconcile); reconcile {
	case "", api.ReconcileOptionKeepOriginal, api.ReconcileOptionKeepReplacement,
		api.ReconcileOptionBestScore, api.ReconcileOptionLongestRunning:
	default:
		r.addFault("reconcile option is invalid: %s", reconcile)
	}
}

func checkScaling(r *faultReport, g *api.TaskGroup) {
	s := g.Scaling
	if s == nil {
		return
	}
	policy := r.nestedReport("scaling")
	if s.Max == nil || *s.Max < 0 {
		policy.addFault("maximum count must be specified and non-negative")
	} else if *s.Max < pointer.Value(s.Min) {
		policy.addFault("maximum count must not be less than minimum count")
	}
	if s.Min == nil || *s.Min < 0 {
		policy.addFault("minimum count must be specified and non-negative")
	}
	at := r.nestedReport("scaling")
	at.addNested(policy, "Scaling policy invalid:")
	count := int64(pointer.Value(g.Count))
	if s.Max != nil && *s.Max < count {
		at.addFault("task group count must not be greater than maximum count in scaling policy")
	}
	if pointer.Value(s.Min) > count {
		at.addFault("task group count must not be less than minimum count in scaling policy")
	}
	r.addNested(at, "Task group scaling policy validation failed:")
}
