package replica

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// disconnectCheckInterval is the time between two searches for allocations whose stop_on_client_after is over.
	disconnectCheckInterval = time.Second
	// contactGrace is how long an agent that has started waits for a first contact before it stops allocations whose time
	// was over at its start.
	contactGrace = 50 * time.Second

	stoppedByNode = "the node had no contact with the servers for longer than stop_on_client_after"
)

// stopAfterDisconnect stops allocations with stop_on_client_after that have had no contact with the servers for that time.
func (r *Replica) stopAfterDisconnect(ctx context.Context) {
	for wait.Sleep(ctx, disconnectCheckInterval) == nil {
		expired := r.expiredAllocs(time.Now())
		if len(expired) == 0 {
			continue
		}
		_, err := r.config.Store.Update(ctx, func(tx *store.Txn) error {
			for _, id := range expired {
				r.stopDisconnected(tx, id)
			}
			return nil
		})
		switch {
		case err == nil:
			r.config.OnAllocsChanged()
		case !errors.Is(err, context.Canceled):
			r.config.Logger.Error("allocations without contact to the servers not stopped", "error", err)
		}
	}
}

// expiredAllocs returns the running allocations whose stop_on_client_after is over.
func (r *Replica) expiredAllocs(now time.Time) (ids []string) {
	last := r.config.Member.LastContact()
	if last.IsZero() {
		last = r.startTime
	}
	for _, a := range r.config.Store.Snapshot().AllocationsByNode(nil, r.config.NodeID) {
		limit, some := stopOnClientAfter(a)
		if !some || a.ServerTerminalStatus() || a.ClientTerminalStatus() {
			continue
		}
		due := last.Add(limit)
		if last.Before(r.startTime) { // this agent has had no contact yet
			due = later(due, r.startTime.Add(min(limit, contactGrace)))
		}
		if now.After(due) {
			ids = append(ids, a.ID)
		}
	}
	return ids
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// stopOnClientAfter returns the time after which the node must stop an allocation without contact to the servers, and
// false if there is none.
func stopOnClientAfter(a *api.Allocation) (limit time.Duration, some bool) {
	group := a.GetTaskGroup()
	if group == nil || group.Disconnect == nil || group.Disconnect.StopOnClientAfter == nil {
		return 0, false
	}
	return *group.Disconnect.StopOnClientAfter, true
}

// stopDisconnected stops an allocation, and stores that the servers cannot start it again.
func (r *Replica) stopDisconnected(tx *store.Txn, id string) {
	a := tx.Allocation(nil, id)
	if a == nil || a.ServerTerminalStatus() || a.ClientTerminalStatus() {
		return
	}
	r.config.Logger.Warn("stopping an allocation: "+stoppedByNode, "alloc_id", id)
	record := r.clusterAlloc(tx.Reader, id)
	record.StoppedByNode = true
	tx.PutAgentRecord(state.ClusterAllocPrefix+id, record)
	stopping := *a
	stopping.DesiredStatus, stopping.DesiredDescription = api.AllocDesiredStatusStop, stoppedByNode
	tx.PutScheduledAllocation(&stopping)
}
