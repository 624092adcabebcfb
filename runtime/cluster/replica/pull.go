package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/job/admission"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// maxFetchBlock is how long a server behind the one that has sent the list can wait for its allocations. Servers restored after
	// the list do not get them.
	maxFetchBlock = 10 * time.Second
	// maxListBlock is how long the servers can block a list. A snapshot's restore does not end blocked calls, so the node notices it
	// after this time.
	maxListBlock      = time.Minute
	maxPullRetryDelay = 10 * time.Second
	missingAllocDelay = 2 * time.Second
	// pullBatch limits the allocations per call, because each has its whole job.
	pullBatch = 100
)

// errIncomplete means the servers did not have all listed allocations, so the list must be read again.
var errIncomplete = errors.New("the server's list of allocations and its allocations differ")

// pullAllocs keeps the store's allocations equal to those the servers assign.
func (r *Replica) pullAllocs(ctx context.Context) {
	query := servers.Query{MaxBlock: maxListBlock}
	newest, first := r.storedReportIndex(), true
	lowerIndexSeen := false // from restored servers, or from a lagging one
	for ctx.Err() == nil {
		list, err := r.listAllocs(ctx, &query)
		lowerIndexSeen = lowerIndexSeen || err == nil && list.Index < newest
		if err == nil && !query.IsNew(ctx, list.Index) {
			continue
		}
		// This node's reports alone can give restored servers a higher index at once.
		if err == nil && lowerIndexSeen && list.Index != newest {
			r.config.Logger.Warn("the servers have gone back to an earlier state", "index", list.Index, "earlier_index", newest)
			r.resendStates = true
		}
		if err == nil {
			list, err = r.confirmEmptyList(ctx, list)
		}
		if err == nil {
			err = r.applyList(ctx, list)
		}
		if err == nil {
			newest, lowerIndexSeen = list.Index, false
			if first {
				first = false
				close(r.pulled)
			}
			continue
		}
		query.Restart()
		switch {
		case errors.Is(err, errIncomplete):
			wait.Sleep(ctx, missingAllocDelay)
		default:
			if ctx.Err() == nil {
				r.config.Logger.Warn("allocations not read from the servers", "error", err)
			}
			if servers.IsPermissionDenied(err) || servers.IsNodeNotFound(err) {
				r.config.Member.Beat()
			}
			r.config.Pool.WaitRetry(ctx, maxPullRetryDelay)
		}
	}
}

func (r *Replica) readOptions() protocol.ReadOptions {
	return protocol.ReadOptions{Region: r.config.Region, AuthToken: r.config.Member.Token()}
}

// listAllocs returns this node's allocations and their indexes. It blocks as the query does.
func (r *Replica) listAllocs(ctx context.Context, query *servers.Query) (*protocol.GetClientAllocsResponse, error) {
	request := protocol.GetClientAllocsRequest{NodeID: r.config.NodeID, SecretID: r.config.Member.Secret(), ReadOptions: r.readOptions()}
	block := query.Next(&request.ReadOptions)
	var response protocol.GetClientAllocsResponse
	if err := r.config.Pool.CallBlocking(ctx, block, protocol.MethodGetClientAllocs, &request, &response); err != nil {
		return nil, err
	}
	return &response, nil
}

// confirmEmptyList returns the list. If the list is empty although the node has allocations, it first makes sure that the servers
// have the node, and returns a new list: a purge, or a server without its state, must not end all tasks. It returns an error if
// they do not have the node.
func (r *Replica) confirmEmptyList(ctx context.Context, list *protocol.GetClientAllocsResponse) (*protocol.GetClientAllocsResponse, error) {
	if len(list.Allocs) > 0 || len(r.config.Store.Snapshot().AllocationsByNode(nil, r.config.NodeID)) == 0 {
		return list, nil
	}
	if err := r.config.Member.ConfirmRegistered(ctx); err != nil {
		return nil, fmt.Errorf("the servers list no allocation, and do not have this node: %w", err)
	}
	// The node may have been registered after the list.
	confirmed, err := r.listAllocs(ctx, &servers.Query{})
	if err != nil {
		return nil, err
	}
	if len(confirmed.Allocs) == 0 {
		r.config.Logger.Warn("the servers no longer have an allocation for this node: all allocations are stopped and removed")
	}
	return confirmed, nil
}

// storedAssignments returns the index of each stored allocation assigned by the servers, except those an earlier agent has begun
// to remove.
func (r *Replica) storedAssignments() map[string]uint64 {
	snapshot := r.config.Store.Snapshot()
	indexes := make(map[string]uint64)
	for _, a := range snapshot.AllocationsByNode(nil, r.config.NodeID) {
		if record := r.clusterAlloc(snapshot.Reader, a.ID); !record.RemovedByServers {
			indexes[a.ID] = record.ModifyIndex
		}
	}
	return indexes
}

