package taskrunner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// Store stores the two records of one task: its state and its local state. The calls do not block; the returned
// WaitDurableFunc blocks until the records are on the disk. Records reach the disk in the order of the puts of all tasks.
// Neither the runner nor the store changes a record after the call. The calls for one task do not overlap. Put stores either
// both records or none, because the exit of a process and the state of the task must not contradict each other after a crash.
type Store interface {
	PutState(*api.TaskState, state.Durability) state.WaitDurableFunc
	Put(state.LocalState, *api.TaskState, state.Durability) state.WaitDurableFunc
}

// taskRecords holds the state of a task and the local state of its runner, and stores both. Its methods may be called from any
// goroutine unless their comment says otherwise.
type taskRecords struct {
	store             Store
	onTaskStateChange func()              // called after each change of the task's state
	putRetriesEnded   <-chan struct{}     // when the channel is closed, failed puts are no longer retried
	hasSecrets        func() bool         // reports whether the task has secrets, so that redactSecrets must be called
	redactSecrets     func(string) string // replaces the secrets of the task in a text
	timeline          timeline.Recorder
	taskMetrics       taskMetrics
	logger            hclog.Logger

	// localState belongs to the goroutine of Run and, before Run, to the callers that prepare
	// it.
	localState state.LocalState

	// putOrderMu keeps the puts in the order of the changes: unlike mu, it is held during each call of the store.
	putOrderMu              sync.Mutex       // taken before mu
	lastPutLocalState       state.LocalState // copy of localState at the last changeAndPutBothRecords, which any goroutine may read
	putCount                int              // number of puts
	lastLocalStatePutNumber int              // number of the last put that included the local state
	lastStoredPutNumber     int              // number of the last put that is known to be stored
	putRetryDone            chan struct{}    // not nil while a failed put is retried (see retryFailedPut); closed when the records are stored

	mu                  sync.Mutex // also guards fields of killRequest and currentProcess
	taskState           *api.TaskState
	restartRequest      *state.RestartRequest // requested restart of the process, or rerun of a dead task
	killedSinceStart    bool                  // the task was killed after its last start and before it finished; stored as LocalState.Killed
	emittedOnceMessages []string              // messages of emitEventOnce; stored as LocalState.Reported; the slice is replaced, never changed in place
}

// restoreRecords sets the records of an earlier agent. It must be called before any other method.
func (r *taskRecords) restoreRecords(was RestoredTask) {
	r.localState, r.lastPutLocalState = was.LocalState, was.LocalState
	r.killedSinceStart, r.emittedOnceMessages = was.LocalState.KillRequested, was.LocalState.ReportedMessages
	if was.TaskState != nil {
		r.taskState = model.CopyTaskState(was.TaskState)
	} else {
		r.addReceivedEvent()
	}
}

// addReceivedEvent adds the event Received, the first event of a task.
func (r *taskRecords) addReceivedEvent() {
	r.appendEvent(r.taskState, model.EventReceived())
}

// resetToNewTask replaces the records by the records of a new task that keeps the data of its hooks. It
// must be called before Run.
func (r *taskRecords) resetToNewTask() {
	before := r.localState
	r.localState = state.LocalState{Capabilities: before.Capabilities}
	for name, was := range before.Hooks {
		r.localState.SetHook(name, state.HookState{AttachmentJSON: was.AttachmentJSON, Data: was.Data})
	}
	r.changeAndPutBothRecords(state.DurabilitySync, func(s *api.TaskState) bool {
		if s.State == model.TaskPending {
			return false
		}
		model.ResetTask(s)
		model.SetTaskState(s, model.TaskPending, time.Now())
		return true
	})
}

// snapshot implements [Runner.Snapshot].
func (r *taskRecords) snapshot() (state *api.TaskState, killed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return model.CopyTaskState(r.taskState), r.killedSinceStart
}

// appendEvent adds an event to s. It removes the secrets of the task from the event, because API clients can read events.
func (r *taskRecords) appendEvent(s *api.TaskState, event *api.TaskEvent) {
	if r.hasSecrets() {
		model.RedactTaskEvent(event, r.redactSecrets)
	}
	model.AppendTaskEvent(s, event, time.Now())
	r.taskMetrics.countEvent(event)
	if !model.IsEventOngoing(event) {
		r.timeline.RecordEvent(event.Type, event.DisplayMessage, time.Unix(0, event.Time))
	}
}

