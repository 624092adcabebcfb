package taskrunner

import (
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// State returns a copy of the task's state.
func (r *Runner) State() *api.TaskState {
	state, _ := r.Snapshot()
	return state
}

// Snapshot is State, and reports whether a kill came before the task had finished and
// since it was last started.
func (r *Runner) Snapshot() (state *api.TaskState, killed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return model.CopyTaskState(r.state), r.killNoted
}

// EmitEvent adds an event to the task, for people: nothing depends on it. The
// event belongs to the runner from then on.
func (r *Runner) EmitEvent(event *api.TaskEvent) { r.tell(event, Behind) }

// maxReported is how many messages of EmitEventOnce a task can have.
const maxReported = 16

// EmitEventOnce is EmitEvent for an event that the task gets once, whichever process
// sends it again: the messages are stored with the task. Further messages than 16 are
// ignored.
func (r *Runner) EmitEventOnce(event *api.TaskEvent) {
	r.changeBoth(Behind, func(s *api.TaskState) bool {
		if len(r.reported) >= maxReported || slices.Contains(r.reported, event.DisplayMessage) {
			return false
		}
		r.reported = append(slices.Clone(r.reported), event.DisplayMessage)
		model.AppendTaskEvent(s, event, time.Now())
		return true
	})
}

func (r *Runner) tell(event *api.TaskEvent, h Haste) {
	r.change(h, func(s *api.TaskState) bool {
		model.AppendTaskEvent(s, event, time.Now())
		return true
	})
}

// transition moves the task into a state, with the event that says why, if
// there is one, and stores the local state with it.
func (r *Runner) transition(h Haste, state string, event *api.TaskEvent) {
	r.record(h, func(s *api.TaskState) bool {
		if s.State == state && event == nil {
			return false
		}
		now := time.Now()
		model.SetTaskState(s, state, now)
		if event != nil {
			model.AppendTaskEvent(s, event, now)
		}
		return true
	})
}

// revive takes back that the task is over, for the one who asked for it to run
// again.
func (r *Runner) revive() {
	r.change(AtOnce, func(s *api.TaskState) bool {
		model.ReviveTask(s)
		return true
	})
}

// clearRestartRequest makes room for the next request. For a dead task it is
// called when the task is no longer dead: a request before that means the same run.
func (r *Runner) clearRestartRequest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restartReq = nil
}

// change lets f change the state, stores it and tells the allocation, unless f
// says that nothing has changed.
func (r *Runner) change(h Haste, f func(*api.TaskState) bool) {
	r.writing.Lock()
	defer r.writing.Unlock()
	snapshot, changed := r.changeState(f)
	if !changed {
		return
	}
	var written Written
	if r.unstored {
		written = r.store.Put(r.localLocked(), snapshot, h) // the state alone would contradict the record of the process
	} else {
		written = r.store.PutState(snapshot, h)
	}
	r.notify()
	r.awaitStoredLocked(h, written)
}

// record is change for the goroutine of Run: the local state is stored with the
// state in one, also when only the local state has changed.
func (r *Runner) record(h Haste, f func(*api.TaskState) bool) {
	r.writing.Lock()
	defer r.writing.Unlock()
	snapshot, changed := r.changeState(f)
	r.stored = r.local
	written := r.store.Put(r.localLocked(), snapshot, h)
	if changed {
		r.notify() // what follows is stored later, and may share the write
	}
	r.awaitStoredLocked(h, written)
}

// awaitStoredLocked waits for a write as long as its haste asks for. A record that the
// store refuses is stored again later. The caller holds writing.
func (r *Runner) awaitStoredLocked(h Haste, written Written) {
	err := h.stored(written)
	if err == nil {
		return
	}
	r.logger.Error("task not stored, trying again: until it is stored, another agent does not find it as it is", "error", err)
	if !r.unstored {
		r.unstored = true
		time.AfterFunc(storeAgainDelay, r.storeAgain)
	}
}

// storeAgainDelay is the time between two tries to store a task.
const storeAgainDelay = time.Second

// storeAgain stores what the store has refused. It tries again until the record is
// stored or Run has returned.
func (r *Runner) storeAgain() {
	r.writing.Lock()
	defer r.writing.Unlock()
	select {
	case <-r.done:
		return
	default:
	}
	if !r.unstored {
		return
	}
	snapshot, _ := r.changeState(func(*api.TaskState) bool { return false })
	if r.store.Put(r.localLocked(), snapshot, AtOnce)() != nil {
		time.AfterFunc(storeAgainDelay, r.storeAgain)
		return
	}
	r.unstored = false
	r.logger.Info("task stored")
}

// putLocal stores the local state alone. Only the goroutine of Run calls it.
func (r *Runner) putLocal(h Haste) Written {
	r.writing.Lock()
	defer r.writing.Unlock()
	r.stored = r.local
	return r.store.PutLocal(r.localLocked(), h)
}

// changeBoth is change for an f that also sets fields of the runner that localLocked
// adds to the local state: both are stored in one write. Unlike record it may be called
// from any goroutine.
func (r *Runner) changeBoth(h Haste, f func(*api.TaskState) bool) {
	r.writing.Lock()
	defer r.writing.Unlock()
	snapshot, changed := r.changeState(f)
	if !changed {
		return
	}
	written := r.store.Put(r.localLocked(), snapshot, h)
	r.notify()
	r.awaitStoredLocked(h, written)
}

// localLocked returns the record of the local state. The caller holds writing.
func (r *Runner) localLocked() LocalState {
	r.mu.Lock()
	defer r.mu.Unlock()
	local := r.stored
	local.RestartRequest, local.Killed, local.Reported = r.restartReq, r.killNoted, r.reported
	return local
}

func (r *Runner) changeState(f func(*api.TaskState) bool) (snapshot *api.TaskState, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = f(r.state)
	return model.CopyTaskState(r.state), changed
}

func terminated(result driver.ExitResult) *api.TaskEvent {
	message := ""
	if result.Err != nil {
		message = result.Err.Error()
	}
	return model.EventTerminated(result.ExitCode, result.Signal, result.OOMKilled, message)
}
