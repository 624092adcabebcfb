package replica

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

const (
	// minDisconnectCheckInterval and maxDisconnectCheckInterval limit the time between two searches for allocations with an expired
	// stop_on_client_after. The clock can be set meanwhile.
	minDisconnectCheckInterval = time.Second
	maxDisconnectCheckInterval = 10 * time.Second
	// contactGrace is how long a started agent waits for a first contact before it stops allocations that had expired at its start.
	contactGrace = 50 * time.Second

	stoppedByNode = "the node had no contact with the servers for longer than stop_on_client_after"
)

// stopAfterDisconnect stops allocations with stop_on_client_after after that time without contact to the servers. It does not
// wake while no allocation has a limit.
func (r *Replica) stopAfterDisconnect(ctx context.Context) {
	for {
		expired, untilNext, some := r.expiredAllocs(time.Now())
		if len(expired) > 0 {
			r.stopAllDisconnected(ctx, expired)
		}
		var check <-chan time.Time
		if some {
			check = time.After(min(max(untilNext, minDisconnectCheckInterval), maxDisconnectCheckInterval))
		}
		select {
		case <-check:
		case <-r.limitsChanged:
		case <-ctx.Done():
			return
		}
	}
}

// expiredAllocs returns the running allocations with an expired stop_on_client_after, and the time until the next one expires
// without contact; some is false if no running allocation has a limit.
func (r *Replica) expiredAllocs(now time.Time) (expired []string, untilNext time.Duration, some bool) {
	last := r.config.Member.LastContact()
	if last.IsZero() {
		last = r.startTime
	}
	for _, a := range r.config.Store.Snapshot().AllocationsByNode(nil, r.config.NodeID) {
		limit, limited := stopOnClientAfter(a)
		if !limited || a.ServerTerminalStatus() || a.ClientTerminalStatus() {
			continue
		}
		remaining := last.Add(limit).Sub(now)
		if last.Before(r.startTime) { // this agent has had no contact yet
			remaining = max(remaining, r.startTime.Add(min(limit, contactGrace)).Sub(now))
		}
		if remaining < 0 {
			expired = append(expired, a.ID)
		}
		if !some || remaining < untilNext {
			untilNext, some = remaining, true
		}
	}
	return expired, untilNext, some
}

// stopAllDisconnected stops allocations. If it cannot stop one, the next check does.
func (r *Replica) stopAllDisconnected(ctx context.Context, ids []string) {
	_, err := r.config.Store.Update(ctx, func(tx *store.Txn) error {
		for _, id := range ids {
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

// stopOnClientAfter returns the time after which the node must stop an allocation without contact to the servers, and false if
// there is none.
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