// applyList makes the store's allocations equal to the list's.
func (r *Replica) applyList(ctx context.Context, list *protocol.GetClientAllocsResponse) error {
	maps.DeleteFunc(r.rejected, func(id string, index uint64) bool { return list.Allocs[id] != index })
	known := r.assigned
	if known == nil {
		known = r.storedAssignments()
	}
	for id, index := range list.Allocs {
		if index < known[id] { // the servers have restored a snapshot: their next change can have a lower index, too
			r.resendStates = true
		}
	}
	if r.resendStates { // also rejections
		for id := range r.rejected {
			delete(known, id)
		}
		clear(r.rejected)
	}
	var wanted []string
	for id, index := range list.Allocs {
		if _, rejected := r.rejected[id]; rejected {
			continue
		}
		if knownIndex, stored := known[id]; !stored || index != knownIndex {
			wanted = append(wanted, id)
		}
	}
	slices.Sort(wanted)
	snapshot := r.config.Store.Snapshot()
	var pulled []*protocol.Allocation
	var unreported []string // the servers have not accepted these rejections
	for ids := range slices.Chunk(wanted, pullBatch) {
		batch, err := r.fetchWithStates(ctx, snapshot, ids, list.Allocs)
		if err != nil {
			return err
		}
		for _, a := range batch {
			old := snapshot.Allocation(nil, a.ID)
			if err := r.checkAlloc(a.Allocation, old); err != nil {
				if !r.reject(ctx, a, list.Allocs[a.ID], old, err) {
					unreported = append(unreported, a.ID)
				}
				continue
			}
			pulled = append(pulled, a.Allocation)
		}
	}
	// Without a wanted allocation, the list has only known ones: it differs if it has fewer.
	if r.assigned == nil || len(wanted) > 0 || len(list.Allocs) < len(known) {
		if err := r.storeList(ctx, list, pulled); err != nil {
			return err
		}
		r.assigned = make(map[string]uint64, len(list.Allocs))
		maps.Copy(r.assigned, list.Allocs)
		for _, a := range pulled {
			r.assigned[a.ID] = a.AllocModifyIndex // the servers may have changed it since the list
		}
		for _, id := range unreported {
			delete(r.assigned, id)
		}
	}
	if r.resendStates {
		r.resendStates = false
		if r.events.OnServersRestored != nil {
			r.events.OnServersRestored()
		}
		r.markUnsent(time.Now(), slices.Collect(maps.Keys(list.Allocs))...)
	}
	if len(unreported) > 0 {
		return fmt.Errorf("the servers do not know that allocations are rejected: %v", unreported)
	}
	return nil
}

// storeList stores the pulled allocations, and removes those missing in the list.
func (r *Replica) storeList(ctx context.Context, list *protocol.GetClientAllocsResponse, pulled []*protocol.Allocation) error {
	var reconnected []string
	changed := false
	var point failpoint.ActiveStep
	if len(pulled) > 0 {
		point = failpoint.EnterStep(failpoint.StepAllocsPulled)
	}
	_, err := r.config.Store.Update(ctx, func(tx *store.Txn) error {
		reconnected, changed = nil, false
		for _, a := range tx.AllocationsByNode(nil, r.config.NodeID) {
			if _, listed := list.Allocs[a.ID]; !listed && !r.mayBeOfOtherServers(tx.Reader, a.ID) {
				changed = r.removeAlloc(tx, a) || changed
			}
		}
		jobs := jobsOfAllocs(tx)
		for _, a := range pulled {
			isReconnected := r.putAlloc(tx, jobs, a, list.MigrateTokens[a.ID])
			if isReconnected {
				reconnected = append(reconnected, a.ID)
			}
			changed = true
		}
		if !changed {
			return errNothingChanged
		}
		return nil
	})
	point.Leave()
	if err != nil && !errors.Is(err, errNothingChanged) {
		return fmt.Errorf("store allocations of the servers: %w", err)
	}
	if changed {
		wait.Notify(r.limitsChanged)
		r.config.OnAllocsChanged()
	}
	for _, id := range reconnected {
		if r.events.OnReconnected != nil {
			r.events.OnReconnected(id)
		}
		r.markUnsent(time.Now(), id)
	}
	return nil
}

// errNothingChanged cancels a transaction.
var errNothingChanged = errors.New("nothing has changed")

