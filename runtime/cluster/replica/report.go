package replica

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/servers"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// minReportInterval is the least time between two calls: the servers collect states for as long.
	minReportInterval = 50 * time.Millisecond
	// maxEventDelay is how long a state waits if it changes no client status.
	maxEventDelay       = time.Second
	maxReportRetryDelay = 5 * time.Second
	refusedDelay        = 2 * time.Second
	// maxLateCall is longer than servers can take to execute a call with a lost connection: they wait for a leader and for their
	// log.
	maxLateCall = time.Minute
	reportBatch = 200 // states per call
)

// ApplyAllocReports stores states of allocations this node runs, and makes Run send them. It ignores allocations that are not
// stored, and deletes ended ones that the servers have removed. It returns when the states are stored.
func (r *Replica) ApplyAllocReports(ctx context.Context, reports ...model.AllocReport) (index uint64, err error) {
	changed, someEnded := []string(nil), false
	index, err = r.config.Store.Update(ctx, func(tx *store.Txn) error {
		changed, someEnded = nil, false
		now := time.Now()
		for _, report := range reports {
			old := tx.Allocation(nil, report.AllocID)
			if old == nil {
				continue
			}
			var record state.ClusterAlloc
			if report.TasksAndHooksEnded || report.ClientStatus == api.AllocClientStatusComplete {
				record = r.clusterAlloc(tx.Reader, report.AllocID)
			}
			if record.StoppedByNode && report.ClientStatus == api.AllocClientStatusComplete {
				// Without a missed heartbeat, servers replace a failed allocation, and assume that a complete one has done its work.
				report.ClientStatus, report.ClientDescription = api.AllocClientStatusFailed, stoppedByNode
			}
			next := report.ApplyTo(old, now, tx.Index())
			if next == nil {
				continue
			}
			tx.PutReportedAllocation(next)
			changed = append(changed, next.ID)
			if !report.TasksAndHooksEnded {
				continue
			}
			tx.MarkAllocationEnded(next.ID)
			if record.RemovedByServers {
				r.deleteAlloc(tx, next.ID)
			}
			someEnded = true
		}
		if len(changed) == 0 {
			return errNothingChanged
		}
		return nil
	})
	if errors.Is(err, errNothingChanged) {
		return r.config.Store.Snapshot().Index(), nil
	}
	if err != nil {
		return 0, err
	}
	r.markUnsent(time.Now().Add(maxEventDelay), changed...)
	if someEnded {
		r.config.OnAllocsChanged() // an allocation that waited for another's end can start
	}
	return index, nil
}

// markUnsent makes Run send allocation states at the given time at the latest.
func (r *Replica) markUnsent(latest time.Time, ids ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	snapshot := r.config.Store.Snapshot()
	for _, id := range ids {
		due := latest
		if a := snapshot.Allocation(nil, id); a != nil && a.ClientStatus != r.sentStatus[id] {
			due = time.Now()
		}
		if earlier, waits := r.unsent[id]; !waits || due.Before(earlier) {
			r.unsent[id] = due
		}
	}
	wait.Notify(r.wake)
}

// ReportStates sends the states of all unfinished allocations, although the servers have accepted them before, and a heartbeat
// afterwards: the servers make a node ready again after both. It does not wait for the servers.
func (r *Replica) ReportStates() {
	var ids []string
	for _, a := range r.config.Store.Snapshot().AllocationsByNode(nil, r.config.NodeID) {
		if !a.ClientTerminalStatus() {
			ids = append(ids, a.ID)
		}
	}
	if len(ids) == 0 {
		return
	}
	r.mu.Lock()
	r.beatWhenSent = true
	r.mu.Unlock()
	r.markUnsent(time.Now(), ids...)
}

// isReported reports whether the servers have accepted an allocation's stored state.
func (r *Replica) isReported(reader store.Reader, a *api.Allocation) bool {
	var index uint64
	known, err := reader.ReadAgentRecord(state.ClusterReportedPrefix+a.ID, &index)
	return err == nil && known && index >= a.ModifyIndex
}

// sendStates sends allocation states to the servers until ctx ends, starting with those an earlier agent could not send.
func (r *Replica) sendStates(ctx context.Context) {
	snapshot := r.config.Store.Snapshot()
	for _, a := range snapshot.AllocationsByNode(nil, r.config.NodeID) {
		if !r.isReported(snapshot.Reader, a) {
			r.mu.Lock()
			r.inDoubt[a.ID] = true
			r.mu.Unlock()
			r.markUnsent(time.Now(), a.ID)
		}
	}
	for {
		due, some := r.nextDue()
		var timer <-chan time.Time
		if some {
			timer = time.After(max(minReportInterval, time.Until(due)))
		}
		select {
		case <-timer:
			if err := r.sendUnsent(ctx); err != nil && r.waitAfterRefusal(ctx, err) != nil {
				return
			}
		case <-r.wake:
		case <-ctx.Done():
			return
		}
	}
}

// SendStates sends all states the servers have not accepted. It does nothing before Pulled's channel is closed. It blocks until
// the servers have answered, or until ctx ends.
func (r *Replica) SendStates(ctx context.Context) error {
	if !wait.IsClosed(r.pulled) {
		return nil
	}
	return r.sendUnsent(ctx)
}

// nextDue returns when the next states must be sent, and false if there are none.
func (r *Replica) nextDue() (due time.Time, some bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, times := range []map[string]time.Time{r.unsent, r.resendAt} {
		for _, t := range times {
			if !some || t.Before(due) {
				due, some = t, true
			}
		}
	}
	return due, some
}

