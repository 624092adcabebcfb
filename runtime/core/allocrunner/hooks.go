package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

// The functions in this file call an allocation's hooks. A hook called after an update gets the new version.

// callPrerunHooks calls the Prerun hooks in order, up to the first error. restored means that an earlier agent started
// the allocation.
func callPrerunHooks(untilStop context.Context, tasks *allocTasks, restored bool) error {
	var alloc *api.Allocation
	var env map[string]string // alloc's environment
	return hooks.CallStartHooksUntilError(untilStop, tasks.state.hooks(), hook.Prerun, func(ctx context.Context, _ hooks.Hook, h hook.AllocPrerun) (hook.AllocPrerunResponse, error) {
		if now := tasks.state.currentAlloc(); now != alloc {
			alloc, env = now, tasks.allocEnv().Vars()
		}
		point := failpoint.EnterStep(failpoint.StepPrerun)
		defer point.Leave()
		return h.Prerun(ctx, hook.AllocPrerunRequest{Alloc: toHookAlloc(tasks.state.currentAlloc()), Env: env})
	}, func(err error) bool { return restored && keepsTasksAfterPrerunError(err, tasks.taskSet) })
}

// contextUntilStop returns a context that is canceled with ctx, and also when the allocation's stop is requested or
// announced, so that hanging hooks do not delay the stop. The caller must call the returned function.
func contextUntilStop(ctx context.Context, s *allocState) (untilStop context.Context, release func()) {
	ctx, cancel := context.WithCancel(ctx)
	var waiterWG sync.WaitGroup
	waiterWG.Go(func() {
		select {
		case <-s.stopRequested:
		case <-s.stopVersionReceived:
		case <-ctx.Done():
		}
		cancel()
	})
	return ctx, func() {
		cancel()
		waiterWG.Wait()
	}
}

// keepsTasksAfterPrerunError reports whether a restored allocation's running tasks continue although a Prerun hook
// failed with err. They do if the hook's plugin is unavailable, or if the agent has no free file descriptors.
func keepsTasksAfterPrerunError(err error, tasks taskSet) bool {
	if !errors.As(err, new(*hooks.PluginUnavailableError)) && !osprocess.IsResourceExhausted(err) {
		return false
	}
	_, err = tasks.namedOrAllRunningTasks("")
	return err == nil
}

func callUpdateHooks(ctx context.Context, tasks *allocTasks) {
	ctx, end := contextUntilStop(ctx, tasks.state)
	defer end()
	hooks.CallEachAndReportErrors(ctx, tasks.state.hooks(), hook.UpdateAlloc, func(ctx context.Context, _ hooks.Hook, h hook.AllocUpdate) (hook.AllocUpdateResponse, error) {
		return h.UpdateAlloc(ctx, hook.AllocUpdateRequest{Alloc: toHookAlloc(tasks.state.currentAlloc()), Env: tasks.allocEnv().Vars()})
	})
}

func callPreTaskRestartHooks(ctx context.Context, s *allocState) {
	ctx, end := contextUntilStop(ctx, s)
	defer end()
	hooks.CallEachAndReportErrors(ctx, s.hooks(), hook.PreTaskRestart, func(ctx context.Context, _ hooks.Hook, h hook.AllocPreTaskRestart) (hook.AllocPreTaskRestartResponse, error) {
		return h.PreTaskRestart(ctx, hook.AllocPreTaskRestartRequest{Alloc: toHookAlloc(s.currentAlloc())})
	})
}

func callPreKillHooks(ctx context.Context, s *allocState) {
	hooks.CallEachAndReportErrors(ctx, s.hooks(), hook.PreKill, func(ctx context.Context, _ hooks.Hook, h hook.AllocPreKill) (hook.AllocPreKillResponse, error) {
		return h.PreKill(ctx, hook.AllocPreKillRequest{Alloc: toHookAlloc(s.currentAlloc())})
	})
}

func callPostrunHooks(ctx context.Context, s *allocState) {
	hooks.CallEachAndReportErrors(ctx, s.hooks(), hook.Postrun, func(ctx context.Context, _ hooks.Hook, h hook.AllocPostrun) (hook.AllocPostrunResponse, error) {
		return h.Postrun(ctx, hook.AllocPostrunRequest{Alloc: toHookAlloc(s.currentAlloc())})
	})
}

func callShutdownHooks(ctx context.Context, s *allocState) {
	hooks.CallEachAndReportErrors(ctx, s.hooks(), hook.ShutdownAlloc, func(ctx context.Context, _ hooks.Hook, h hook.AllocShutdown) (hook.AllocShutdownResponse, error) {
		return h.ShutdownAlloc(ctx, hook.AllocShutdownRequest{Alloc: toHookAlloc(s.currentAlloc())})
	})
}

func callDestroyHooks(ctx context.Context, s *allocState) error {
	return hooks.CallAndJoinErrors(ctx, s.hooks(), hook.Destroy, func(ctx context.Context, h hooks.Hook, at hook.AllocDestroy) (hook.AllocDestroyResponse, error) {
		response, err := at.Destroy(ctx, hook.AllocDestroyRequest{Alloc: toHookAlloc(s.currentAlloc())})
		if err != nil {
			err = fmt.Errorf("destroy alloc %s: hook %q: %w", s.currentAlloc().ID, h.Name(), err)
		}
		return response, err
	})
}
