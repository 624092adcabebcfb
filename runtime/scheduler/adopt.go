package scheduler

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// AdoptJob stores a job whose allocations run already, because the state that had the job was lost. It also stores the
// job's namespace if no such namespace exists. The job need not be canonical. The caller must not modify the job or the
// allocations after the call. edit makes other changes in the same transaction; AdoptJob may call edit several times. The
// error is a RequestError if a job with this id is already stored.
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
