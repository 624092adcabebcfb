package allocrunner

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// The methods of Runner in this file implement core.Alloc, for the allocation's workspace.

var _ core.Alloc = (*Runner)(nil)

// Node returns the node facts for tasks.
func (r *Runner) Node() taskenv.Node { return r.config.Node }

// Logger returns the allocation's logger.
func (r *Runner) Logger() hclog.Logger { return r.logger }

// Secrets returns the secret values given to the allocation.
func (r *Runner) Secrets() *redact.Values { return r.secrets }

// StartedByEarlierAgent reports whether an earlier agent started the allocation.
func (r *Runner) StartedByEarlierAgent() bool { return r.startedByEarlierAgent }

// KeepsNetwork reports whether a network created by an earlier agent still exists.
func (r *Runner) KeepsNetwork() bool {
	return r.config.RanUnderEarlierAgent && !r.config.RebootedSinceEarlierAgent
}

// AllocDone returns a channel that is closed when another allocation has no running task or hook on this node.
func (r *Runner) AllocDone(allocID string) <-chan struct{} {
	if r.config.AllocDone == nil {
		none := make(chan struct{})
		close(none)
		return none
	}
	return r.config.AllocDone(allocID)
}

// EnvBuilder returns the builder for a task's environment, nil if the allocation has no such task.
func (r *Runner) EnvBuilder(task string) *taskenv.Builder { return r.tasks.envBuilders[task] }

// Env returns a task's current environment, or the allocation's if it has no such task.
func (r *Runner) Env(task string) *taskenv.Env { return r.tasks.envOfTaskOrAlloc(task) }

// NetworkStatus returns the allocation's network as clients see it.
func (r *Runner) NetworkStatus() *api.AllocNetworkStatus { return r.state.networkStatus() }

// SetNetwork passes a network to all tasks; nil means the host's network.
func (r *Runner) SetNetwork(network *state.AllocNetwork) { r.tasks.setNetwork(network) }

// RestartForFailedCheck restarts a task, or all running tasks for core.GroupWorkload. The restart counts as a failure.
func (r *Runner) RestartForFailedCheck(ctx context.Context, taskOrGroup, reason string) error {
	return r.tasks.restartForFailedCheck(ctx, taskOrGroup, reason)
}

// taskAccess implements core.Task.
type taskAccess struct{ *taskrunner.Runner }

var _ core.Task = taskAccess{}

// Driver implements core.Task.
func (t taskAccess) Driver() string { return t.Task().Driver }

// User implements core.Task.
func (t taskAccess) User() string { return t.Task().User }

// coreTasks returns the tasks as hooks see them.
func (s taskSet) coreTasks() []core.Task {
	list := make([]core.Task, len(s))
	for i, t := range s {
		list[i] = taskAccess{t}
	}
	return list
}
