package apiclient

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/pointer"
)

// ForEachTask calls do for each task of a job. It skips nil groups and tasks, which an invalid job
// can have.
func ForEachTask(job *api.Job, do func(*api.TaskGroup, *api.Task)) {
	for _, group := range job.TaskGroups {
		if group == nil {
			continue
		}
		for _, task := range group.Tasks {
			if task != nil {
				do(group, task)
			}
		}
	}
}

// HasTerminalClientStatus reports whether the client status of an allocation is terminal.
func HasTerminalClientStatus(a *api.AllocationListStub) bool {
	return (&api.Allocation{ClientStatus: a.ClientStatus}).ClientTerminalStatus()
}

// ForEachService calls do for each service of a group and of the group's tasks. The parameter taskNameOrEmpty of do is
// the name of the task, or "" for a service of the group itself. The group can be nil. ForEachService skips nil tasks
// and services, which an invalid job can have.
func ForEachService(group *api.TaskGroup, do func(service *api.Service, taskNameOrEmpty string)) {
	if group == nil {
		return
	}
	for _, service := range group.Services {
		if service != nil {
			do(service, "")
		}
	}
	for _, task := range group.Tasks {
		for _, service := range pointer.Value(task).Services {
			if service != nil {
				do(service, task.Name)
			}
		}
	}
}

// DesiredAllocCount returns the sum of the counts of a job's groups.
func DesiredAllocCount(job *api.Job) int {
	n := 0
	for _, g := range job.TaskGroups {
		n += pointer.Value(pointer.Value(g).Count)
	}
	return n
}
