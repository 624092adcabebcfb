package clusternode

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/protocol"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

const (
	// defaultDrainDeadline is Nomad's.
	defaultDrainDeadline = time.Hour
	// afterDeadlineTimeout is how long an agent waits, after a drain's deadline, for the servers to stop the remaining
	// allocations, and for the tasks to end.
	afterDeadlineTimeout = 30 * time.Second
)

// DrainOptions are the options for a drain of this node by the servers.
type DrainOptions struct {
	Deadline         time.Duration // after which the servers stop all remaining allocations; zero means an hour
	Force            bool          // the servers stop all allocations at once
	IgnoreSystemJobs bool          // the servers leave system job allocations
}

// Drain lets the cluster's servers move this node's allocations to other nodes. It blocks until the tasks of these
// allocations have ended, or until ctx or the time for the drain ends, which is an error. The node stays ineligible. Run must
// run.
func (n *Node) Drain(ctx context.Context, d DrainOptions) error {
	strategy := protocol.DrainStrategy{Deadline: cmp.Or(d.Deadline, defaultDrainDeadline), IgnoreSystemJobs: d.IgnoreSystemJobs}
	if d.Force {
		strategy.Deadline = -time.Second // a negative deadline forces the drain
	}
	limit := max(strategy.Deadline, 0) + afterDeadlineTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it takes longer than %v", limit))
	defer cancel()
	if err := n.member.Drain(ctx, strategy); err != nil {
		return fmt.Errorf("drain by the servers: %w", err)
	}
	for {
		ws := store.NewWatchSet()
		left := drainedAllocsLeft(n.store.Snapshot().Reader, ws, d.IgnoreSystemJobs)
		if left == 0 {
			return nil
		}
		if err := ws.WatchCtx(ctx); err != nil {
			return fmt.Errorf("%d allocations have not ended: %w", left, context.Cause(ctx))
		}
	}
}

// drainedAllocsLeft returns the number of allocations, not yet ended, that a complete drain ends.
func drainedAllocsLeft(reader store.Reader, ws store.WatchSet, ignoreSystemJobs bool) (left int) {
	for _, alloc := range reader.WithoutEndedEvents().Allocations(ws, "") {
		isIgnored := ignoreSystemJobs && alloc.Job != nil && pointer.Value(alloc.Job.Type) == api.JobTypeSystem
		if !isIgnored && !alloc.ClientTerminalStatus() && !reader.AllocationEnded(alloc.ID) {
			left++
		}
	}
	return left
}
