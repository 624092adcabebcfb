package allocrunner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/state"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// Records reads the records of an earlier agent.
type Records interface {
	TaskLocal(allocID, task string) (state.LocalState, bool, error)
	TaskState(allocID, task string) (*api.TaskState, error)

	// AllocHooks returns the hooks that an earlier agent had attached to an allocation,
	// with their configurations, also for an allocation that has ended.
	AllocHooks(allocID string) map[string]string
}

// recoveryInfo is an optional interface of Drivers. KnowsTasks reports whether the
// driver's plugin would know a task that an earlier agent was starting when it ended.
// FindsTasks reports whether the plugin searches for tasks by their names.
type recoveryInfo interface {
	KnowsTasks(driver string) bool
	FindsTasks(driver string) bool
}

// restoredTask reads the records of one task, nil if the task is new. An unreadable
// record is treated as missing: a process of the task that may run is found by the
// names of the task.
func (r *Runner) restoredTask(name string) *taskrunner.Restored {
	if !r.config.Restored {
		// The earlier agent may have died after it reported only that the allocation
		// was received.
		if state := r.alloc.TaskStates[name]; state != nil {
			return &taskrunner.Restored{State: state}
		}
		return nil
	}
	local, found, err := r.config.Records.TaskLocal(r.id, name)
	if err != nil {
		r.logger.Error("record of task lost", "task", name, "error", err)
		local, found = state.LocalState{}, false
	}
	task, err := r.config.Records.TaskState(r.id, name)
	if err != nil {
		r.logger.Error("record of task state lost", "task", name, "error", err)
		task = nil
	}
	if task == nil {
		// Use the last reported state: a task that had only been received has no
		// record.
		task = r.alloc.TaskStates[name]
	}
	if !found && task == nil {
		return nil
	}
	return &taskrunner.Restored{Local: local, State: task}
}

// restore is the part of New for an allocation that is not new.
func (r *Runner) restore() {
	for _, t := range r.tasks {
		r.started = r.started || t.PreviouslyStarted()
	}
	if !r.started {
		return
	}
	// A terminal status is final, whatever the states of the tasks are now.
	if r.alloc.ClientTerminalStatus() {
		r.statusOverride = statusOverride{r.alloc.ClientStatus, r.alloc.ClientDescription}
	}
	if r.alloc.ServerTerminalStatus() || r.alloc.ClientTerminalStatus() {
		r.stop(stopReason{quiet: true})
	}
}

// reattachTasks recovers the tasks that an earlier agent ran. It does not wait for a
// driver that is unavailable: the runner of the task does. It returns false if the
// allocation cannot continue; its tasks have been killed then.
func (r *Runner) reattachTasks(grace context.Context) bool {
	if r.config.Restored {
		r.restrictDir()
	}
	if !r.started {
		return true
	}
	_ = r.askDrivers(grace) // a driver that does not answer now is asked again when its task starts
	r.recoverTasks(grace)
	if err := r.checkDir(grace); err != nil {
		r.logger.Error("alloc not restored", "error", err)
		r.force(statusOverride{api.AllocClientStatusFailed, err.Error()})
		r.stop(stopReason{quiet: true}) // otherwise the first task to end would become the stop reason for the others
		r.forEach(func(t *taskrunner.Runner) {
			if t.State().State != model.TaskDead {
				t.EmitEvent(model.EventSetupFailure(err.Error()))
			}
			t.Kill(nil)
		})
		return false
	}
	if r.isStopping() {
		if r.forcedStatus().description == model.MaxRunDurationExceeded {
			r.killPoststop()
		}
		return true // a stop opens no gate
	}
	states := make(map[string]lifecycle.State, len(r.tasks))
	for _, t := range r.observe(r.Status()) {
		states[t.name] = t.state
	}
	r.lifecycle.Restore(states)
	return true
}

func (r *Runner) recoverTasks(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, r.limits.PrerunDeadline)
	defer cancel()
	memory, _ := r.config.Drivers.(recoveryInfo)
	var recovering sync.WaitGroup
	for _, t := range r.tasks {
		past := taskrunner.RecoverInfo{Rebooted: r.config.Rebooted}
		if memory != nil {
			past.Reliable, past.Discoverable = memory.KnowsTasks(t.Task().Driver), memory.FindsTasks(t.Task().Driver)
		}
		recovering.Go(func() { t.Recover(limited, past) })
	}
	recovering.Wait()
}

// checkDir checks that the directory of the allocation exists. If the directory was
// lost in a reboot, the tasks that had not ended start again, and so do the prestart
// tasks that had prepared it. An agent that is out of file descriptors cannot check the
// directory: the tasks then stay as they are, or wait until grace ends if a reboot
// means that none can be running.
func (r *Runner) checkDir(grace context.Context) error {
	over := true
	for _, t := range r.tasks {
		over = over && t.State().State == model.TaskDead
	}
	if over {
		return nil
	}
	err := r.openDir()
	for delay := checkDirRetry; r.config.Rebooted && process.Exhausted(err) && grace.Err() == nil; delay = min(2*delay, maxCheckDirRetry) {
		r.logger.Warn("alloc waits, its directory cannot be checked", "error", err)
		select {
		case <-time.After(delay):
			err = r.openDir()
		case <-grace.Done():
		}
	}
	if process.Exhausted(err) {
		r.logger.Warn("directory of the alloc cannot be checked, its tasks stay as they are", "error", err)
		for _, t := range r.tasks {
			if t.State().State != model.TaskDead {
				t.EmitEvent(model.EventDirUnchecked(err.Error()))
			}
		}
		return nil
	}
	gone := errors.Is(err, fs.ErrNotExist)
	if r.config.Rebooted && !r.isStopping() && (err == nil || gone) {
		for _, t := range r.tasks {
			state, ephemeral := t.State(), t.Task().Stage().Ephemeral()
			switch {
			case state.State != model.TaskDead && gone,
				state.State == model.TaskDead && !state.Failed && ephemeral && (gone || r.group.RerunsAfterReboot(t.Name())):
				t.Reset()
			}
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("allocation directory is inaccessible: %w", err)
	}
	return nil
}

const checkDirRetry, maxCheckDirRetry = 100 * time.Millisecond, 30 * time.Second

func (r *Runner) openDir() error {
	dir, err := r.dir.Open()
	if err != nil {
		return err
	}
	return dir.Close()
}

// LeftRunning returns the plugins that the running tasks need, after the agent's
// shutdown has ended Run.
func (r *Runner) LeftRunning() []supervisor.PluginKey {
	var needed []supervisor.PluginKey
	for _, t := range r.tasks {
		if t.Running() || t.Undestroyed() {
			needed = append(needed, supervisor.PluginKey{Type: base.TypeDriver, Name: t.Task().Driver})
		}
	}
	if len(needed) > 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		for name := range r.pluginHooks {
			needed = append(needed, supervisor.PluginKey{Type: base.TypeHook, Name: name})
		}
	}
	return needed
}

// Needs reports whether a task uses the given driver, or the given hook is attached.
func (r *Runner) Needs(what supervisor.PluginKey) bool {
	if what.Type == base.TypeHook {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.pluginHooks[what.Name]
	}
	return slices.ContainsFunc(r.tasks, func(t *taskrunner.Runner) bool { return t.Task().Driver == what.Name })
}
