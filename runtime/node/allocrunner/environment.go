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

// addTaskBuilder adds a task of the allocation and returns the builder of its environment. It must be called
// before any other method.
func (e *envBuilders) addTaskBuilder(name string, host map[string]string) *taskenv.Builder {
	alloc := e.alloc()
	env := taskenv.NewBuilder(e.node, e.envAllocWithNetwork(alloc), toEnvTask(alloc, alloc.GetTaskGroup(), name))
	env.SetHostEnv(host)
	e.builderOfTask[name] = env
	return env
}

// setAllocOfTaskEnv rebuilds the environment of a task for a version of the allocation. The version must have the task.
func (e *envBuilders) setAllocOfTaskEnv(alloc *api.Allocation, task string) {
	e.builderOfTask[task].SetAlloc(e.envAllocWithNetwork(alloc), toEnvTask(alloc, alloc.GetTaskGroup(), task))
}

// envAllocWithNetwork returns the data of an allocation for environments, with the current network.
func (e *envBuilders) envAllocWithNetwork(alloc *api.Allocation) taskenv.Alloc {
	env := toEnvAlloc(alloc)
	env.Network = e.network.networkStatusForEnv()
	return env
}

// updateTaskEnvs updates the environments of all tasks after a change of the network.
func (e *envBuilders) updateTaskEnvs() {
	alloc := e.alloc()
	for task := range e.builderOfTask {
		if _, err := findTask(alloc.GetTaskGroup(), task); err == nil {
			e.setAllocOfTaskEnv(alloc, task)
		}
	}
}

// envOfTaskOrAlloc returns the current environment of the named task, or of the allocation if it has no task of this
// name.
func (e *envBuilders) envOfTaskOrAlloc(task string) *taskenv.Env {
	if env := e.builderOfTask[task]; env != nil {
		return env.Build()
	}
	return e.allocEnv()
}

// allocEnv returns the current environment of the allocation.
func (e *envBuilders) allocEnv() *taskenv.Env {
	return taskenv.NewBuilder(e.node, e.envAllocWithNetwork(e.alloc()), taskenv.Task{}).Build()
}