// fetchedAlloc is an allocation from the server at an address. It is not checked.
type fetchedAlloc struct {
	*protocol.Allocation
	server string
}

// fetchWithStates is like fetchAllocs. If this node has lost an allocation's states, the result is the leader's, because the
// servers have the only states.
func (r *Replica) fetchWithStates(ctx context.Context, snapshot *store.Snapshot, ids []string, indexByID map[string]uint64) ([]fetchedAlloc, error) {
	batch, err := r.fetchAllocs(ctx, ids, indexByID, true)
	if err != nil {
		return nil, err
	}
	// Reports do not change the index that shows whether a server is behind.
	hasStatesOfServers := func(a fetchedAlloc) bool {
		old := snapshot.Allocation(nil, a.ID)
		return a.ClientStatus != api.AllocClientStatusPending && (old == nil || old.ClientStatus == api.AllocClientStatusLost)
	}
	var ofLeader []string
	for _, a := range batch {
		if hasStatesOfServers(a) {
			ofLeader = append(ofLeader, a.ID)
		}
	}
	if len(ofLeader) == 0 {
		return batch, nil
	}
	newest, err := r.fetchAllocs(ctx, ofLeader, indexByID, false)
	if err != nil {
		return nil, err
	}
	return append(slices.DeleteFunc(batch, hasStatesOfServers), newest...), nil
}

