package pluginhooks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// newCleanupCall returns the function that makes a pending cleanup's call.
func newCleanupCall(d *state.PendingCleanup) callPluginFunc {
	switch {
	case d.Postrun != nil:
		return bindRequest(RemoteHook.Postrun, d.Postrun, &d.Postrun.RequestMeta, &d.Postrun.Alloc)
	case d.Stop != nil:
		return bindRequest(RemoteHook.Stop, d.Stop, &d.Stop.RequestMeta, &d.Stop.Alloc)
	case d.Destroy != nil:
		return bindRequest(RemoteHook.Destroy, d.Destroy, &d.Destroy.RequestMeta, &d.Destroy.Alloc)
	}
	return func(context.Context, RemoteHook, commonRequestFields) error {
		return errors.New("a pending cleanup has no request")
	}
}

// CleanupStore persists pending cleanups for the next agent. Its methods may be called
// concurrently.
type CleanupStore interface {
	// ListDeletingExpired returns the pending cleanups. If the allocation has no record, it deletes a cleanup after its RetryUntil,
	// and sets a zero RetryUntil to CleanupTimeout from now. Unreadable records are left out.
	ListDeletingExpired() []state.PendingCleanup
	Put(state.PendingCleanup) error
	Delete(state.PendingCleanup) error
}

// The minimum and maximum pause between two attempts at a pending cleanup.
const (
	minCleanupPause = time.Second
	maxCleanupPause = time.Minute
)

// CleanupTimeout limits cleanup retries for an allocation without a record: a plugin that never succeeds must not fill the state.
const CleanupTimeout = 24 * time.Hour

// errEarlierCleanup is the error for a postponed Destroy call.
var errEarlierCleanup = errors.New("an earlier call for the allocation must be repeated first")

// postponeDestroyIfCleanupPending makes a Destroy call a pending cleanup if the hook has another pending cleanup for the
// allocation, because Destroy is the last call. It reports whether it did.
func (h *Hook) postponeDestroyIfCleanupPending(d state.PendingCleanup) (postponed bool, err error) {
	description := h.description.Load()
	if description != nil && !h.isCalledAt(description, hook.Destroy) {
		return false, nil
	}
	if !slices.ContainsFunc(h.hookSet.config.CleanupStore.ListDeletingExpired(), func(other state.PendingCleanup) bool {
		return other.Hook == h.name && other.AllocID == h.target.AllocID
	}) {
		return false, nil
	}
	if description != nil && description.IncludeAllocJSON {
		if d.Destroy.Alloc.JSON, err = h.target.AllocJSON(); err != nil {
			return true, err
		}
	}
	return true, h.enqueueCleanup(d, errEarlierCleanup)
}

// enqueueCleanup stores a failed call for a retry, and returns err with this outcome added.
func (h *Hook) enqueueCleanup(d state.PendingCleanup, err error) error {
	d.Hook, d.AllocID, d.Task = h.name, h.target.AllocID, h.target.TaskName
	d.JobAttachmentJSON, d.BuiltinAttachmentJSON = h.AttachmentJSON(), h.attachment.builtinBlocksJSON
	if putErr := h.hookSet.config.CleanupStore.Put(d); putErr != nil {
		return fmt.Errorf("%w; it is not tried again: %v", err, putErr)
	}
	wait.Notify(h.hookSet.cleanupAdded)
	return fmt.Errorf("%w; it is tried again until it succeeds", err)
}

// RetryCleanupsUntilCanceled retries pending cleanups, also from earlier agents, and blocks until ctx ends. An unresponsive hook
// does not delay other hooks' retries.
func (s *HookPluginSet) RetryCleanupsUntilCanceled(ctx context.Context) {
	loops := make(map[string]chan struct{}) // keyed by hook name; each channel receives a value for a new pending cleanup
	ended := make(chan string)
	begin := func(name string) {
		enqueued := make(chan struct{}, 1)
		loops[name] = enqueued
		go func() {
			s.retryCleanupsOfHook(ctx, name, enqueued)
			ended <- name
		}()
	}
	for ctx.Err() == nil {
		for name := range s.hooksWithPendingCleanups() {
			if loops[name] == nil {
				begin(name)
			}
		}
		select {
		case name := <-ended:
			delete(loops, name) // the next iteration checks hooksWithPendingCleanups again, because the loop may have missed the last pending cleanup
		case <-s.cleanupAdded:
			for _, enqueued := range loops {
				wait.Notify(enqueued)
			}
			_ = waitForDelayOrCleanup(ctx, minCleanupPause, nil) // no immediate retry, because a new pending cleanup's call has just failed
		case <-ctx.Done():
		}
	}
	for range loops {
		<-ended
	}
}