// redactError returns an error that wraps err and whose text has no secrets of the task. It returns nil for a nil err.
func (r *taskRecords) redactError(err error) error {
	if err == nil {
		return nil
	}
	if text := r.redactSecrets(err.Error()); text != err.Error() {
		return &redactedError{err, text}
	}
	return err
}

type redactedError struct {
	err  error
	text string
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Unwrap() error { return e.err }

// emitEvent adds an event to the task. The caller must not change the event afterwards.
func (r *taskRecords) emitEvent(event *api.TaskEvent) {
	r.changeAndStoreTaskState(state.DurabilityAsync, func(s *api.TaskState) bool {
		r.appendEvent(s, event)
		return true
	})
}

// maxReportedMessages is the maximum number of events of emitEventOnce per task.
const maxReportedMessages = 16

// emitEventOnce implements [Runner.EmitEventOnce].
func (r *taskRecords) emitEventOnce(event *api.TaskEvent) {
	r.changeAndStoreBothRecords(state.DurabilityAsync, func(s *api.TaskState) bool {
		if len(r.emittedOnceMessages) >= maxReportedMessages || slices.Contains(r.emittedOnceMessages, event.DisplayMessage) {
			return false
		}
		r.emittedOnceMessages = append(slices.Clone(r.emittedOnceMessages), event.DisplayMessage)
		r.appendEvent(s, event)
		return true
	})
}

// setTaskState sets the state of the task, adds the event unless it is nil, and stores the local state too. It belongs to the
// goroutine of Run.
func (r *taskRecords) setTaskState(h state.Durability, status string, event *api.TaskEvent) {
	r.changeAndPutBothRecords(h, func(s *api.TaskState) bool {
		if s.State == status && event == nil {
			return false
		}
		ended := status == model.TaskDead && s.State != model.TaskDead
		model.SetTaskState(s, status, time.Now())
		if event != nil {
			r.appendEvent(s, event)
		}
		if ended {
			r.taskMetrics.countEnd(s.Failed)
		}
		return true
	})
}

// resetDeadTaskState removes the end of a dead task from its state, for a requested rerun.
func (r *taskRecords) resetDeadTaskState() {
	r.changeAndStoreTaskState(state.DurabilitySync, func(s *api.TaskState) bool {
		model.ResetTask(s)
		return true
	})
}

// clearRestartRequest deletes the restart or rerun request, so that another one can be made. The request of a dead task is
// kept until the task is no longer dead, so that all earlier requests lead to one rerun.
func (r *taskRecords) clearRestartRequest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restartRequest = nil
}

// changeAndStoreTaskState calls f, which may change the state of the task. Unless f returns false, changeAndStoreTaskState stores the state and
// notifies the allocation.
func (r *taskRecords) changeAndStoreTaskState(h state.Durability, f func(*api.TaskState) bool) {
	r.changeAndStoreRecords(h, false, f)
}

// changeAndStoreBothRecords is like changeAndStoreTaskState, but always stores the local state too, in the same write. f may also set the
// fields that mergedLocalStateLocked adds to the local state. Unlike changeAndPutBothRecords it may be called from any goroutine.
func (r *taskRecords) changeAndStoreBothRecords(h state.Durability, f func(*api.TaskState) bool) {
	r.changeAndStoreRecords(h, true, f)
}

func (r *taskRecords) changeAndStoreRecords(h state.Durability, withLocalState bool, f func(*api.TaskState) bool) {
	r.putOrderMu.Lock()
	defer r.putOrderMu.Unlock()
	snapshot, changed := r.changeTaskState(f)
	if !changed {
		return
	}
	p := r.putRecordsLocked(snapshot, withLocalState || r.lastLocalStatePutNumber > r.lastStoredPutNumber, h)
	r.onTaskStateChange()
	_ = r.awaitPutLocked(p) // no error is returned, because retryFailedPut retries a failed put
}

// changeAndPutBothRecords is like changeAndStoreTaskState, but also stores r.localState, even if f returns false. It belongs to the goroutine
// of Run. It returns the error of the store, except for state.DurabilityAsync.
func (r *taskRecords) changeAndPutBothRecords(h state.Durability, f func(*api.TaskState) bool) error {
	r.putOrderMu.Lock()
	defer r.putOrderMu.Unlock()
	snapshot, changed := r.changeTaskState(f)
	r.lastPutLocalState = r.localState
	p := r.putRecordsLocked(snapshot, true, h)
	if changed {
		r.onTaskStateChange() // the allocation reacts with a later put, which may share the disk write
	}
	return r.awaitPutLocked(p)
}

