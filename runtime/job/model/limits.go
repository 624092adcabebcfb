package model

import "cmp"

// JobLimits are what the configuration of an agent says about all jobs. A zero field has Nomad's default.
type JobLimits struct {
	MaxTotalCount   int // job_max_count: maximum sum of the counts of a job's groups; default: 50000
	MaxPriority     int // job_max_priority: maximum priority of a job; default: 100
	DefaultPriority int // job_default_priority: priority of a job that names none; default: 50
	TrackedVersions int // job_tracked_versions: number of newest versions of a job that are kept; default: 6
	MaxSourceBytes  int // job_max_source_size: maximum size of a job file that is stored with its job; negative: no file is stored; default: 1 MB
}

// WithDefaults returns the limits with Nomad's defaults for zero fields.
func (l JobLimits) WithDefaults() JobLimits {
	return JobLimits{
		MaxTotalCount: cmp.Or(l.MaxTotalCount, 50000), MaxPriority: cmp.Or(l.MaxPriority, 100),
		DefaultPriority: cmp.Or(l.DefaultPriority, 50), TrackedVersions: cmp.Or(l.TrackedVersions, 6),
		MaxSourceBytes: cmp.Or(l.MaxSourceBytes, 1_000_000),
	}
}
