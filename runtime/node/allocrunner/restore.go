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
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskrunner"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// RecordReader reads the records of tasks that an earlier agent has stored.
type RecordReader interface {
	TaskLocalState(allocID, task string) (state.LocalState, bool, error)
	TaskState(allocID, task string) (*api.TaskState, error)

	// HookAttachmentsOfAlloc returns the configurations of the hooks that an earlier agent had attached to an allocation, by hook
	// name. The allocation may have ended.
	HookAttachmentsOfAlloc(allocID string) map[string]string
}

// recoveryCapabilities is an optional interface of the value in Config.Drivers. DriverKnowsInterruptedStarts reports whether the
// driver's plugin knows a task even if the earlier agent died during the call of StartTask. DriverFindsTasksByName reports
// whether the plugin can find a task by the names of the task and its allocation.
type recoveryCapabilities interface {
	DriverKnowsInterruptedStarts(driver string) bool
	DriverFindsTasksByName(driver string) bool
}

// restorer rebuilds the runner of an allocation from the records of an earlier agent, and
// recovers its running tasks.
type restorer struct {
	alloc        *api.Allocation // the version of the allocation for which the runner was created
	records      RecordReader    // records of the earlier agent; nil for a new allocation
	rebooted     bool            // the machine has rebooted since the earlier agent ran
	drivers      Drivers
	dir          *allocdir.Dir
	tasks        taskSet
	startGates   *startGates
	clientStatus *clientStatusTracker
	stopSequence *stopSequence
	limits       Limits
	logger       hclog.Logger

	startedByEarlierAgent bool                         // an earlier agent started to run the allocation; set by readRestoredTask
	attachmentsOfTask     map[string]map[string]string // task name -> hook name -> configuration of a hook that an earlier agent had attached; set by readRestoredTask
	tasksRestored         chan struct{}                // closed by Run when the tasks of the earlier agent are restored
}

