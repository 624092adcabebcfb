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
func (m *MaxRunDuration) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	m.setTimer(m.deadline())
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate.
func (m *MaxRunDuration) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	m.setTimer(m.deadline())
	return hook.AllocUpdateResponse{}, nil
}

// Postrun implements hook.AllocPostrun.
func (m *MaxRunDuration) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	m.setTimer(time.Time{})
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown.
func (m *MaxRunDuration) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	m.setTimer(time.Time{})
	return hook.AllocShutdownResponse{}, nil
}

// setTimer sets the timer to a new deadline. A zero deadline only stops the timer.
func (m *MaxRunDuration) setTimer(deadline time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.deadlineTimer != nil {
		m.deadlineTimer.Stop()
		m.deadlineTimer = nil
	}
	if !deadline.IsZero() {
		m.deadlineTimer = time.AfterFunc(time.Until(deadline), m.onExceeded)
	}
}
