package hooks

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/health"
)

var (
	_ hook.AllocPrerun   = (*HealthHook)(nil)
	_ hook.AllocUpdate   = (*HealthHook)(nil)
	_ hook.AllocUpdate   = (*healthWatchRestartHook)(nil)
	_ hook.AllocPostrun  = (*HealthHook)(nil)
	_ hook.AllocShutdown = (*HealthHook)(nil)
)

// HealthHookConfig configures a HealthHook.
type HealthHookConfig struct {
	// NewParams returns the health parameters for the allocation's current version, without
	// MustBeHealthyBy. wanted is false if the health need not be determined.
	NewParams func() (params health.Params, wanted bool)
	// Snapshot returns the current state and two channels. The first is closed when the task state
	// has changed, the second when the check state has.
	Snapshot func() (current health.Snapshot, tasksChanged, checksChanged <-chan struct{})
	// OnVerdict is called at most once for each version, with a final verdict.
	OnVerdict func(health.Verdict)
}

// HealthHook watches an allocation until health.Evaluate returns a final verdict.
type HealthHook struct {
	BuiltinHookDefaults
	config HealthHookConfig

	mu                sync.Mutex
	latestWatch       *healthWatch // latest watch, which may have ended; nil before the first one
	mustNotStartWatch bool
}

// healthWatch watches the health of one allocation version.
type healthWatch struct {
	params health.Params
	cancel context.CancelFunc

	done                  chan struct{} // closed when the watch has ended
	hasVerdictOrNeedsNone bool          // the watch has ended with a verdict, or NewParams returned false; valid once done is closed
}

// NewHealthHook returns the hook for one allocation.
func NewHealthHook(c HealthHookConfig) *HealthHook { return &HealthHook{config: c} }

// Name implements Hook.
func (*HealthHook) Name() string { return "alloc_health_watcher" }

// Prerun implements hook.AllocPrerun. It does nothing if UpdateAlloc was called first.
func (h *HealthHook) Prerun(context.Context, hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.latestWatch == nil {
		h.startWatchLocked()
	}
	return hook.AllocPrerunResponse{}, nil
}

// UpdateAlloc implements hook.AllocUpdate. It ends an undecided watch; the WatchRestartHook hook
// starts the next one.
func (h *HealthHook) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopWatchAndWaitLocked()
	return hook.AllocUpdateResponse{}, nil
}

// WatchRestartHook returns the hook that starts the next version's watch. It must come after the
// hooks that run checks, because their earlier results no longer count.
func (h *HealthHook) WatchRestartHook() Hook { return (*healthWatchRestartHook)(h) }

type healthWatchRestartHook HealthHook

func (*healthWatchRestartHook) Name() string { return "alloc_health_again" }

func (r *healthWatchRestartHook) UpdateAlloc(context.Context, hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	h := (*HealthHook)(r)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopWatchAndWaitLocked()
	h.startWatchLocked()
	return hook.AllocUpdateResponse{}, nil
}

// Postrun implements hook.AllocPostrun. If the health is still undecided, it is
// evaluated a last time.
func (h *HealthHook) Postrun(context.Context, hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mustNotStartWatch = true
	h.stopWatchAndWaitLocked()
	if w := h.latestWatch; w != nil && !w.hasVerdictOrNeedsNone {
		w.hasVerdictOrNeedsNone = true
		now, _, _ := h.config.Snapshot()
		h.reportIfDecided(health.Evaluate(w.params, now))
	}
	return hook.AllocPostrunResponse{}, nil
}

// ShutdownAlloc implements hook.AllocShutdown.
func (h *HealthHook) ShutdownAlloc(context.Context, hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mustNotStartWatch = true
	h.stopWatchAndWaitLocked()
	return hook.AllocShutdownResponse{}, nil
}

func (h *HealthHook) startWatchLocked() {
	params, wanted := h.config.NewParams()
	params.MustBeHealthyBy = time.Now().Add(params.HealthyDeadline)
	ctx, cancel := context.WithCancel(context.Background())
	w := &healthWatch{params: params, cancel: cancel, done: make(chan struct{}), hasVerdictOrNeedsNone: true}
	h.latestWatch = w
	if h.mustNotStartWatch || !wanted {
		close(w.done)
		return
	}
	go func() {
		defer close(w.done)
		w.hasVerdictOrNeedsNone = h.watchUntilVerdictReported(ctx, params)
	}()
}

// stopWatchAndWaitLocked ends the watch and waits for it. It may be called again.
func (h *HealthHook) stopWatchAndWaitLocked() {
	if h.latestWatch != nil {
		h.latestWatch.cancel()
		<-h.latestWatch.done
	}
}

// watchUntilVerdictReported evaluates the health after each change, until there is a verdict or ctx ends.
func (h *HealthHook) watchUntilVerdictReported(ctx context.Context, params health.Params) (reported bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now, tasks, checks := h.config.Snapshot()
		verdict := health.Evaluate(params, now)
		if ctx.Err() != nil {
			return false
		}
		if h.reportIfDecided(verdict) {
			return true
		}
		timer.Reset(time.Until(verdict.RecheckAt))
		select {
		case <-timer.C:
		case <-tasks:
		case <-checks:
		case <-ctx.Done():
			return false
		}
	}
}

func (h *HealthHook) reportIfDecided(v health.Verdict) bool {
	if v.State == health.Undecided {
		return false
	}
	h.config.OnVerdict(v)
	return true
}
