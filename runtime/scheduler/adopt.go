package scheduler

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AdoptJob stores a job whose allocations run already, because the state that had it was lost, and its namespace if that is
// missing. The job need not be canonical. Job and allocations belong to the scheduler after the call; edit makes other changes
// of the same transaction, and may be called several times. The error is a RequestError if a job with this id is stored.
func (s *Scheduler) AdoptJob(ctx context.Context, job *api.Job, allocs []*api.Allocation, edit func(*store.Txn)) error {
	model.Canonicalize(job)
	namespace := *job.Namespace
	if err := model.Validate(job, append(namespaceNames(s.store.Snapshot().Reader), namespace)...); err != nil {
		return err
	}
	_, err := s.update(ctx, func(c *txn) error {
		if c.tx.Job(nil, namespace, *job.ID) != nil {
			return requestErrorf(RequestRefused, "job %q is registered in namespace %q: stop it, or end the unknown tasks", *job.ID, namespace)
		}
		if !slices.Contains(namespaceNames(c.tx.Reader), namespace) {
			c.tx.PutNamespace(&api.Namespace{Name: namespace, Description: "made for adopted tasks"})
		}
		stored := jobVersions{c}.putNewVersion(job, nil, nil)
		eval := c.newEval(stored, triggerRegister)
		for _, a := range allocs {
			adopted := *a
			adopted.Job, adopted.EvalID = stored, eval.ID
			adopted.CreateTime, adopted.ModifyTime = c.now.UnixNano(), c.now.UnixNano()
			adopted.Resources, adopted.TaskResources = legacyResources(a.AllocatedResources)
			c.putAlloc(&adopted)
		}
		c.processEval(eval)
		edit(c.tx)
		return nil
	})
	return err
}
