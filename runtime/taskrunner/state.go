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
func (r *Runner) EmitEvent(event *api.TaskEvent) { r.emit(event, Async) }

// maxReported is how many messages of EmitEventOnce a task can have.
const maxReported = 16

// EmitEventOnce is EmitEvent for an event that the task gets once, whichever process
// sends it again: the messages are stored with the task. Further messages than 16 are
// ignored.
func (r *Runner) EmitEventOnce(event *api.TaskEvent) {
	r.changeBoth(Async, func(s *api.TaskState) bool {
		if len(r.reported) >= maxReported || slices.Contains(r.reported, event.DisplayMessage) {
			return false
		}
		r.reported = append(slices.Clone(r.reported), event.DisplayMessage)
		model.AppendTaskEvent(s, event, time.Now())
		return true
	})
}

func (r *Runner) emit(event *api.TaskEvent, h Durability) {
	r.change(h, func(s *api.TaskState) bool {
		model.AppendTaskEvent(s, event, time.Now())
		return true
	})
}

// transition moves the task into a state, with the event that says why, if
// there is one, and stores the local state with it.
func (r *Runner) transition(h Durability, state string, event *api.TaskEvent) {
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

// rerun takes back that the task is over, for the one who asked for it to run
// again.
func (r *Runner) rerun() {
	r.change(Sync, func(s *api.TaskState) bool {
		model.ResetTask(s)
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
func (r *Runner) change(h Durability, f func(*api.TaskState) bool) { r.changeAndPut(h, false, f) }

// changeBoth is change for an f that also sets fields of the runner that localLocked
// adds to the local state: both are stored in one write. Unlike record it may be called
// from any goroutine.
func (r *Runner) changeBoth(h Durability, f func(*api.TaskState) bool) { r.changeAndPut(h, true, f) }

func (r *Runner) changeAndPut(h Durability, both bool, f func(*api.TaskState) bool) {
	r.writing.Lock()
	defer r.writing.Unlock()
	snapshot, changed := r.changeState(f)
	if !changed {
		return
	}
	p := r.putLocked(snapshot, both || r.localPut > r.safe, h)
	r.notify()
	_ = r.awaitLocked(p) // storeAgain makes good what is refused
}

// record is change for the goroutine of Run: the local state is stored with the
// state in one, also when only the local state has changed. The error is that of a
// write that somebody waits for.
func (r *Runner) record(h Durability, f func(*api.TaskState) bool) error {
	r.writing.Lock()
	defer r.writing.Unlock()
	snapshot, changed := r.changeState(f)
	r.stored = r.local
	p := r.putLocked(snapshot, true, h)
	if changed {
		r.notify() // what follows is stored later, and may share the write
	}
	return r.awaitLocked(p)
}

// putLocal is record for a local state that has changed alone. The state is stored
// with it: events that the store has refused belong to what the local state says.
func (r *Runner) putLocal(h Durability) error {
	return r.record(h, func(*api.TaskState) bool { return false })
}

// pendingPut is a put of which it is not known whether the store has written it.
type pendingPut struct {
	serial     int
	durability Durability
	written    WaitFunc
}

// putLocked puts the state, and the local state with it if both is true. The state alone
// must not be put before the local state is known to be stored, which it would contradict.
// The caller holds writing, and calls awaitLocked.
func (r *Runner) putLocked(state *api.TaskState, both bool, h Durability) pendingPut {
	r.puts++
	p := pendingPut{serial: r.puts, durability: h}
	if both {
		r.localPut = r.puts
		p.written = r.store.Put(r.localLocked(), state, h)
	} else {
		p.written = r.store.PutState(state, h)
	}
	return p
}

// awaitLocked waits for a put as long as its haste asks for. One that the store refuses
// is made good by storeAgain, also when nobody waits for it. The caller holds writing.
func (r *Runner) awaitLocked(p pendingPut) error {
	if p.durability == Async {
		go func() {
			err := p.written()
			r.writing.Lock()
			defer r.writing.Unlock()
			r.noteWrittenLocked(p, err)
		}()
		return nil
	}
	err := p.written()
	r.noteWrittenLocked(p, err)
	return err
}

// noteWrittenLocked notes what has become of a put. The caller holds writing.
func (r *Runner) noteWrittenLocked(p pendingPut, err error) {
	switch {
	case err == nil && p.serial > r.safe:
		r.safe = p.serial // each put holds what those before it held
		if r.refused {
			r.refused = false
			r.logger.Info("task stored")
		}
	case err == nil, p.serial <= r.safe, r.refused, isClosed(r.done):
	default:
		r.refused = true
		r.logger.Error("task not stored, trying again: until it is stored, another agent does not find it as it is", "error", err)
		time.AfterFunc(storeAgainDelay, r.storeAgain)
	}
}

// storeAgainDelay is the time between two tries to store a task.
const storeAgainDelay = time.Second

// storeAgain stores what the store has refused. It tries again until the task is stored
// or Run has returned.
func (r *Runner) storeAgain() {
	r.writing.Lock()
	defer r.writing.Unlock()
	if !r.refused || isClosed(r.done) {
		return
	}
	snapshot, _ := r.changeState(func(*api.TaskState) bool { return false })
	if r.awaitLocked(r.putLocked(snapshot, true, Sync)) != nil {
		time.AfterFunc(storeAgainDelay, r.storeAgain)
	}
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
