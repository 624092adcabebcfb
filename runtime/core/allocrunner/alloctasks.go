package allocrunner

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// allocTasks starts, restarts and stops the allocation's tasks by the rules for several tasks. Its fields do not change:
// the changing data is in the allocState, the task runners and the coordinator. Its methods may be called concurrently,
// except that calls of reconcile must not overlap, nor calls of applyVersionUnlessOlder.
// It is large because it has the methods of the set, too.
type allocTasks struct {
	taskSet
	state            *allocState
	node             taskenv.Node
	envBuilders      map[string]*taskenv.Builder // by task name
	coordinator      *lifecycle.Coordinator
	lifecycleGroup   *lifecycle.ExtendedGroup // the group's lifecycle extensions; nil if it uses none
	services         core.Services
	runnerCreateTime time.Time // when the runner was created; see startTimeNotInFuture
	logger           hclog.Logger

	restored                  chan struct{} // closed by Run when an earlier agent's tasks are restored
	multiTaskRestartSemaphore chan struct{} // contains a value while a caller restarts several tasks; capacity 1
}

// newAllocTasks returns a new Runner's tasks. The caller must set the elements of taskSet, because the task runners need
// the other fields.
func newAllocTasks(c *Config, state *allocState, tasks []taskrunner.Task, services core.Services, logger hclog.Logger) *allocTasks {
	a := &allocTasks{
		taskSet: make(taskSet, len(tasks)), state: state, node: c.Node, services: services, envBuilders: make(map[string]*taskenv.Builder), runnerCreateTime: time.Now(), logger: logger,
		restored: make(chan struct{}), multiTaskRestartSemaphore: make(chan struct{}, 1),
	}
	a.coordinator, a.lifecycleGroup = newLifecycle(c.Alloc, tasks, logger)
	for _, task := range tasks {
		env := taskenv.NewBuilder(c.Node, state.envAlloc(c.Alloc), toEnvTask(c.Alloc, c.Alloc.GetTaskGroup(), task.Name))
		env.SetHostEnv(c.InheritedHostEnv)
		a.envBuilders[task.Name] = env
	}
	return a
}

// awaitRestored blocks until an earlier agent's tasks are restored, because before that a request would find no running
// process.
func (a *allocTasks) awaitRestored(ctx context.Context) error {
	select {
	case <-a.restored:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// exec implements Runner.Exec.
func (a *allocTasks) exec(ctx context.Context, task string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	t, ok := a.findByName(task)
	if !ok {
		return nil, ErrTaskNotFound
	}
	if err := a.awaitRestored(ctx); err != nil {
		return nil, err
	}
	return t.Exec(ctx, command, timeout)
}

// currentStatus returns the allocation's current status.
func (a *allocTasks) currentStatus() model.AllocReport {
	return a.state.newReport(a.snapshot().taskStates)
}

// onlyPoststopTasksRemain reports whether all tasks except poststop tasks have ended.
func (a *allocTasks) onlyPoststopTasksRemain() bool {
	_, finished := evaluateSiblingStop(a.siblingStates(a.currentStatus().TaskStates))
	return finished
}

// rebuildTaskEnv rebuilds a task's environment for an allocation version. The version must have the task.
func (a *allocTasks) rebuildTaskEnv(alloc *api.Allocation, task string) {
	a.envBuilders[task].SetAlloc(a.state.envAlloc(alloc), toEnvTask(alloc, alloc.GetTaskGroup(), task))
}

// envOfTaskOrAlloc returns the named task's current environment, or the allocation's if it has no such task.
func (a *allocTasks) envOfTaskOrAlloc(task string) *taskenv.Env {
	if env := a.envBuilders[task]; env != nil {
		return env.Build()
	}
	return a.allocEnv()
}

// allocEnv returns the allocation's current environment.
func (a *allocTasks) allocEnv() *taskenv.Env {
	return taskenv.NewBuilder(a.node, a.state.envAlloc(a.state.currentAlloc()), taskenv.Task{}).Build()
}
