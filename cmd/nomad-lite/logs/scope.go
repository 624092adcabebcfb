package logs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// allocScope selects the allocations whose output is shown: of one job, of its children, or of all jobs.
type allocScope struct {
	namespace        string
	jobID            string // id of the selected job; "" means all jobs
	selectsChildJobs bool
	allocID          string // id of the only selected allocation; "" means all
}

// childInfixes are the texts that follow the id of a periodic or parameterized job in the ids of its children.
var childInfixes = []string{"/periodic-", "/dispatch-"}

// parentJobIDOrSelf returns the id of the parent of a child job, or jobID itself if the job is no child.
func parentJobIDOrSelf(jobID string) string {
	for _, infix := range childInfixes {
		if i := strings.LastIndex(jobID, infix); i > 0 {
			return jobID[:i]
		}
	}
	return jobID
}

func jobKey(namespace, id string) string { return namespace + " " + id }

// String returns a description of the scope for messages, such as "all jobs".
func (s allocScope) String() string {
	switch {
	case s.jobID == "":
		return "all jobs"
	case s.selectsChildJobs:
		return fmt.Sprintf("the children of job %q", s.jobID)
	}
	return fmt.Sprintf("job %q", s.jobID)
}

// listAllocs reads the allocations of the scope from the agent, newest first.
func (s allocScope) listAllocs(c *api.Client, q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
	if s.allocID != "" {
		alloc, meta, err := c.Allocations().Info(s.allocID, q)
		if err != nil {
			return nil, meta, err
		}
		alloc.Job = nil // Stub would read the job's fields, which can be nil
		return []*api.AllocationListStub{alloc.Stub()}, meta, nil
	}
	if s.jobID != "" && !s.selectsChildJobs {
		return c.Jobs().Allocations(s.jobID, false, q)
	}
	allocs, meta, err := c.Allocations().List(q)
	return slices.DeleteFunc(allocs, func(a *api.AllocationListStub) bool {
		return s.selectsChildJobs && (a.JobID == s.jobID || parentJobIDOrSelf(a.JobID) != s.jobID)
	}), meta, err
}

// noAllocsError returns the error message for a scope that has no allocations.
func (s allocScope) noAllocsError() error {
	switch {
	case s.jobID == "":
		return errors.New("no job has allocations")
	case s.selectsChildJobs:
		return fmt.Errorf("job %q has no children with allocations\nSee those that it has: nomad-lite job status %s", s.jobID, s.jobID)
	}
	return fmt.Errorf("job %q has no allocations yet\nSee why: nomad-lite job status %s", s.jobID, s.jobID)
}

// jobLabelPrefix returns the prefix of a task's label that names the job: "web/", or "periodic-1763762400/" for a
// child. It is empty if the scope has only one job.
func (s allocScope) jobLabelPrefix(a *api.AllocationListStub) string {
	label := a.JobID + "/"
	switch {
	case s.selectsChildJobs:
		return strings.TrimPrefix(label, s.jobID+"/")
	case s.jobID != "":
		return ""
	case s.namespace == api.AllNamespacesNamespace:
		return a.Namespace + "/" + label
	}
	return label
}