// waitAfterRefusal blocks before states are sent again after err.
func (r *Replica) waitAfterRefusal(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	r.config.Logger.Warn("states of allocations not accepted by the servers", "error", err)
	if servers.IsUpdateRefused(err) || servers.IsNodeNotFound(err) || servers.IsPermissionDenied(err) {
		r.config.Member.Beat() // the servers take states after a heartbeat
		return r.config.Pool.WaitRetry(ctx, refusedDelay)
	}
	return r.config.Pool.WaitRetry(ctx, maxReportRetryDelay)
}

// sendUnsent sends all unsent states, also those that could wait. States stay unsent until they are accepted.
func (r *Replica) sendUnsent(ctx context.Context) error {
	r.mu.Lock()
	ids := make([]string, 0, len(r.unsent))
	for id := range r.unsent {
		ids = append(ids, id)
	}
	clear(r.unsent)
	for id, at := range r.resendAt {
		if !time.Now().Before(at) {
			ids = append(ids, id)
			delete(r.resendAt, id)
		}
	}
	beat := r.beatWhenSent
	r.beatWhenSent = false
	r.mu.Unlock()
	slices.Sort(ids)
	ids = slices.Compact(ids)
	for len(ids) > 0 {
		n := min(reportBatch, len(ids))
		if err := r.sendBatch(ctx, ids[:n]); err != nil {
			r.mu.Lock()
			r.beatWhenSent = r.beatWhenSent || beat
			r.mu.Unlock()
			r.markUnsent(time.Now(), ids...)
			return err
		}
		ids = ids[n:]
	}
	if beat {
		r.config.Member.Beat()
	}
	return nil
}

// sendBatch sends stored allocation states, and stores that the servers have accepted them.
func (r *Replica) sendBatch(ctx context.Context, ids []string) error {
	snapshot := r.config.Store.Snapshot()
	var states []*protocol.AllocStatus
	sentIndex := make(map[string]uint64)
	for _, id := range ids {
		a := snapshot.Allocation(nil, id)
		if a == nil || r.clusterAlloc(snapshot.Reader, id).RemovedByServers {
			continue // the servers no longer have it
		}
		sentIndex[id] = a.ModifyIndex
		states = append(states, newAllocStatus(a, r.config.NodeID))
	}
	if len(states) == 0 {
		return nil
	}
	point := failpoint.EnterStep(failpoint.StepStatesSent)
	serverIndex, err := r.callUpdateAllocs(ctx, states)
	point.Leave()
	r.noteSent(states, err)
	if err != nil {
		return err
	}
	_, err = r.config.Store.Update(ctx, func(tx *store.Txn) error {
		for id, index := range sentIndex {
			if tx.Allocation(nil, id) != nil {
				tx.PutAgentRecord(state.ClusterReportedPrefix+id, index)
			}
		}
		tx.PutAgentRecord(state.ClusterReportIndexName, serverIndex)
		return nil
	})
	if err != nil {
		return fmt.Errorf("store that the servers have accepted states: %w", err)
	}
	return nil
}

// noteSent notes the result of a call with states.
func (r *Replica) noteSent(states []*protocol.AllocStatus, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range states {
		if err != nil {
			r.inDoubt[a.ID] = true
			continue
		}
		r.sentStatus[a.ID] = a.ClientStatus
		if r.inDoubt[a.ID] {
			delete(r.inDoubt, a.ID)
			r.resendAt[a.ID] = time.Now().Add(maxLateCall)
		}
	}
}

// callUpdateAllocs sends states to the servers, and returns their index afterwards.
func (r *Replica) callUpdateAllocs(ctx context.Context, states []*protocol.AllocStatus) (index uint64, err error) {
	request := protocol.UpdateAllocsRequest{Alloc: states, WriteOptions: protocol.WriteOptions{Region: r.config.Region, AuthToken: r.config.Member.Token()}}
	var response protocol.WriteMeta
	err = r.config.Pool.Call(ctx, protocol.MethodUpdateAllocs, &request, &response)
	return response.Index, err
}

// storedReportIndex returns the servers' index after the last states they have accepted, also from an earlier agent.
func (r *Replica) storedReportIndex() uint64 {
	var index uint64
	if _, err := r.config.Store.Snapshot().ReadAgentRecord(state.ClusterReportIndexName, &index); err != nil {
		r.config.Logger.Error("index of the last report not read", "error", err)
	}
	return index
}

// newAllocStatus returns the message with an allocation's state. It has all the group's tasks, because it replaces the servers'
// states.
func newAllocStatus(a *api.Allocation, nodeID string) *protocol.AllocStatus {
	status := &protocol.AllocStatus{
		ID: a.ID, NodeID: nodeID, ClientStatus: a.ClientStatus, ClientDescription: a.ClientDescription,
		TaskStates: make(map[string]*api.TaskState), NetworkStatus: a.NetworkStatus,
	}
	if group := a.GetTaskGroup(); group != nil {
		for _, task := range group.Tasks {
			status.TaskStates[task.Name] = &api.TaskState{State: "pending"}
		}
	}
	for name, task := range a.TaskStates {
		status.TaskStates[name] = task
	}
	if d := a.DeploymentStatus; d != nil && d.Healthy != nil {
		status.DeploymentStatus = &protocol.DeploymentStatus{Healthy: d.Healthy, Timestamp: d.Timestamp, Canary: d.Canary}
	}
	return status
}
