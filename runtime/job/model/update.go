package model

import (
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

var (
	updateHealthChecks  = []string{"checks", "task_states", "manual"}
	migrateHealthChecks = []string{"checks", "task_states"}
)

func checkUpdate(r *faultReport, jobType string, u *api.UpdateStrategy) {
	if u == nil {
		return
	}
	if jobType != api.JobTypeService && jobType != api.JobTypeSystem {
		r.addFault("Job type %q does not allow update block", jobType)
	}
	if n := pointer.Value(u.MaxParallel); n < 0 {
		r.addFault("Max parallel can not be less than zero: %d < 0", n)
	}
	if h := pointer.Value(u.HealthCheck); !slices.Contains(updateHealthChecks, h) {
		r.addFault("Invalid health check given: %q", h)
	}
	minHealthy, healthy, progress := pointer.Value(u.MinHealthyTime), pointer.Value(u.HealthyDeadline), pointer.Value(u.ProgressDeadline)
	if minHealthy < 0 {
		r.addFault("Minimum healthy time may not be less than zero: %v", minHealthy)
	}
	if healthy <= 0 {
		r.addFault("Healthy deadline must be greater than zero: %v", healthy)
	}
	if progress < 0 {
		r.addFault("Progress deadline must be zero or greater: %v", progress)
	}
	if minHealthy >= healthy {
		r.addFault("Minimum healthy time must be less than healthy deadline: %v > %v", minHealthy, healthy)
	}
	if progress != 0 && healthy >= progress {
		r.addFault("Healthy deadline must be less than progress deadline: %v > %v", healthy, progress)
	}
	if n := pointer.Value(u.Canary); n < 0 {
		r.addFault("Canary count can not be less than zero: %d < 0", n)
	}
	if pointer.Value(u.AutoPromote) && pointer.Value(u.Canary) == 0 {
		r.addFault("Auto Promote requires a Canary count greater than zero")
	}
	if s := pointer.Value(u.Stagger); s <= 0 {
		r.addFault("Stagger must be greater than zero: %v", s)
	}
}

func checkMigrate(r *faultReport, jobType string, m *api.MigrateStrategy) {
	if m == nil {
		return
	}
	if jobType != api.JobTypeService {
		r.addFault("Job type %q does not allow migrate block", jobType)
	}
	if n := pointer.Value(m.MaxParallel); n < 0 {
		r.addFault("MaxParallel must be >= 0 but found %d", n)
	}
	switch h := pointer.Value(m.HealthCheck); {
	case h == "":
		r.addFault("Missing HealthCheck")
	case !slices.Contains(migrateHealthChecks, h):
		r.addFault("Invalid HealthCheck: %q", h)
	}
	if d := pointer.Value(m.MinHealthyTime); d < 0 {
		r.addFault("MinHealthyTime is %v and must be >= 0", d)
	}
	if d := pointer.Value(m.HealthyDeadline); d < 0 {
		r.addFault("HealthyDeadline is %v and must be >= 0", d)
	}
	if pointer.Value(m.MinHealthyTime) > pointer.Value(m.HealthyDeadline) {
		r.addFault("MinHealthyTime must be less than HealthyDeadline")
	}
}
