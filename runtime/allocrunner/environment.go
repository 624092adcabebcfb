package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

// environments builds the environment variables of the allocation and of its tasks.
type environments struct {
	node  taskenv.Node
	alloc func() *api.Allocation // alloc returns the current version of the allocation
	tasks map[string]*taskenv.Builder
}

// addTask adds a task of the allocation and returns the builder of its environment. It must be called
// before any other method.
func (e *environments) addTask(name string, host map[string]string) *taskenv.Builder {
	alloc := e.alloc()
	env := taskenv.NewBuilder(e.node, envAlloc(alloc), envTask(alloc, alloc.GetTaskGroup(), name))
	env.SetHostEnv(host)
	e.tasks[name] = env
	return env
}

// setAlloc changes the environment of a task to that of another version of the allocation. The version
// must have the task.
func (e *environments) setAlloc(alloc *api.Allocation, task string) {
	e.tasks[task].SetAlloc(envAlloc(alloc), envTask(alloc, alloc.GetTaskGroup(), task))
}

// of returns the current environment of the named task, or of the allocation if it has no task of this
// name.
func (e *environments) of(task string) *taskenv.Env {
	if env := e.tasks[task]; env != nil {
		return env.Build()
	}
	return e.ofAlloc()
}

// ofAlloc returns the current environment of the allocation.
func (e *environments) ofAlloc() *taskenv.Env {
	return taskenv.NewBuilder(e.node, envAlloc(e.alloc()), taskenv.Task{}).Build()
}
