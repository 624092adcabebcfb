package apiclient

import (
	"context"
	"fmt"
	"net/url"

	"github.com/hashicorp/nomad/api"
)

// JobHealth is the health of a job, which agents of nomad-lite report.
type JobHealth struct {
	JobID, Namespace string
	Health           string // one word
	NeedsAttention   bool
	Reason, Remedy   string // each in one line; can be empty
	AllocID, Task    string // what the reason is about; can be empty
	// FailedDeployment is the failed deployment of the current version, or the one whose failure has rolled the job back; nil if
	// there is none.
	FailedDeployment *FailedDeployment `json:",omitempty"`
}

// FailedDeployment is a failed deployment in the health of a job.
type FailedDeployment struct {
	ID            string
	JobVersion    uint64
	Description   string
	Reason        string // in one line; can be empty
	AllocID, Task string // what the reason is about; can be empty
}

// Sentence returns the reason and the remedy in one line, or "".
func (h *JobHealth) Sentence() string {
	if h.Reason == "" || h.Remedy == "" {
		return h.Reason
	}
	return h.Reason + ". " + h.Remedy
}

// String returns the version, the description and the reason in one line.
func (d *FailedDeployment) String() string {
	text := fmt.Sprintf("version %d: %s", d.JobVersion, d.Description)
	if d.Reason != "" {
		text += "; " + d.Reason
	}
	return text
}

// ReadJobHealth returns the health of a job, or nil if the agent does not report it, as agents of Nomad and nodes of a cluster.
func ReadJobHealth(ctx context.Context, c *api.Client, id, namespace string) *JobHealth {
	var h JobHealth
	if _, err := c.Raw().Query("/v1/job/"+url.PathEscape(id)+"/health", &h, QueryOptions(ctx, namespace)); err != nil || h.Health == "" {
		return nil
	}
	return &h
}

// JobKey identifies a job.
type JobKey struct{ Namespace, ID string }

// ReadHealthOfAllJobs returns the health of the jobs of the client's namespace, or nil if the agent does not report it.
func ReadHealthOfAllJobs(ctx context.Context, c *api.Client) map[JobKey]*JobHealth {
	all, _, err := WatchHealthOfAllJobs(c, QueryOptions(ctx, ""))
	if err != nil {
		return nil
	}
	return all
}

// WatchHealthOfAllJobs returns the health of the jobs of a namespace, and the index for the next blocking query.
func WatchHealthOfAllJobs(c *api.Client, q *api.QueryOptions) (healthByJob map[JobKey]*JobHealth, index uint64, err error) {
	var list []*JobHealth
	meta, err := c.Raw().Query("/v1/jobs/health", &list, q)
	if err != nil {
		return nil, 0, err
	}
	healthByJob = make(map[JobKey]*JobHealth, len(list))
	for _, h := range list {
		healthByJob[JobKey{h.Namespace, h.JobID}] = h
	}
	return healthByJob, meta.LastIndex, nil
}
