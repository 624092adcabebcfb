package scheduler

import (
	"context"
	"slices"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// StoreAdoptedAllocs stores a job's allocations that run but are missing from the state. The allocations have their jobs. If
// the state has neither the job nor any version, StoreAdoptedAllocs also stores the newest of these jobs and, if missing, its
// namespace. The caller must not modify the allocations after the call. editInSameTxn makes other changes; StoreAdoptedAllocs
// may call it several times. The error is a RequestError if the state has another job with this ID. It must be called before
// Run, which plans the job.
func (s *Scheduler) StoreAdoptedAllocs(ctx context.Context, allocs []*api.Allocation, editInSameTxn func(*store.Txn)) error {
	newest := slices.MaxFunc(allocs, func(a, b *api.Allocation) int { return compareJobVersions(a.Job, b.Job) }).Job
	key := JobKeyOf(newest)
	env := s.newPreparedEnv()
	env.plansWithoutStartingPlugins = true // the node is registered after the adoption
	_, err := s.updateAndReconcileWithEnv(ctx, env, func(c *schedulerTxn) error {
		job := c.tx.Job(nil, key.Namespace, key.ID)
		if job != nil && !slices.ContainsFunc(allocs, func(a *api.Allocation) bool { return *a.Job.CreateIndex == *job.CreateIndex }) {
			return requestErrorf(RequestRefused, "job %q is registered in namespace %q, and is not the job of these allocations: stop it, or end the unknown tasks", key.ID, key.Namespace)
		}
		if job == nil {
			jobVersions{c}.recoverLostJob(key)
			job = c.tx.Job(nil, key.Namespace, key.ID)
		}
		if job == nil {
			if c.tx.Namespace(nil, key.Namespace) == nil {
				c.tx.PutNamespace(&api.Namespace{Name: key.Namespace, Description: "made for adopted allocations"})
			}
			stored := *newest
			model.Canonicalize(&stored)
			c.tx.PutJobAndVersion(&stored)
			job = &stored
		}
		for _, a := range allocs {
			adopted := *a
			adopted.Job = c.adoptedVersion(job, a.Job)
			adopted.ModifyTime = c.now.UnixNano()
			c.putAllocAndUpdateNodeUsage(&adopted)
		}
		c.reconcileJobAtTxnEnd(key)
		editInSameTxn(c.tx)
		return nil
	})
	return err
}

// adoptedVersion returns the job version that an adopted allocation runs. The create index is the stored job's; the store has
// chosen it if the job was lost, too.
func (t *schedulerTxn) adoptedVersion(job, version *api.Job) *api.Job {
	if pointer.Value(job.Version) == pointer.Value(version.Version) {
		return job
	}
	if stored := t.tx.JobVersion(nil, *job.Namespace, *job.ID, *version.Version); stored != nil {
		return stored
	}
	adopted := *version
	adopted.CreateIndex = job.CreateIndex
	return &adopted
}
