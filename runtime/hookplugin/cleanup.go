package hookplugin

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/state"
)

// cleanupCall returns the call of the hook point with its request.
func cleanupCall(d *state.PendingCleanup) call {
	switch {
	case d.Postrun != nil:
		return bind(Remote.Postrun, d.Postrun, &d.Postrun.RequestMeta, &d.Postrun.Alloc)
	case d.Stop != nil:
		return bind(Remote.Stop, d.Stop, &d.Stop.RequestMeta, &d.Stop.Alloc)
	case d.Destroy != nil:
		return bind(Remote.Destroy, d.Destroy, &d.Destroy.RequestMeta, &d.Destroy.Alloc)
	}
	return func(context.Context, Remote, asked) error { return d.CheckRecord() }
}

// CleanupStore persists pending cleanups for the next agent.
type CleanupStore interface {
	// Debts returns the pending cleanups of allocations that have a record, and deletes
	// the others. Unreadable records are left out.
	Debts() []state.PendingCleanup
	PutDebt(state.PendingCleanup) error
	DeleteDebt(state.PendingCleanup) error
}

// The minimum and maximum pause between two attempts of a pending cleanup.
const (
	debtPause     = time.Second
	mostDebtPause = time.Minute
)

// destroyTimeout limits the retries of Destroy for an allocation without a record: a
// plugin that never succeeds must not fill the state.
const destroyTimeout = 24 * time.Hour

// enqueue stores a failed call for a retry, and returns err with that outcome added.
func (h *Hook) enqueue(d state.PendingCleanup, err error) error {
	d.Hook, d.AllocID, d.Task = h.name, h.context.AllocID, h.context.Task
	d.Job, d.Raw = h.Attachment(), h.attachment.raw
	if putErr := h.set.config.Debts.PutDebt(d); putErr != nil {
		return fmt.Errorf("%w; it is not tried again: %v", err, putErr)
	}
	tick(h.set.owed)
	return fmt.Errorf("%w; it is tried again until it succeeds", err)
}

// Run retries pending cleanups, of this agent and of earlier ones, and blocks until ctx
// ends. A hook that does not answer does not delay the retries of other hooks.
func (s *Set) Run(ctx context.Context) {
	working := make(map[string]chan struct{}) // working is keyed by hook name; each channel holds a tick when a pending cleanup is new
	ended := make(chan string)
	begin := func(name string) {
		fresh := make(chan struct{}, 1)
		working[name] = fresh
		go func() {
			s.retryLoop(ctx, name, fresh)
			ended <- name
		}()
	}
	for ctx.Err() == nil {
		for name := range s.pendingHooks() {
			if working[name] == nil {
				begin(name)
			}
		}
		select {
		case name := <-ended:
			delete(working, name) // and check pendingHooks again: the loop may have missed the last pending cleanup
		case <-s.owed:
			for _, fresh := range working {
				tick(fresh)
			}
			_ = pause(ctx, debtPause, nil) // the call of a new pending cleanup has just failed
		case <-ctx.Done():
		}
	}
	for range working {
		<-ended
	}
}

// Drain retries pending cleanups until none is left or ctx ends, and logs the ones that
// remain, for an agent that has no successor. Run must have returned.
func (s *Set) Drain(ctx context.Context) {
	var settling sync.WaitGroup
	for name := range s.pendingHooks() {
		settling.Go(func() { s.retryLoop(ctx, name, nil) })
	}
	settling.Wait()
	for _, d := range s.config.Debts.Debts() {
		s.logger.Warn("hook has not cleaned up, and is not told again", "hook", d.Hook, "alloc_id", d.AllocID, "task", d.Task, "hook_point", d.Point)
	}
}

// pendingHooks returns the names of the hooks with pending cleanups.
func (s *Set) pendingHooks() map[string]bool {
	names := make(map[string]bool)
	for _, d := range s.config.Debts.Debts() {
		names[d.Hook] = true
	}
	return names
}

// tick sends to c, unless its buffer is full.
func tick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// retryLoop retries the pending cleanups of one hook, until none is left or ctx ends.
func (s *Set) retryLoop(ctx context.Context, hook string, fresh <-chan struct{}) {
	for between := debtPause; s.retryOnce(ctx, hook); {
		if pause(ctx, between, fresh) {
			between = debtPause
		} else {
			between = min(2*between, mostDebtPause)
		}
	}
}

// retryOnce retries each pending cleanup of the hook once, and reports whether any is
// left to be retried.
func (s *Set) retryOnce(ctx context.Context, hook string) (left bool) {
	debts := s.config.Debts.Debts()
	slices.SortStableFunc(debts, func(a, b state.PendingCleanup) int { return a.Until.Compare(b.Until) }) // Destroy comes last for each allocation
	for _, d := range debts {
		if d.Hook != hook || ctx.Err() != nil {
			continue
		}
		if err := s.settle(ctx, d); err != nil {
			left = true
			s.logger.Debug("cleanup of a hook is still pending", "hook", d.Hook, "alloc_id", d.AllocID, "task", d.Task, "hook_point", d.Point, "error", err)
			continue
		}
		if err := s.config.Debts.DeleteDebt(d); err != nil {
			s.logger.Error("settled debt of a hook not removed", "hook", d.Hook, "error", err)
		}
	}
	return left && ctx.Err() == nil
}

// pause waits for d, for fresh or for the end of ctx. It reports whether fresh ended it.
func pause(ctx context.Context, d time.Duration, fresh <-chan struct{}) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-fresh:
		return true
	}
	return false
}

// settle repeats the call of a pending cleanup.
func (s *Set) settle(ctx context.Context, d state.PendingCleanup) error {
	h := s.hook(d.Hook, attachment{made: true, job: d.Job, raw: d.Raw}, Target{
		AllocID: d.AllocID, Task: d.Task,
		AllocJSON: func() ([]byte, error) { return nil, nil }, // the request has it
		Emit:      func(*api.TaskEvent) {},
	})
	return h.once(ctx, d.Point, cleanupCall(&d))
}
