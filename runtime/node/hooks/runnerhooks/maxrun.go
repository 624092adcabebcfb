package runnerhooks

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

var (
	_ hook.AllocPrerun   = (*MaxRunDuration)(nil)
	_ hook.AllocUpdate   = (*MaxRunDuration)(nil)
	_ hook.AllocPostrun  = (*MaxRunDuration)(nil)
	_ hook.AllocShutdown = (*MaxRunDuration)(nil)
)

// MaxRunDuration ends an allocation that exceeds its maximum run time.
type MaxRunDuration struct {
	BuiltinHook
	deadline   func() time.Time
	onExceeded func()

	mu            sync.Mutex
	deadlineTimer *time.Timer // timer is nil unless armed
}

// NewMaxRunDuration returns the hook for one allocation. deadline returns the time by
// which the current version of the allocation must have ended; a zero time means never.
// exceeded is called at that time, and must not block.
func NewMaxRunDuration(deadline func() time.Time, exceeded func()) *MaxRunDuration {
	return &MaxRunDuration{deadline: deadline, onExceeded: exceeded}
}

// Name implements hook.Hook.
func (*MaxRunDuration) Name() string { return "max_run_duration" }

// Prerun implements hook.AllocPrerun.
func (h *MaxRunDuration) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	h.setTimer(h.deadline())
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate.
func (h *MaxRunDuration) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	h.setTimer(h.deadline())
	return hook.AllocUpdateResponse{}, nil
}

// Postrun implements hook.AllocPostrun.
func (h *MaxRunDuration) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	h.setTimer(time.Time{})
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown.
func (h *MaxRunDuration) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	h.setTimer(time.Time{})
	return hook.AllocShutdownResponse{}, nil
}

// setTimer sets the timer to a new deadline. A zero deadline only stops the timer.
func (h *MaxRunDuration) setTimer(deadline time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.deadlineTimer != nil {
		h.deadlineTimer.Stop()
		h.deadlineTimer = nil
	}
	if !deadline.IsZero() {
		h.deadlineTimer = time.AfterFunc(time.Until(deadline), h.onExceeded)
	}
}
