package hooks

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

var (
	_ hook.AllocPrerun   = (*MaxRunDurationHook)(nil)
	_ hook.AllocUpdate   = (*MaxRunDurationHook)(nil)
	_ hook.AllocPostrun  = (*MaxRunDurationHook)(nil)
	_ hook.AllocShutdown = (*MaxRunDurationHook)(nil)
)

// MaxRunDurationHook ends an allocation that exceeds its maximum run time.
type MaxRunDurationHook struct {
	BuiltinHookDefaults
	deadlineOrZero func() time.Time
	onExceeded     func()

	mu            sync.Mutex
	deadlineTimer *time.Timer // calls onExceeded at the deadline; nil if there is no deadline
}

// NewMaxRunDurationHook returns the hook for one allocation. deadlineOrZero returns the time by
// which the allocation's current version must have ended; a zero time means never. onExceeded is
// called at that time, and must not block.
func NewMaxRunDurationHook(deadlineOrZero func() time.Time, onExceeded func()) *MaxRunDurationHook {
	return &MaxRunDurationHook{deadlineOrZero: deadlineOrZero, onExceeded: onExceeded}
}

// Name implements Hook.
func (*MaxRunDurationHook) Name() string { return "max_run_duration" }

// Prerun implements hook.AllocPrerun.
func (m *MaxRunDurationHook) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	m.replaceDeadlineTimer(m.deadlineOrZero())
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate.
func (m *MaxRunDurationHook) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	m.replaceDeadlineTimer(m.deadlineOrZero())
	return hook.AllocUpdateResponse{}, nil
}

// Postrun implements hook.AllocPostrun.
func (m *MaxRunDurationHook) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	m.replaceDeadlineTimer(time.Time{})
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown.
func (m *MaxRunDurationHook) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	m.replaceDeadlineTimer(time.Time{})
	return hook.AllocShutdownResponse{}, nil
}

// replaceDeadlineTimer sets the timer to a new deadline. A zero deadline only stops the timer.
func (m *MaxRunDurationHook) replaceDeadlineTimer(deadlineOrZero time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.deadlineTimer != nil {
		m.deadlineTimer.Stop()
		m.deadlineTimer = nil
	}
	if !deadlineOrZero.IsZero() {
		m.deadlineTimer = time.AfterFunc(time.Until(deadlineOrZero), m.onExceeded)
	}
}
