package model

import (
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

const maxUIDescription = 1000

var jobTypes = []string{api.JobTypeService, api.JobTypeBatch, api.JobTypeSystem, api.JobTypeSysbatch}

// Validate checks a canonical job. It returns nil, or all errors as one error with a text nested as in Nomad. LeafFaults returns
// the result's single errors. existingNamespaces are the namespaces; the default one may be missing. Package admission checks
// whether this build can run the job.
func Validate(job *api.Job, limits JobLimits, existingNamespaces ...*api.Namespace) error {
	if job == nil {
		return &JobFault{Text: "Job must be specified"}
	}
	r := newFaultReport()
	limits = limits.WithDefaults()
	checkServerAdmission(r, job, limits, existingNamespaces)
	checkJob(r, job, limits)
	rejectEnterpriseFeatures(r, job)
	return r.errOrNil()
}

// ValidateAccepted checks a canonical job accepted by the servers of a cluster. It leaves out rules that depend on the servers'
// configuration, namespaces or licence. Otherwise it is like Validate.
func ValidateAccepted(job *api.Job) error {
	accepted := *job
	accepted.Priority, accepted.Multiregion = new(api.JobDefaultPriority), nil
	r := newFaultReport()
	checkJob(r, &accepted, JobLimits{}.WithDefaults())
	return r.errOrNil()
}

func checkJob(r *faultReport, job *api.Job, limits JobLimits) {
	checkJobIDAndName(r, job)
	checkJobType(r.atPath("type"), pointer.Value(job.Type))
	if p := pointer.Value(job.Priority); p < 1 || p > limits.MaxPriority {
		r.atPath("priority").addFault("job priority must be between [1, %d]", limits.MaxPriority)
	}
	if slices.Contains(job.Datacenters, "") {
		r.atPath("datacenters").addFault("Job datacenter must be non-empty string")
	}
	if len(job.Payload) > 0 && !job.Dispatched {
		r.addFault("job can't be submitted with a payload, only dispatched")
	}
	checkConstraints(r, job.Constraints)
	checkAffinities(r, pointer.Value(job.Type), job.Affinities)
	checkSpreads(r, pointer.Value(job.Type), job.Spreads)
	checkGroups(r, job)
	checkLiteExtensions(r, job)
	checkPeriodic(r.atPath("periodic"), job)
	checkParameterized(r.atPath("parameterized"), job)
	if job.Multiregion != nil {
		r.atPath("multiregion").addFault("Multiregion jobs are unlicensed.")
	}
	if ui := job.UI; ui != nil && len(ui.Description) > maxUIDescription {
		r.atPath("ui").addFault("UI description must be under %d characters, currently %d", maxUIDescription, len(ui.Description))
	}
}

func checkJobIDAndName(r *faultReport, job *api.Job) {
	switch id := pointer.Value(job.ID); {
	case id == "":
		r.addFault("Missing job ID")
	case strings.Contains(id, " "):
		r.addFault("Job ID contains a space")
	case strings.Contains(id, "\x00"):
		r.addFault("Job ID contains a null character")
	}
	switch name := pointer.Value(job.Name); {
	case name == "":
		r.addFault("Missing job name")
	case strings.Contains(name, "\x00"):
		r.addFault("Job Name contains a null character")
	}
}

func checkJobType(r *faultReport, jobType string) {
	switch {
	case jobType == "":
		r.addFault("Missing job type")
	case jobType == "_core":
		r.addFault("job type cannot be core")
	case !slices.Contains(jobTypes, jobType):
		r.addFault("Invalid job type: %q", jobType)
	}
}

// checkGroups checks the group rules Nomad reports for the job, and then each group.
func checkGroups(r *faultReport, job *api.Job) {
	if len(job.TaskGroups) == 0 {
		r.addFault("Missing job task groups")
	}
	first := map[string]int{}
	for i, g := range job.TaskGroups {
		name := pointer.Value(g.Name)
		at := r.atPath("group", name)
		if before, repeated := first[name]; name == "" {
			at.addFault("Job task group %d missing name", i+1)
		} else if repeated {
			at.addFault("Job task group %d redefines '%s' from group %d", i+1, name, before)
		} else {
			first[name] = i + 1
		}
		if pointer.Value(g.ShutdownDelay) < 0 {
			at.atPath("shutdown_delay").addFault("ShutdownDelay must be a positive value")
		}
		if count := pointer.Value(g.Count); pointer.Value(job.Type) == api.JobTypeSystem && count > 1 {
			at.atPath("count").addFault("Job task group %s has count %d. Count cannot exceed 1 with system scheduler", name, count)
		}
	}
	for _, g := range job.TaskGroups {
		at := r.nestedReport("group", pointer.Value(g.Name))
		checkGroup(at, job, g)
		r.addNested(at, "Task group %s validation failed:", pointer.Value(g.Name))
	}
}

// MergeMetaLaterWins merges the meta of job, group and task, in this order: later values win.
func MergeMetaLaterWins(metas ...map[string]string) map[string]string {
	merged := make(map[string]string)
	for _, meta := range metas {
		maps.Copy(merged, meta)
	}
	return merged
}
