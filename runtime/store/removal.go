package store

import (
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// EndAllocation records that the runner of an allocation has finished for good: no task
// of the allocation will start again. It removes the records that only the runner needs.
func (tx *Txn) EndAllocation(id string) {
	if tx.Allocation(nil, id) == nil {
		return // the allocation was deleted
	}
	tx.PutMeta(state.EndedAllocPrefix+id, true)
	if hooks := tx.AttachedHooks(id); len(hooks) > 0 {
		tx.PutMeta(state.AttachedHooksPrefix+id, hooks)
	}
	tx.ForgetAllocation(id)
}

// AllocationEnded reports whether [Txn.EndAllocation] was called. A terminal allocation
// may not have ended yet.
func (r Reader) AllocationEnded(id string) bool { return r.HasMeta(state.EndedAllocPrefix + id) }

// AttachedHooks returns the hooks that an allocation has had, with their configurations.
// Until the allocation has ended, they are in the records of its tasks.
func (r Reader) AttachedHooks(id string) (all map[string]string) {
	if known, err := r.Meta(state.AttachedHooksPrefix+id, &all); err == nil && known {
		return all
	}
	all = make(map[string]string)
	for _, task := range r.LocalTasks(id) {
		if local, _, err := r.TaskLocalState(id, task); err == nil {
			maps.Copy(all, local.AllocHooks)
		}
	}
	return all
}

// CollectAllocationAtEnd records that the directory of an allocation must be removed when the
// allocation has ended.
func (tx *Txn) CollectAllocationAtEnd(id string) {
	if tx.Allocation(nil, id) != nil {
		tx.PutMeta(state.CollectAllocAtEndPrefix+id, true)
	}
}

// IsAllocationCollectedAtEnd reports whether [Txn.CollectAllocationAtEnd] was called.
func (r Reader) IsAllocationCollectedAtEnd(id string) bool {
	return r.HasMeta(state.CollectAllocAtEndPrefix + id)
}

// DeleteAllocation deletes an allocation, if there is one, and records that it must be
// removed from the disk. The records of its runner stay until [Txn.ForgetAllocation].
func (tx *Txn) DeleteAllocation(id string) {
	if a := tx.Allocation(nil, id); a != nil {
		rest := *a
		rest.TaskStates, rest.Metrics = nil, nil
		tx.PutMeta(state.PendingRemovalPrefix+id, (*state.PendingRemoval)(&rest))
	}
	tx.delete(Allocations, id)
	tx.DeleteMeta(state.EndedAllocPrefix + id)
	tx.DeleteMeta(state.CollectAllocAtEndPrefix + id)
}

// PendingRemovals returns the allocations that are deleted and still on the disk. An
// unreadable record is left out and moved into the quarantine.
func (r Reader) PendingRemovals() (allocs []*api.Allocation) {
	for _, fact := range r.MetaKeys(state.PendingRemovalPrefix) {
		var pendingRemoval state.PendingRemoval
		if known, err := r.Meta(fact, &pendingRemoval); err == nil && known {
			allocs = append(allocs, (*api.Allocation)(&pendingRemoval))
		}
	}
	return allocs
}

// FinishAllocationRemoval deletes the last records of an allocation that was deleted, after its removal from the disk.
func (tx *Txn) FinishAllocationRemoval(id string) {
	tx.ForgetAllocation(id)
	tx.DeleteMeta(state.PendingRemovalPrefix + id)
	tx.DeleteMeta(state.AttachedHooksPrefix + id)
}
