package allocrunner

import (
	"context"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/hooks/runnerhooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/services"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
)

// allocServices registers the services of an allocation, and runs their checks.
type allocServices struct {
	serviceSet    *services.Set
	groupServices *runnerhooks.GroupServicesHook // registers the services of the group
	tasks         taskSet
	logger        hclog.Logger
}

// newAllocServices returns the services of an allocation for the configuration c, in which it sets the fields Restart and
// Logger.
func newAllocServices(c services.Config, tasks taskSet, logger hclog.Logger) *allocServices {
	s := &allocServices{tasks: tasks, logger: logger}
	c.Restart, c.Logger = s.restartForFailedCheck, logger
	s.serviceSet = services.New(c)
	s.groupServices = runnerhooks.NewGroupServicesHook(s.serviceSet)
	return s
}

// checkStatuses returns the results of the checks, always in the same order.
func (s *allocServices) checkStatuses() []api.AllocCheckStatus {
	results, _, _ := s.serviceSet.CheckResults()
	list := make([]api.AllocCheckStatus, len(results))
	for i, result := range results {
		list[i] = result.AllocCheckStatus
	}
	return list
}

// restartForFailedCheck restarts the task of a failed check, or all running tasks if the check belongs to the
// group. The restart counts as a failure.
func (s *allocServices) restartForFailedCheck(ctx context.Context, task, reason string) error {
	tasks := s.tasks
	if task != services.GroupWorkload {
		t, ok := s.tasks.findByName(task)
		if !ok {
			return ErrTaskNotFound
		}
		tasks = taskSet{t}
	}
	return tasks.forEachParallel(func(t *taskrunner.Runner) error {
		return ignoreNotRunning(t.Restart(ctx, model.EventRestartSignal(reason), true))
	})
}

// registerGroupServicesAgain registers the services of the group after a restart of tasks, because the PreTaskRestart hook
// has deregistered them.
func (s *allocServices) registerGroupServicesAgain() {
	if err := s.groupServices.RegisterAgain(); err != nil {
		s.logger.Error("services of the group not registered again", "error", err)
	}
}
