package store

import (
	"maps"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// MarkAllocationEnded stores that an allocation has ended: its runner has finished, and none of its tasks will start again. It
// removes the runner's records.
func (tx *Txn) MarkAllocationEnded(id string) {
	alloc := tx.Allocation(nil, id)
	if alloc == nil {
		return // the allocation was deleted
	}
	if failure := tx.DeploymentFailure(alloc); failure != nil {
		tx.PutAgentRecord(state.DeploymentFailurePrefix+id, state.NewDeploymentFailureRecord(failure))
	}
	tx.PutAgentRecord(state.EndedAllocPrefix+id, true)
	if hooks := tx.AttachedHookConfigs(id); len(hooks) > 0 {
		tx.PutAgentRecord(state.AttachedHooksPrefix+id, hooks)
	}
	tx.DeleteRunnerRecordsAndServices(id)
}

// HasAllocationOrItsTasks reports whether the state has an allocation, or the record saying its tasks may run although the
// state has lost the allocation (state.UnknownAllocPrefix).
func (r Reader) HasAllocationOrItsTasks(id string) bool {
	return r.Allocation(nil, id) != nil || r.HasAgentRecord(state.UnknownAllocPrefix+id)
}

// AllocationEnded reports whether [Txn.MarkAllocationEnded] was called for an allocation. An allocation ends some time after its
// client status has become terminal.
func (r Reader) AllocationEnded(id string) bool {
	if _, ok := r.objectByKey(nil, Allocations, id).(*endedAllocation); ok {
		return true
	}
	return r.HasAgentRecord(state.EndedAllocPrefix + id)
}

// EndedAllocations returns the ids of the allocations for which AllocationEnded returns true. For thousands of allocations it
// is faster than calling AllocationEnded for each.
func (r Reader) EndedAllocations() map[string]bool {
	ids := r.allocIDsWithAgentRecord(state.EndedAllocPrefix)
	it := r.iterateObjects(nil, Allocations, "id_prefix", "")
	for row := it.Next(); row != nil; row = it.Next() {
		if ended, ok := row.(*endedAllocation); ok {
			ids[ended.withoutEvents.ID] = true
		}
	}
	return ids
}

func (r Reader) allocIDsWithAgentRecord(prefix string) map[string]bool {
	ids := make(map[string]bool)
	for _, name := range r.AgentRecordNames(prefix) {
		ids[strings.TrimPrefix(name, prefix)] = true
	}
	return ids
}

// AttachedHookConfigs returns the hooks attached to an allocation: hook name -> configuration. Until the allocation has ended,
// it reads them from the task records.
func (r Reader) AttachedHookConfigs(id string) (configByHook map[string]string) {
	if known, err := r.ReadAgentRecord(state.AttachedHooksPrefix+id, &configByHook); err == nil && known {
		return configByHook
	}
	configByHook = make(map[string]string)
	for _, task := range r.TaskNamesWithLocalRecords(id) {
		if attached, err := r.attachedHookConfigsOfTask(id, task); err == nil {
			maps.Copy(configByHook, attached)
		}
	}
	return configByHook
}

// taskRecordHooks is the part of a [state.TaskRecord] with the hooks attached to the allocation.
type taskRecordHooks struct {
	AllocHookConfigByName map[string]string `store:"alloc_hooks"`
}

// attachedHookConfigsOfTask returns the allocation's hooks from a task record. If this build has written or decoded the record
// before, it decodes only this part: the record is read whenever an allocation ends.
func (r Reader) attachedHookConfigsOfTask(allocID, task string) (map[string]string, error) {
	record := rowByKey[localRecord](r, nil, taskLocalsTable, allocID+"\x00"+task)
	if record == nil || !record.hasOnlyKnownFields.Load() {
		local, _, err := r.readTaskRecord(allocID, task)
		return local.AllocHookConfigByName, err
	}
	var hooks taskRecordHooks
	err := decodeMsgpackWith(&decoders, record.unencryptedPart, &hooks)
	return hooks.AllocHookConfigByName, err
}

// MarkAllocationDirForRemovalAtEnd stores that an allocation's directory must be removed when the allocation has ended.
func (tx *Txn) MarkAllocationDirForRemovalAtEnd(id string) {
	if tx.Allocation(nil, id) != nil {
		tx.PutAgentRecord(state.CollectAllocAtEndPrefix+id, true)
	}
}

// AllocationDirsMarkedForRemoval returns the ids of allocations marked by [Txn.MarkAllocationDirForRemovalAtEnd].
func (r Reader) AllocationDirsMarkedForRemoval() map[string]bool {
	return r.allocIDsWithAgentRecord(state.CollectAllocAtEndPrefix)
}

// DeleteAllocationAndQueueRemoval deletes an allocation, if it exists, and stores that its files must be removed from the disk.
// Its runner's records stay until [Txn.DeleteRunnerRecordsAndServices].
func (tx *Txn) DeleteAllocationAndQueueRemoval(id string) {
	if a := tx.Allocation(nil, id); a != nil {
		rest := *a
		rest.TaskStates, rest.Metrics = nil, nil
		tx.PutAgentRecord(state.PendingRemovalPrefix+id, (*state.PendingRemoval)(&rest))
	}
	tx.deleteObjectIfExists(Allocations, id)
	tx.DeleteAgentRecord(state.EndedAllocPrefix + id)
	tx.DeleteAgentRecord(state.DeploymentFailurePrefix + id)
	tx.DeleteAgentRecord(state.CollectAllocAtEndPrefix + id)
}

// AllocationsPendingRemoval returns the deleted allocations with files still to be removed from the disk. It leaves out
// unreadable records, and moves them into the quarantine.
func (r Reader) AllocationsPendingRemoval() (allocs []*api.Allocation) {
	for _, name := range r.AgentRecordNames(state.PendingRemovalPrefix) {
		var pendingRemoval state.PendingRemoval
		if known, err := r.ReadAgentRecord(name, &pendingRemoval); err == nil && known {
			allocs = append(allocs, (*api.Allocation)(&pendingRemoval))
		}
	}
	return allocs
}

// FinishAllocationRemoval deletes a deleted allocation's remaining records, after its files were removed from the disk.
func (tx *Txn) FinishAllocationRemoval(id string) {
	tx.DeleteRunnerRecordsAndServices(id)
	tx.DeleteAgentRecord(state.PendingRemovalPrefix + id)
	tx.DeleteAgentRecord(state.AttachedHooksPrefix + id)
}
