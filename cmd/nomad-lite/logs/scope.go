package logs

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"
)

// scope selects the allocations whose output is shown: of one job, of its children, or of all jobs.
type scope struct {
	namespace string
	jobID     string // "" selects all jobs
	children  bool   // the children of the job are selected
}

// childInfixes separate the id of a periodic or parameterized job from the rest of the ids of its children.
var childInfixes = []string{"/periodic-", "/dispatch-"}

// rootJobID returns the id of the job from which a job was launched or dispatched, or the id of the job
// itself.
func rootJobID(id string) string {
	for _, infix := range childInfixes {
		if i := strings.LastIndex(id, infix); i > 0 {
			return id[:i]
		}
	}
	return id
}

func jobKey(namespace, id string) string { return namespace + " " + id }

// String returns the scope in the words of a message.
func (s scope) String() string {
	switch {
	case s.jobID == "":
		return "all jobs"
	case s.children:
		return fmt.Sprintf("the children of job %q", s.jobID)
	}
	return fmt.Sprintf("job %q", s.jobID)
}

// list returns the allocations of the scope, newest first.
func (s scope) list(c *api.Client, q *api.QueryOptions) ([]*api.AllocationListStub, *api.QueryMeta, error) {
	if s.jobID != "" && !s.children {
		return c.Jobs().Allocations(s.jobID, false, q)
	}
	allocs, meta, err := c.Allocations().List(q)
	return slices.DeleteFunc(allocs, func(a *api.AllocationListStub) bool {
		return s.children && (a.JobID == s.jobID || rootJobID(a.JobID) != s.jobID)
	}), meta, err
}

// noAllocsError returns the error for a scope without allocations.
func (s scope) noAllocsError() error {
	switch {
	case s.jobID == "":
		return errors.New("no job has allocations")
	case s.children:
		return fmt.Errorf("job %q has no children with allocations\nSee those that it has: nomad-lite job status %s", s.jobID, s.jobID)
	}
	return fmt.Errorf("job %q has no allocations yet\nSee why: nomad-lite job status %s", s.jobID, s.jobID)
}

// jobLabel returns the part of a label that distinguishes the jobs of the scope: "web/", or
// "periodic-1763762400/" for a child.
func (s scope) jobLabel(a *api.AllocationListStub) string {
	label := a.JobID + "/"
	switch {
	case s.children:
		return strings.TrimPrefix(label, s.jobID+"/")
	case s.jobID != "":
		return ""
	case s.namespace == api.AllNamespacesNamespace:
		return a.Namespace + "/" + label
	}
	return label
}
