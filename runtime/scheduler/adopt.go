package scheduler

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// StoreAdoptedJob stores a job whose allocations run already, because the state that had the job was lost. It also
// stores the job's namespace if no such namespace exists. The job need not be canonical. The caller must not modify the
// job or the allocations after the call. editInSameTxn makes other changes; StoreAdoptedJob may call it several times.
// The error is a RequestError if a job with this id is already stored.
func (s *Scheduler) StoreAdoptedJob(ctx context.Context, job *api.Job, runningAllocs []*api.Allocation, editInSameTxn func(*store.Txn)) error {
	model.Canonicalize(job)
	namespace := *job.Namespace
	if err := model.Validate(job, append(namespaceNames(s.store.Snapshot().Reader), namespace)...); err != nil {
		return err
	}
	env := s.newPreparedEnv()
	env.plansWithoutStartingPlugins = true // the node is registered after the adoption
	_, err := s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
		if c.tx.Job(nil, namespace, *job.ID) != nil {
			return requestErrorf(RequestRefused, "job %q is registered in namespace %q: stop it, or end the unknown tasks", *job.ID, namespace)
		}
		if !slices.Contains(namespaceNames(c.tx.Reader), namespace) {
			c.tx.PutNamespace(&api.Namespace{Name: namespace, Description: "made for adopted tasks"})
		}
		stored := jobVersions{c}.putNewVersion(job, nil, nil)
		eval := c.newPendingEval(stored, triggerRegister)
		for _, a := range runningAllocs {
			adopted := *a
			adopted.Job, adopted.EvalID = stored, eval.ID
			adopted.CreateTime, adopted.ModifyTime = c.now.UnixNano(), c.now.UnixNano()
			adopted.Resources, adopted.TaskResources = legacyResources(a.AllocatedResources)
			c.putAllocAndUpdateNodeUsage(&adopted)
		}
		c.processEval(eval)
		editInSameTxn(c.tx)
		return nil
	})
	return err
}