// putLocalState stores a change of the local state. It stores the unchanged state too, because an earlier put of the state may
// have failed.
func (r *taskRecords) putLocalState(h state.Durability) error {
	return r.changeAndPutBothRecords(h, func(*api.TaskState) bool { return false })
}

// pendingPut is a put that may not be on the disk yet.
type pendingPut struct {
	putNumber  int
	durability state.Durability
	waitStored state.WaitDurableFunc
}

// putRecordsLocked puts the state, and also the local state if both is true. both must be true as long as the last local state is not
// known to be stored, because the state alone could contradict the stored local state. The caller holds putOrderMu, and calls
// awaitPutLocked.
func (r *taskRecords) putRecordsLocked(task *api.TaskState, withLocalState bool, h state.Durability) pendingPut {
	r.putCount++
	p := pendingPut{putNumber: r.putCount, durability: h}
	if withLocalState {
		r.lastLocalStatePutNumber = r.putCount
		p.waitStored = r.store.Put(r.mergedLocalStateLocked(), task, h)
	} else {
		p.waitStored = r.store.PutState(task, h)
	}
	return p
}

// awaitPutLocked blocks until a put is stored, except for state.DurabilityAsync. If the put fails, retryFailedPut retries it, also for
// state.DurabilityAsync. The caller holds putOrderMu.
func (r *taskRecords) awaitPutLocked(p pendingPut) error {
	if p.durability == state.DurabilityAsync {
		go func() {
			err := p.waitStored()
			r.putOrderMu.Lock()
			defer r.putOrderMu.Unlock()
			r.recordPutResultLocked(p, err)
		}()
		return nil
	}
	err := p.waitStored()
	r.recordPutResultLocked(p, err)
	return err
}

// recordPutResultLocked records the result of a put, and schedules retryFailedPut after an error. The caller holds putOrderMu.
func (r *taskRecords) recordPutResultLocked(p pendingPut, err error) {
	switch {
	case err == nil && p.putNumber > r.lastStoredPutNumber:
		r.lastStoredPutNumber = p.putNumber // each put includes the content of all earlier puts
		if r.putRetryDone != nil {
			close(r.putRetryDone)
			r.putRetryDone = nil
			r.logger.Info("task stored")
		}
	case err == nil, p.putNumber <= r.lastStoredPutNumber, r.putRetryDone != nil, wait.IsClosed(r.putRetriesEnded):
	default:
		r.putRetryDone = make(chan struct{})
		r.logger.Error("task not stored, trying again: until it is stored, another agent does not find it as it is", "error", err)
		time.AfterFunc(putRetryDelay, r.retryFailedPut)
	}
}

// awaitRecordsStored blocks until no put has to be retried, and returns true, or until ctx is done, and returns false.
func (r *taskRecords) awaitRecordsStored(ctx context.Context) bool {
	r.putOrderMu.Lock()
	retryDone := r.putRetryDone
	r.putOrderMu.Unlock()
	if retryDone == nil {
		return true
	}
	select {
	case <-retryDone:
		return true
	case <-ctx.Done():
		return false
	}
}

// putRetryDelay is the time between two attempts to store a task.
const putRetryDelay = time.Second

// retryFailedPut puts the current records after a failed put. It is scheduled again until the records are stored or Run has
// returned.
func (r *taskRecords) retryFailedPut() {
	r.putOrderMu.Lock()
	defer r.putOrderMu.Unlock()
	if r.putRetryDone == nil || wait.IsClosed(r.putRetriesEnded) {
		return
	}
	snapshot, _ := r.changeTaskState(func(*api.TaskState) bool { return false })
	if r.awaitPutLocked(r.putRecordsLocked(snapshot, true, state.DurabilitySync)) != nil {
		time.AfterFunc(putRetryDelay, r.retryFailedPut)
	}
}

// mergedLocalStateLocked returns the local state for a put: the last local state, with the fields that other goroutines than that of
// Run change. The caller holds putOrderMu.
func (r *taskRecords) mergedLocalStateLocked() state.LocalState {
	r.mu.Lock()
	defer r.mu.Unlock()
	local := r.lastPutLocalState
	local.RestartRequest, local.KillRequested, local.ReportedMessages = r.restartRequest, r.killedSinceStart, r.emittedOnceMessages
	return local
}

func (r *taskRecords) changeTaskState(f func(*api.TaskState) bool) (snapshot *api.TaskState, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = f(r.taskState)
	return model.CopyTaskState(r.taskState), changed
}