// RetryCleanupsUntilNoneLeft retries pending cleanups until none is left or ctx ends, and logs the remaining ones, for an agent
// without a successor. RetryCleanupsUntilCanceled must have returned.
func (s *HookPluginSet) RetryCleanupsUntilNoneLeft(ctx context.Context) {
	var retryWG sync.WaitGroup
	for name := range s.hooksWithPendingCleanups() {
		retryWG.Go(func() { s.retryCleanupsOfHook(ctx, name, nil) })
	}
	retryWG.Wait()
	for _, d := range s.config.CleanupStore.ListDeletingExpired() {
		s.logger.Warn("cleanup of a hook abandoned", "hook", d.Hook, "alloc_id", d.AllocID, "task", d.Task, "hook_point", d.Point)
	}
}

// hooksWithPendingCleanups returns the names of the hooks with pending cleanups.
func (s *HookPluginSet) hooksWithPendingCleanups() map[string]bool {
	names := make(map[string]bool)
	for _, d := range s.config.CleanupStore.ListDeletingExpired() {
		names[d.Hook] = true
	}
	return names
}

// retryCleanupsOfHook retries one hook's pending cleanups, until none is left or ctx ends.
func (s *HookPluginSet) retryCleanupsOfHook(ctx context.Context, hook string, enqueued <-chan struct{}) {
	for delay := minCleanupPause; s.retryCleanupsOnce(ctx, hook); {
		if waitForDelayOrCleanup(ctx, delay, enqueued) {
			delay = minCleanupPause
		} else {
			delay = min(2*delay, maxCleanupPause)
		}
	}
}

// cleanupOrder is the retry order for an allocation's pending cleanups.
var cleanupOrder = map[hook.Point]int{hook.Stop: 1, hook.Postrun: 2, hook.Destroy: 3}

// retryCleanupsOnce retries each of the hook's pending cleanups once, and reports whether any must be retried again.
func (s *HookPluginSet) retryCleanupsOnce(ctx context.Context, hook string) (pending bool) {
	list := s.config.CleanupStore.ListDeletingExpired()
	slices.SortStableFunc(list, func(a, b state.PendingCleanup) int { return cmp.Compare(cleanupOrder[a.Point], cleanupOrder[b.Point]) })
	for _, d := range list {
		if d.Hook != hook || ctx.Err() != nil {
			continue
		}
		if err := s.retryCleanup(ctx, d); err != nil {
			pending = true
			s.logger.Debug("cleanup of a hook is still pending", "hook", d.Hook, "alloc_id", d.AllocID, "task", d.Task, "hook_point", d.Point, "error", err)
			continue
		}
		if err := s.config.CleanupStore.Delete(d); err != nil {
			s.logger.Error("record of a completed cleanup not deleted", "hook", d.Hook, "error", err)
		}
	}
	return pending && ctx.Err() == nil
}

// waitForDelayOrCleanup waits for d, for enqueued or until ctx ends. cleanupEnqueued reports whether enqueued had a value.
func waitForDelayOrCleanup(ctx context.Context, d time.Duration, enqueued <-chan struct{}) (cleanupEnqueued bool) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-enqueued:
		return true
	}
	return false
}

// retryCleanup makes a pending cleanup's call once.
func (s *HookPluginSet) retryCleanup(ctx context.Context, d state.PendingCleanup) error {
	h := s.newAttachedHook(d.Hook, attachment{isExplicit: true, jobAttachmentJSON: d.JobAttachmentJSON, builtinBlocksJSON: d.BuiltinAttachmentJSON}, hooks.AttachTarget{
		AllocID: d.AllocID, TaskName: d.Task,
		AllocJSON: func() ([]byte, error) { return nil, nil }, // the request has it
		EmitEvent: func(*api.TaskEvent) {},
	})
	return h.callOnce(ctx, d.Point, func() {}, newCleanupCall(&d))
}
