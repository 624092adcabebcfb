package pluginhooks

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// FirstLaunchState is the state of a plugin's first launch under this agent.
type FirstLaunchState int

const (
	// LaunchPending is a launch without an outcome.
	LaunchPending FirstLaunchState = iota
	// LaunchFailed is a launch that failed under this agent, or under an earlier one if no agent has started the program.
	LaunchFailed
)

// PluginLaunchWaiterOrNil returns a function that blocks until every plugin that may take part in all allocations has been
// launched or has failed to start. The function emits an event if this takes long. It is nil if no wait is necessary. Until the
// function returns, NewAllocHooks and NewTaskHooks may leave out hooks.
func (s *HookPluginSet) PluginLaunchWaiterOrNil(a *api.Allocation) func(ctx context.Context, emit func(*api.TaskEvent)) {
	meta := model.MergeMetaLaterWins(a.Job.Meta, a.GetTaskGroup().Meta)
	if launching, _ := s.firstLaunchingPluginNames(meta); len(launching) == 0 {
		return nil
	}
	return func(ctx context.Context, emit func(*api.TaskEvent)) { s.awaitFirstLaunches(ctx, meta, emit) }
}

// firstLaunchingPluginNames returns the plugins in their first launch, without those named by a rule or the job: Prerun waits for
// the latter.
func (s *HookPluginSet) firstLaunchingPluginNames(meta map[string]string) (names []string, changed <-chan struct{}) {
	unknown, changed := s.config.PluginsOfUnknownType()
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		_, attached := meta[model.HookPrefix+name]
		if unknown[name] == LaunchPending && !attached && !slices.ContainsFunc(s.Rules(), func(r OperatorRule) bool { return r.Name == name }) {
			names = append(names, name)
		}
	}
	return names, changed
}

func (s *HookPluginSet) awaitFirstLaunches(ctx context.Context, meta map[string]string, emit func(*api.TaskEvent)) {
	limit := time.NewTimer(startTimeout)
	defer limit.Stop()
	delay := time.NewTimer(waitingEventDelay)
	defer delay.Stop()
	awaited, changed := s.firstLaunchingPluginNames(meta)
	for names, late := awaited, false; len(names) > 0 && !late; names, changed = s.firstLaunchingPluginNames(meta) {
		select {
		case <-changed:
		case <-delay.C:
			for _, name := range names {
				emit(model.EventWaitingForPlugin("plugin " + name + ", which may be a hook of every allocation,"))
			}
		case <-limit.C:
			late = true
		case <-ctx.Done():
			return
		}
	}
	unknown, _ := s.config.PluginsOfUnknownType()
	for _, name := range awaited {
		if _, still := unknown[name]; still {
			s.logger.Warn("allocation starts without a plugin that has not started, and may be a hook of every allocation", "plugin", name)
		}
	}
}
