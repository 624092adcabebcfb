package taskrunner

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
)

// currentTask returns the current task version.
func (q *taskRequests) currentTask() Task {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	return q.currentTaskLocked()
}

func (q *taskRequests) currentTaskLocked() Task {
	task := q.task
	if task.User == "" {
		task.User = q.config.User
	}
	return task
}

// newTaskConfig returns the config for the next start, as far as it depends on neither hooks nor the driver's schema, and the
// current task version.
func (q *taskRequests) newTaskConfig() (*driver.TaskConfig, Task) {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	config, task := q.config, q.currentTaskLocked()
	resources := task.Resources
	resources.Linux.CpusetCgroup, resources.Linux.CpusetCpus = q.cgroup.Path, q.cgroup.CPUs
	config.User, config.Resources = task.User, &resources
	return &config, task
}

// takePendingUpdateHooks reports whether the Update hooks must be called for a new version, and clears
// updateHooksPending.
func (q *taskRequests) takePendingUpdateHooks() bool {
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	q.updateHooksRunning, q.updateHooksPending = q.updateHooksPending, false
	return q.updateHooksRunning
}

// startUpdateHooksIfPending starts the goroutine that calls the Update hooks for a new version, unless it runs. Outside
// Run it does nothing: Run calls startUpdateHooksIfPending at its start, and waits for the goroutine at its end. It may
// be called concurrently.
func (t *taskHooks) startUpdateHooksIfPending() {
	q := t.requests
	q.records.mu.Lock()
	defer q.records.mu.Unlock()
	if killCtx := q.killCtx; killCtx != nil && q.updateHooksPending && !q.updateHooksRunning {
		q.updateHooksRunning = true
		t.updateWG.Go(func() {
			for killCtx.Err() == nil && q.takePendingUpdateHooks() {
				t.callUpdateHooks(killCtx)
			}
		})
	}
}

// callUpdateHooks calls the Update hooks. It may be called from any goroutine.
func (t *taskHooks) callUpdateHooks(killCtx context.Context) {
	hooks.CallEachAndReportErrors(killCtx, t.hookChain, hook.Update, func(ctx context.Context, _ hooks.Hook, h hook.TaskUpdate) (hook.TaskUpdateResponse, error) {
		return h.Update(ctx, hook.TaskUpdateRequest{Alloc: t.records.alloc.Alloc, Task: t.requests.currentTask().ToHookTask(), Env: t.records.env.Build().Vars()})
	})
}
