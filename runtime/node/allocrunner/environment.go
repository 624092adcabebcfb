package allocrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
)

// envBuilders builds the environments of the allocation and of its tasks.
type envBuilders struct {
	node          taskenv.Node
	alloc         func() *api.Allocation // returns the current version of the allocation
	network       *allocNetwork
	builderOfTask map[string]*taskenv.Builder
}

// addTask adds a task of the allocation and returns the builder of its environment. It must be called
// before any other method.
func (e *envBuilders) addTask(name string, host map[string]string) *taskenv.Builder {
	alloc := e.alloc()
	env := taskenv.NewBuilder(e.node, e.envAlloc(alloc), toEnvTask(alloc, alloc.GetTaskGroup(), name))
	env.SetHostEnv(host)
	e.builderOfTask[name] = env
	return env
}

// setAlloc rebuilds the environment of a task for a version of the allocation. The version must have the task.
func (e *envBuilders) setAlloc(alloc *api.Allocation, task string) {
	e.builderOfTask[task].SetAlloc(e.envAlloc(alloc), toEnvTask(alloc, alloc.GetTaskGroup(), task))
}

// envAlloc returns the data of an allocation for environments, with the current network.
func (e *envBuilders) envAlloc(alloc *api.Allocation) taskenv.Alloc {
	env := toEnvAlloc(alloc)
	env.Network = e.network.envStatus()
	return env
}

// refreshTaskEnvs updates the environments of all tasks after a change of the network.
func (e *envBuilders) refreshTaskEnvs() {
	alloc := e.alloc()
	for task := range e.builderOfTask {
		if _, err := findTask(alloc.GetTaskGroup(), task); err == nil {
			e.setAlloc(alloc, task)
		}
	}
}

// envOf returns the current environment of the named task, or of the allocation if it has no task of this
// name.
func (e *envBuilders) envOf(task string) *taskenv.Env {
	if env := e.builderOfTask[task]; env != nil {
		return env.Build()
	}
	return e.allocEnv()
}

// allocEnv returns the current environment of the allocation.
func (e *envBuilders) allocEnv() *taskenv.Env {
	return taskenv.NewBuilder(e.node, e.envAlloc(e.alloc()), taskenv.Task{}).Build()
}
