package replica

import (
	"context"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// StoreAdoptedAllocs stores allocations that servers have assigned to this node but its state has lost. The servers update them,
// or end them, with their next list. edit makes other changes in the same transaction. It must be called before Run.
func (r *Replica) StoreAdoptedAllocs(ctx context.Context, allocs []*api.Allocation, edit func(*store.Txn)) error {
	_, err := r.config.Store.Update(ctx, func(tx *store.Txn) error {
		jobs := jobsOfAllocs(tx)
		for _, a := range allocs {
			adopted := *a
			if shared := jobs[keyOfJob(a.Job)]; shared != nil {
				adopted.Job = shared
			}
			jobs[keyOfJob(adopted.Job)] = adopted.Job
			tx.PutScheduledAllocation(&adopted)
		}
		edit(tx)
		return nil
	})
	return err
}

// mayBeOfOtherServers reports whether an allocation was adopted after a state loss, and the servers have rejected this node's
// credentials: a node pointed at the wrong servers must end nothing.
func (r *Replica) mayBeOfOtherServers(reader store.Reader, allocID string) bool {
	return !reader.HasAgentRecord(state.ClusterAllocPrefix+allocID) && r.config.Member.CredentialsRejected()
}
