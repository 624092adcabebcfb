package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// recoveryCapabilities is an optional interface for the value in Config.Drivers. DriverKnowsInterruptedStarts reports
// whether the driver's plugin knows a task even if the earlier agent died during the StartTask call.
// DriverFindsTasksByName reports whether the plugin can find a task by its own and its allocation's name.
// RestartReattachedPlugin replaces the plugin process if an earlier agent launched it; see taskrunner.RecoveryFacts.
type recoveryCapabilities interface {
	DriverKnowsInterruptedStarts(driver string) bool
	DriverFindsTasksByName(driver string) bool
	RestartReattachedPlugin(ctx context.Context, driver string) error
}

// readRestoredTask returns a task's records, nil if the task is new. It treats an unreadable record as missing. If a
// running task's record is missing, the time line has the start ID, by which the driver finds the process.
func readRestoredTask(c *Config, name string, runs *timeline.File, logger hclog.Logger) *taskrunner.RestoredTask {
	lastReported := c.Alloc.TaskStates[name]
	if !c.RanUnderEarlierAgent {
		// An earlier agent may have exited after reporting only that it received the allocation.
		if lastReported != nil {
			return &taskrunner.RestoredTask{TaskState: lastReported}
		}
		return nil
	}
	local, found, err := c.EarlierRecords.TaskFields(c.Alloc.ID, name)
	if err != nil {
		logger.Error("record of task lost", "task", name, "error", err)
		local, found = record.Fields{}, false
	}
	task, err := c.EarlierRecords.TaskState(c.Alloc.ID, name)
	if err != nil {
		logger.Error("record of task state lost", "task", name, "error", err)
		task = nil
	}
	switch {
	case task == nil:
		// A task that was only received has no record, so the last reported state is used.
		task = lastReported
	case lastReported != nil:
		task.Events = appendLaterEvents(task.Events, lastReported.Events)
	}
	if !found && task == nil {
		return nil
	}
	if !found && task.State == model.TaskRunning {
		last, err := runs.LastRunByTask()
		if err != nil {
			logger.Error("time line of the allocation not read", "task", name, "error", err)
		}
		if run := last[name]; run.End.IsZero() {
			local.StartID = run.Name
			if local.Handle, err = c.Store.TaskHandle(c.Alloc.ID, name, run.Name); err != nil {
				logger.Error("handle of task lost", "task", name, "error", err)
			}
		}
	}
	return &taskrunner.RestoredTask{Fields: local, TaskState: task}
}

// appendLaterEvents returns a record's events, followed by the events that the earlier agent reported after them: on a
// full disk, the report may have been stored and the record not.
func appendLaterEvents(recorded, reported []*api.TaskEvent) []*api.TaskEvent {
	later := 0
	if len(recorded) > 0 {
		last := recorded[len(recorded)-1]
		later = 1 + slices.IndexFunc(reported, func(e *api.TaskEvent) bool { return e.Type == last.Type && e.Time == last.Time })
		if later == 0 {
			return recorded
		}
	}
	return slices.Concat(recorded, reported[later:])
}

// resumeEarlierStop continues, for New, a stop that an earlier agent has started.
func resumeEarlierStop(s *allocState) {
	alloc := s.currentAlloc()
	// A terminal status never changes, whatever states the tasks have now.
	if alloc.ClientTerminalStatus() {
		s.setPermanentOverride(statusOverride{alloc.ClientStatus, alloc.ClientDescription})
	}
	if alloc.ServerTerminalStatus() || alloc.ClientTerminalStatus() {
		s.requestStop(stopReason{omitEvents: true})
	}
}

