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
	"github.com/nomad-lite/nomad-lite/plugins/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/model"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner"
)

// Records is where the records of an earlier agent are read.
type Records interface {
	TaskLocal(allocID, task string) (taskrunner.LocalState, bool, error)
	TaskState(allocID, task string) (*api.TaskState, error)

	// AllocHooks returns the hooks that an earlier agent had attached to an
	// allocation, with their configurations; those of one that has ended, too.
	AllocHooks(allocID string) map[string]string
}

// recoveryInfo is what Drivers may be: it knows whether the plugin of a driver
// would know a task that an earlier agent was starting when it ended, and whether
// it searches for tasks by their names.
type recoveryInfo interface {
	KnowsTasks(driver string) bool
	FindsTasks(driver string) bool
}

// restoredTask reads what there is of one task, nil if it is new. A record that
// cannot be read is as good as none: what may run of the task is found by its
// names.
func (r *Runner) restoredTask(name string) *taskrunner.Restored {
	if !r.config.Restored {
		// An agent may have died that had not come further than to say that it was
		// received.
		if state := r.alloc.TaskStates[name]; state != nil {
			return &taskrunner.Restored{State: state}
		}
		return nil
	}
	local, found, err := r.config.Records.TaskLocal(r.id, name)
	if err != nil {
		r.logger.Error("record of task lost", "task", name, "error", err)
		local, found = taskrunner.LocalState{}, false
	}
	state, err := r.config.Records.TaskState(r.id, name)
	if err != nil {
		r.logger.Error("record of task state lost", "task", name, "error", err)
		state = nil
	}
	if state == nil {
		// What was last reported: a task that had only been received has no record.
		state = r.alloc.TaskStates[name]
	}
	if !found && state == nil {
		return nil
	}
	return &taskrunner.Restored{Local: local, State: state}
}

// restore is the part of New for an allocation that is not new.
func (r *Runner) restore() {
	for _, t := range r.tasks {
		r.started = r.started || t.PreviouslyStarted()
	}
	if !r.started {
		return
	}
	// Terminal states do not go back, whatever the tasks say now.
	if r.alloc.ClientTerminalStatus() {
		r.statusOverride = statusOverride{r.alloc.ClientStatus, r.alloc.ClientDescription}
	}
	if r.alloc.ServerTerminalStatus() || r.alloc.ClientTerminalStatus() {
		r.stop(stopReason{quiet: true})
	}
}

// reattachTasks finds out what has become of the tasks that an earlier agent has run. It
// does not wait for a driver that is unavailable: the runner of a task does.
// It returns false if the allocation cannot go on; its tasks have been killed then.
func (r *Runner) reattachTasks(grace context.Context) bool {
	if r.config.Restored {
		r.restrictDir()
	}
	if !r.started {
		return true
	}
	_ = r.askDrivers(grace) // what a driver has not answered now, it is asked when its task starts
	r.recoverTasks(grace)
	if err := r.checkDir(grace); err != nil {
		r.logger.Error("alloc not restored", "error", err)
		r.force(statusOverride{api.AllocClientStatusFailed, err.Error()})
		r.stop(stopReason{quiet: true}) // or the first to go would be the reason of the others
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

// checkDir makes sure that the directory of the allocation is there. If a reboot
// has taken it, the tasks begin anew, and with them those that had prepared it. An agent
// that is out of descriptors cannot check it: the tasks stay as they are, or wait until
// grace ends if none can run.
func (r *Runner) checkDir(grace context.Context) error {
	over := true
	for _, t := range r.tasks {
		over = over && t.State().State == model.TaskDead
	}
	if over {
		return nil
	}
	err := r.openDir()
	for delay := checkDirRetry; r.config.Rebooted && keeper.Exhausted(err) && grace.Err() == nil; delay = min(2*delay, maxCheckDirRetry) {
		r.logger.Warn("alloc waits, its directory cannot be checked", "error", err)
		select {
		case <-time.After(delay):
			err = r.openDir()
		case <-grace.Done():
		}
	}
	if keeper.Exhausted(err) {
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

// LeftRunning returns what the tasks need that run, after a Run that a shutdown of
// the agent has ended.
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

// Needs reports whether one of the tasks is of a driver, or a hook takes part.
func (r *Runner) Needs(what supervisor.PluginKey) bool {
	if what.Type == base.TypeHook {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.pluginHooks[what.Name]
	}
	return slices.ContainsFunc(r.tasks, func(t *taskrunner.Runner) bool { return t.Task().Driver == what.Name })
}