// awaitRestored blocks until the tasks of an earlier agent are restored, because before that a request would find no
// running process.
func (r *restorer) awaitRestored(ctx context.Context) error {
	select {
	case <-r.tasksRestored:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// readRestoredTask returns the records of one task, nil if the task is new. New calls it once per task. It treats an
// unreadable record as missing, because the driver may still find a running process by the names of the task.
func (r *restorer) readRestoredTask(name string) *taskrunner.RestoredTask {
	if r.records == nil {
		// An earlier agent may have exited after it had reported only that the allocation was received.
		if state := r.alloc.TaskStates[name]; state != nil {
			return &taskrunner.RestoredTask{TaskState: state}
		}
		return nil
	}
	local, found, err := r.records.TaskLocalState(r.alloc.ID, name)
	if err != nil {
		r.logger.Error("record of task lost", "task", name, "error", err)
		local, found = state.LocalState{}, false
	}
	task, err := r.records.TaskState(r.alloc.ID, name)
	if err != nil {
		r.logger.Error("record of task state lost", "task", name, "error", err)
		task = nil
	}
	if task == nil {
		// The last reported state is used, because a task that was only received has no record.
		task = r.alloc.TaskStates[name]
	}
	if !found && task == nil {
		return nil
	}
	restored := &taskrunner.RestoredTask{LocalState: local, TaskState: task}
	r.startedByEarlierAgent = r.startedByEarlierAgent || restored.Started()
	if attachments := restored.Attachments(); attachments != nil {
		if r.attachmentsOfTask == nil {
			r.attachmentsOfTask = make(map[string]map[string]string)
		}
		r.attachmentsOfTask[name] = attachments
	}
	return restored
}

// resumeEarlierStop continues, for New, the stop of an allocation that an earlier agent has started.
func (r *restorer) resumeEarlierStop() {
	if !r.startedByEarlierAgent {
		return
	}
	// A terminal status never changes, whatever states the tasks have now.
	if r.alloc.ClientTerminalStatus() {
		r.clientStatus.setOverride(statusOverride{r.alloc.ClientStatus, r.alloc.ClientDescription})
	}
	if r.alloc.ServerTerminalStatus() || r.alloc.ClientTerminalStatus() {
		r.stopSequence.requestStop(stopReason{omitEvents: true})
	}
}

// restoreTasks restores the tasks that an earlier agent ran. It does not wait for an unavailable driver, because the
// runner of the task waits for the driver. It returns false if the allocation cannot continue; then it has killed the
// tasks.
func (r *restorer) restoreTasks(untilKill context.Context) bool {
	if r.records != nil {
		r.restrictAllocDir()
	}
	if !r.startedByEarlierAgent {
		return true
	}
	r.recoverTasks(untilKill)
	if err := r.checkAllocDirOrResetTasks(untilKill); err != nil {
		r.logger.Error("alloc not restored", "error", err)
		r.clientStatus.setOverride(statusOverride{api.AllocClientStatusFailed, err.Error()})
		r.stopSequence.requestStop(stopReason{omitEvents: true}) // without this request, the first task to end would become the reason why the others are stopped
		for _, t := range r.tasks {
			if t.State().State != model.TaskDead {
				t.EmitEvent(model.EventSetupFailure(err.Error()))
			}
			t.Kill(nil)
		}
		return false
	}
	if r.stopSequence.isRequested() {
		if r.clientStatus.currentOverride().description == model.MaxRunDurationExceeded {
			r.stopSequence.killPoststopTasks()
		}
		return true // no gate is restored, because a stopping allocation starts only poststop tasks
	}
	r.startGates.coordinator.Restore(lifecycleStates(r.startGates.snapshotWithPendingReruns().taskStates))
	return true
}

// recoverTasks recovers the tasks of all drivers concurrently. If the plugin of a driver is still
// starting after a timeout, the runner of the task recovers the task later, so that the other tasks are
// not delayed.
func (r *restorer) recoverTasks(ctx context.Context) {
	info, _ := r.drivers.(recoveryCapabilities)
	var recoveryWG sync.WaitGroup
	for _, t := range r.tasks {
		past := taskrunner.RecoveryFacts{Rebooted: r.rebooted}
		if info != nil {
			past.DriverKnowsInterruptedStarts, past.DriverFindsTasksByName = info.DriverKnowsInterruptedStarts(t.Task().Driver), info.DriverFindsTasksByName(t.Task().Driver)
		}
		recoveryWG.Go(func() { t.Recover(ctx, past) })
	}
	recoveryWG.Wait()
}

// checkAllocDirOrResetTasks checks that the directory of the allocation exists. If the directory was lost in a reboot, the tasks that
// had not ended start as new tasks, and so do the prestart tasks that had prepared the directory. If the agent has no free
// file descriptors, it cannot check the directory: then the tasks stay as they are. After a reboot no task can be running,
// so checkAllocDirOrResetTasks repeats the check instead, until it succeeds or untilKill is done.
func (r *restorer) checkAllocDirOrResetTasks(untilKill context.Context) error {
	dead := func(t *taskrunner.Runner) bool { return t.State().State == model.TaskDead }
	if !slices.ContainsFunc(r.tasks, func(t *taskrunner.Runner) bool { return !dead(t) }) {
		return nil
	}
	err := r.openAllocDir()
	for delay := checkDirRetryDelay; r.rebooted && osprocess.IsResourceExhausted(err) && untilKill.Err() == nil; delay = min(2*delay, maxCheckDirRetryDelay) {
		r.logger.Warn("alloc waits, its directory cannot be checked", "error", err)
		select {
		case <-time.After(delay):
			err = r.openAllocDir()
		case <-untilKill.Done():
		}
	}
	if osprocess.IsResourceExhausted(err) {
		r.logger.Warn("directory of the alloc cannot be checked, its tasks stay as they are", "error", err)
		for _, t := range r.tasks {
			if !dead(t) {
				t.EmitEvent(model.EventAllocDirCheckFailed(err.Error()))
			}
		}
		return nil
	}
	missing := errors.Is(err, fs.ErrNotExist)
	if r.rebooted && !r.stopSequence.isRequested() && (err == nil || missing) {
		for _, t := range r.tasks {
			state, ephemeral := t.State(), t.Task().Stage().Ephemeral()
			switch {
			case state.State != model.TaskDead && missing,
				state.State == model.TaskDead && !state.Failed && ephemeral && (missing || r.startGates.lifecycleGroup.RerunsAfterReboot(t.Name())):
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

func (r *restorer) openAllocDir() error {
	dir, err := r.dir.Open()
	if err != nil {
		return err
	}
	return dir.Close()
}

// restrictAllocDir makes the directory of the allocation inaccessible to other accounts, because an earlier version of this
// program left such directories accessible.
func (r *restorer) restrictAllocDir() {
	var tasks []allocdir.TaskOptions
	for i, t := range r.alloc.GetTaskGroup().Tasks {
		tasks = append(tasks, taskDirOptions(r.tasks[i], t, r.limits))
	}
	if err := r.dir.RestrictAccess(tasks); err != nil {
		r.logger.Error("other accounts of this machine can enter the directory of the allocation", "error", err)
	}
}