// restoreTasks restores an earlier agent's tasks. It does not wait for an unavailable driver, because the task's runner
// does. If the allocation cannot continue, restoreTasks kills the tasks.
func (r *Runner) restoreTasks(untilKill context.Context) (allocCanContinue bool) {
	if r.config.RanUnderEarlierAgent {
		if err := r.workspace.RestrictAccess(r.tasks.coreTasks()); err != nil {
			r.logger.Error("other accounts of this machine can enter the directory of the allocation", "error", err)
		}
	}
	if !r.startedByEarlierAgent {
		return true
	}
	recoverTasks(untilKill, r.tasks.taskSet, r.config.Drivers, r.config.RebootedSinceEarlierAgent)
	if err := r.tasks.checkAllocDirOrReset(untilKill, r.workspace, r.config.RebootedSinceEarlierAgent); err != nil {
		r.logger.Error("alloc not restored", "error", err)
		r.state.failAndStop(err, stopReason{omitEvents: true}) // without the stop, the first task to end would become the reason why the others are stopped
		for _, t := range r.tasks.taskSet {
			if t.State().State != model.TaskDead {
				t.EmitEvent(model.EventSetupFailure(err.Error()))
			}
			t.Kill(nil)
		}
		return false
	}
	if r.state.isStopRequested() {
		if r.state.currentOverride().description == model.MaxRunDurationExceeded {
			r.tasks.killPoststopTasks()
		}
		return true // no gate is restored, because a stopping allocation starts only poststop tasks
	}
	r.tasks.coordinator.Restore(lifecycleStates(r.tasks.snapshot().taskStates))
	return true
}

// recoverTasks recovers the tasks of all drivers concurrently. If a driver's plugin is still starting after a timeout,
// the task's runner recovers the task later, so that the other tasks are not delayed.
func recoverTasks(ctx context.Context, tasks taskSet, drivers core.Drivers, rebooted bool) {
	info, _ := drivers.(recoveryCapabilities)
	var recoveryWG sync.WaitGroup
	for _, t := range tasks {
		past := taskrunner.RecoveryFacts{Rebooted: rebooted}
		if info != nil {
			past.DriverKnowsInterruptedStarts, past.DriverFindsTasksByName = info.DriverKnowsInterruptedStarts(t.Task().Driver), info.DriverFindsTasksByName(t.Task().Driver)
			past.RestartReattachedPlugin = func(ctx context.Context) error { return info.RestartReattachedPlugin(ctx, t.Task().Driver) }
		}
		recoveryWG.Go(func() { t.RecoverTaskOfEarlierAgent(ctx, past) })
	}
	recoveryWG.Wait()
}

// checkAllocDirOrReset checks that the allocation's directory exists. If it was lost in a reboot, the tasks that had not
// ended start as new tasks, and so do the prestart tasks that had prepared the directory. If the agent has no free file
// descriptors, it cannot check the directory: then the tasks stay as they are. After a reboot no task can be running, so
// checkAllocDirOrReset repeats the check instead, until it succeeds or untilKill is done.
func (a *allocTasks) checkAllocDirOrReset(untilKill context.Context, dir core.Directory, rebooted bool) error {
	dead := func(t *taskrunner.Runner) bool { return t.State().State == model.TaskDead }
	if !slices.ContainsFunc(a.taskSet, func(t *taskrunner.Runner) bool { return !dead(t) }) {
		return nil
	}
	err := checkDirOpens(dir)
	for delay := checkDirRetryDelay; rebooted && osprocess.IsResourceExhausted(err) && untilKill.Err() == nil; delay = min(2*delay, maxCheckDirRetryDelay) {
		a.logger.Warn("alloc waits, its directory cannot be checked", "error", err)
		select {
		case <-time.After(delay):
			err = checkDirOpens(dir)
		case <-untilKill.Done():
		}
	}
	if osprocess.IsResourceExhausted(err) {
		a.logger.Warn("directory of the alloc cannot be checked, its tasks stay as they are", "error", err)
		for _, t := range a.taskSet {
			if !dead(t) {
				t.EmitEvent(model.EventAllocDirCheckFailed(err.Error()))
			}
		}
		return nil
	}
	missing := errors.Is(err, fs.ErrNotExist)
	if rebooted && !a.state.isStopRequested() && (err == nil || missing) {
		for _, t := range a.taskSet {
			state, ephemeral := t.State(), t.Task().Stage().Ephemeral()
			switch {
			case state.State != model.TaskDead && missing,
				state.State == model.TaskDead && !state.Failed && ephemeral && (missing || a.lifecycleGroup.RerunsAfterReboot(t.Name())):
				t.ResetToNewTask()
			}
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocation directory is inaccessible: %w", err)
	}
	return nil
}

const checkDirRetryDelay, maxCheckDirRetryDelay = 100 * time.Millisecond, 30 * time.Second

func checkDirOpens(d core.Directory) error {
	dir, err := d.Open()
	if err != nil {
		return err
	}
	return dir.Close()
}
