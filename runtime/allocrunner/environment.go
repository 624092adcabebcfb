package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/taskenv"
)

// envBuilders builds the environment variables of the allocation and of its tasks.
type envBuilders struct {
	node  taskenv.Node
	alloc func() *api.Allocation // alloc returns the current version of the allocation
	tasks map[string]*taskenv.Builder
}

// addTask adds a task of the allocation and returns the builder of its environment. It must be called
// before any other method.
func (e *envBuilders) addTask(name string, host map[string]string) *taskenv.Builder {
	alloc := e.alloc()
	env := taskenv.NewBuilder(e.node, toEnvAlloc(alloc), toEnvTask(alloc, alloc.GetTaskGroup(), name))
	env.SetHostEnv(host)
	e.tasks[name] = env
	return env
}

// setAlloc changes the environment of a task to another version of the allocation. The version
// must have the task.
func (e *envBuilders) setAlloc(alloc *api.Allocation, task string) {
	e.tasks[task].SetAlloc(toEnvAlloc(alloc), toEnvTask(alloc, alloc.GetTaskGroup(), task))
}

// of returns the current environment of the named task, or of the allocation if it has no task of this
// name.
func (e *envBuilders) of(task string) *taskenv.Env {
	if env := e.tasks[task]; env != nil {
		return env.Build()
	}
	return e.allocEnv()
}

// allocEnv returns the current environment of the allocation.
func (e *envBuilders) allocEnv() *taskenv.Env {
	return taskenv.NewBuilder(e.node, toEnvAlloc(e.alloc()), taskenv.Task{}).Build()
}