// fetchAllocs returns the allocations with the IDs, each at least as new as in indexByID. It returns errIncomplete if one is
// missing or older. With allowStale, any server answers, else the leader.
func (r *Replica) fetchAllocs(ctx context.Context, ids []string, indexByID map[string]uint64, allowStale bool) ([]fetchedAlloc, error) {
	newest := uint64(1)
	for _, id := range ids {
		newest = max(newest, indexByID[id])
	}
	request := protocol.GetAllocsRequest{AllocIDs: ids, ReadOptions: r.readOptions()}
	request.MinQueryIndex, request.MaxQueryTime, request.AllowStale = newest-1, maxFetchBlock, allowStale
	var response protocol.GetAllocsResponse
	err := r.config.Pool.CallBlocking(ctx, maxFetchBlock, protocol.MethodGetAllocs, &request, &response)
	if servers.IsPermissionDenied(err) && len(ids) > 1 {
		// One allocation from another node pool fails the whole call.
		var all []fetchedAlloc
		for _, id := range ids {
			one, err := r.fetchAllocs(ctx, []string{id}, indexByID, allowStale)
			if err != nil {
				return nil, err
			}
			all = append(all, one...)
		}
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	byID := make(map[string]*protocol.Allocation, len(response.Allocs))
	for _, a := range response.Allocs {
		if a != nil {
			byID[a.ID] = a
		}
	}
	fetched := make([]fetchedAlloc, 0, len(ids))
	for _, id := range ids {
		a := byID[id]
		if a == nil || a.AllocModifyIndex < indexByID[id] {
			return nil, errIncomplete
		}
		fetched = append(fetched, fetchedAlloc{a, response.Server})
	}
	return fetched, nil
}

// clusterAlloc returns what the store has about an allocation beside the allocation; the zero value if there is nothing.
func (r *Replica) clusterAlloc(reader store.Reader, id string) state.ClusterAlloc {
	record, err := reader.ClusterAlloc(id)
	if err != nil {
		r.config.Logger.Error("record of an allocation not read, it is pulled again", "alloc_id", id, "error", err)
	}
	return record
}

// jobKey identifies one version of a job.
type jobKey struct {
	namespace, id                        string
	version, jobModifyIndex, createIndex uint64
}

// jobsOfAllocs returns the stored allocations' jobs, so that a job's allocations share one.
func jobsOfAllocs(tx *store.Txn) map[jobKey]*api.Job {
	jobs := make(map[jobKey]*api.Job)
	for _, a := range tx.Allocations(nil, "") {
		if a.Job != nil {
			jobs[keyOfJob(a.Job)] = a.Job
		}
	}
	return jobs
}

func keyOfJob(j *api.Job) jobKey {
	k := jobKey{id: *j.ID}
	if j.Namespace != nil {
		k.namespace = *j.Namespace
	}
	for _, n := range []struct {
		from *uint64
		to   *uint64
	}{{j.Version, &k.version}, {j.JobModifyIndex, &k.jobModifyIndex}, {j.CreateIndex, &k.createIndex}} {
		if n.from != nil {
			*n.to = *n.from
		}
	}
	return k
}

// putAlloc stores a server's allocation: a new one as setFirstStates leaves it, and a known one with this node's states. It
// reports whether the servers had given up the allocation and it continues to run.
func (r *Replica) putAlloc(tx *store.Txn, jobs map[jobKey]*api.Job, pulled *protocol.Allocation, migrateToken string) (reconnected bool) {
	next := pulled.Allocation
	if shared := jobs[keyOfJob(next.Job)]; shared != nil && reflect.DeepEqual(model.FindGroup(shared, next.TaskGroup), model.FindGroup(next.Job, next.TaskGroup)) {
		next.Job = shared
	} else {
		jobs[keyOfJob(next.Job)] = next.Job
	}
	next.Metrics, next.Resources, next.TaskResources = nil, nil, nil
	record := r.clusterAlloc(tx.Reader, next.ID)
	old := tx.Allocation(nil, next.ID)
	if old != nil && old.ClientStatus == api.AllocClientStatusLost && !next.ServerTerminalStatus() && !next.ClientTerminalStatus() {
		// The servers were restored to a state before they gave it up. This node has only what they had sent.
		tx.DeleteAgentRecord(state.EndedAllocPrefix + next.ID)
		old = nil
	}
	var ended, mustReport bool
	wasReported := true
	if old == nil {
		ended, mustReport = setFirstStates(&next)
	} else {
		keepStates(&next, old)
		if record.StoppedByNode && next.DesiredStatus == api.AllocDesiredStatusRun {
			next.DesiredStatus, next.DesiredDescription = api.AllocDesiredStatusStop, stoppedByNode
		}
		reconnected = pulled.ClientStatus == api.AllocClientStatusUnknown && next.DesiredStatus == api.AllocDesiredStatusRun
		mustReport = decideHealthAfterEnd(&next, old)
		wasReported = r.isReported(tx.Reader, old)
		// If restored servers have changed the allocation since, they have a higher index and an earlier report.
		if pulled.ClientStatus != old.ClientStatus {
			mustReport = true
			if wasReported && pulled.ClientStatus != api.AllocClientStatusLost && pulled.ClientStatus != api.AllocClientStatusUnknown {
				r.resendStates = true // they have lost other reports, too
			}
		}
	}
	tx.PutScheduledAllocation(&next)
	record.ModifyIndex, record.CreateIndex = pulled.AllocModifyIndex, pulled.CreateIndex
	record.IdentityByTask, record.RemovedByServers = pulled.SignedIdentities, false
	if migrateToken != "" {
		record.MigrateToken = migrateToken
	}
	tx.PutAgentRecord(state.ClusterAllocPrefix+next.ID, record)
	if ended {
		tx.MarkAllocationEnded(next.ID)
	}
	switch {
	case mustReport:
		tx.OnCommit(func() { r.markUnsent(time.Now(), next.ID) })
	case wasReported: // this node need not report the servers' change
		tx.PutAgentRecord(state.ClusterReportedPrefix+next.ID, tx.Index())
	}
	return reconnected
}

// setFirstStates gives an allocation that is not in the store its initial states. It reports whether the allocation has ended,
// so that it gets no runner, and whether the servers must learn the states.
func setFirstStates(a *api.Allocation) (ended, serversMustLearn bool) {
	switch {
	case a.ClientTerminalStatus(): // this node has removed it after its end, and the servers have the last states that reached them
		hadLiveTasks := endTasks(a)
		return true, hadLiveTasks && a.ClientStatus != api.AllocClientStatusLost // only servers decide "lost"
	case a.ServerTerminalStatus():
		endWithoutStart(a)
		return true, true
	}
	if unsupported := admission.UnsupportedPartsOfGroup(a.Namespace, a.GetTaskGroup()); len(unsupported) > 0 {
		failWithoutStart(a, unsupported)
		return true, true
	}
	startAnew(a)
	return false, false
}

// startAnew removes the servers' states from an earlier run, which this node has lost or removed, but keeps the events.
func startAnew(a *api.Allocation) {
	a.ClientStatus, a.ClientDescription, a.NetworkStatus = api.AllocClientStatusPending, "", nil
	maps.DeleteFunc(a.TaskStates, func(_ string, known *api.TaskState) bool { return known == nil })
	for name, known := range a.TaskStates {
		a.TaskStates[name] = &api.TaskState{State: model.TaskPending, Restarts: known.Restarts, LastRestart: known.LastRestart, Events: known.Events}
	}
}

// keepStates replaces an allocation's states from the servers by this node's.
func keepStates(next, old *api.Allocation) {
	next.ClientStatus, next.ClientDescription = old.ClientStatus, old.ClientDescription
	next.TaskStates, next.NetworkStatus = old.TaskStates, old.NetworkStatus
	if next.DeploymentID == old.DeploymentID && old.DeploymentStatus != nil && old.DeploymentStatus.Healthy != nil {
		health := *old.DeploymentStatus
		health.Canary = next.DeploymentStatus != nil && next.DeploymentStatus.Canary
		next.DeploymentStatus = &health
	}
}

// decideHealthAfterEnd marks an ended allocation as unhealthy if it belongs to a new deployment, and reports whether it does: no
// runner decides its health, and the servers replace it only when it is unhealthy.
func decideHealthAfterEnd(next, old *api.Allocation) bool {
	if !old.ClientTerminalStatus() || next.DesiredStatus != api.AllocDesiredStatusRun || next.DeploymentID == "" ||
		next.DeploymentID == old.DeploymentID || next.DeploymentStatus != nil && next.DeploymentStatus.Healthy != nil {
		return false
	}
	health := api.AllocDeploymentStatus{}
	if next.DeploymentStatus != nil {
		health = *next.DeploymentStatus
	}
	health.Healthy, health.Timestamp = new(false), time.Now()
	next.DeploymentStatus = &health
	return true
}

// endWithoutStart ends an allocation the node must not start.
func endWithoutStart(a *api.Allocation) {
	a.ClientStatus, a.ClientDescription = api.AllocClientStatusComplete, "The allocation was stopped before it was started"
	endTasks(a)
	for _, state := range a.TaskStates {
		if !state.StartedAt.IsZero() {
			a.ClientDescription = "The allocation was stopped, and the node no longer has it"
		}
	}
}

// endTasks marks all tasks of an allocation as dead, and reports whether one was not. The tasks keep the events on the servers:
// this node, or an earlier state of it, has run the allocation, and has removed it.
func endTasks(a *api.Allocation) (changed bool) {
	known := a.TaskStates
	a.TaskStates = make(map[string]*api.TaskState)
	for _, task := range a.GetTaskGroup().Tasks {
		state := &api.TaskState{}
		if known[task.Name] != nil {
			state = model.CopyTaskState(known[task.Name])
		}
		if state.State != model.TaskDead {
			state.State, state.FinishedAt = model.TaskDead, time.Now()
			changed = true
		}
		a.TaskStates[task.Name] = state
	}
	return changed
}

// supportedElsewhere is the remedy for a job that nodes of other programs can run.
const supportedElsewhere = `add constraint { attribute = "${attr.nomad-lite.version}", operator = "is_not_set" } to the job, so that servers place it on other nodes`

// failWithoutStart gives an allocation that cannot run on this node the states of a failed one.
func failWithoutStart(a *api.Allocation, reasons []string) {
	now := time.Now()
	cause := strings.Join(reasons, "; ") + ": " + supportedElsewhere
	a.TaskStates = make(map[string]*api.TaskState)
	for _, task := range a.GetTaskGroup().Tasks {
		state := &api.TaskState{State: "dead", Failed: true, FinishedAt: now}
		model.AppendTaskEvent(state, model.EventFailedValidation(cause), now)
		a.TaskStates[task.Name] = state
	}
	a.ClientStatus, a.ClientDescription = api.AllocClientStatusFailed, "This node cannot run the allocation"
}

const removedByServers = "the servers have removed the allocation"

// removeAlloc removes an allocation the servers no longer have. An unfinished one is stopped first; ApplyAllocReports removes it
// at its end. It reports whether it has changed the store.
func (r *Replica) removeAlloc(tx *store.Txn, a *api.Allocation) bool {
	if tx.AllocationEnded(a.ID) {
		r.deleteAlloc(tx, a.ID)
		return true
	}
	record := r.clusterAlloc(tx.Reader, a.ID)
	if record.RemovedByServers {
		return false
	}
	record.RemovedByServers = true
	tx.PutAgentRecord(state.ClusterAllocPrefix+a.ID, record)
	stopping := *a
	stopping.DesiredStatus, stopping.DesiredDescription = api.AllocDesiredStatusStop, removedByServers
	tx.PutScheduledAllocation(&stopping)
	return true
}

// deleteAlloc deletes an ended allocation, with everything the replica has stored about it.
func (r *Replica) deleteAlloc(tx *store.Txn, id string) {
	tx.DeleteAllocationAndQueueRemoval(id)
	tx.DeleteAgentRecord(state.ClusterAllocPrefix + id)
	tx.DeleteAgentRecord(state.ClusterReportedPrefix + id)
	tx.OnCommit(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.unsent, id)
		delete(r.inDoubt, id)
		delete(r.resendAt, id)
		delete(r.sentStatus, id)
	})
}
