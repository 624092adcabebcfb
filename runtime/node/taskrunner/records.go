package taskrunner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/job/restart"
	"github.com/nomad-lite/nomad-lite/runtime/node/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// TaskRecordStore stores the two records of one task: its state and its local state. The calls do not block; the
// returned WaitDurableFunc blocks until the records are on the disk. Records reach the disk in the order of the puts of
// all tasks. Neither the runner nor the store changes a record after the call. The calls for one task do not overlap.
// PutBothRecords stores either both records or none, because the exit of a process and the state of the task must not
// contradict each other after a crash.
type TaskRecordStore interface {
	PutTaskState(*api.TaskState, state.Durability) state.WaitDurableFunc
	PutBothRecords(state.LocalState, *api.TaskState, state.Durability) state.WaitDurableFunc
}

// taskRecords holds the state of a task and the local state of its runner, and stores both. Its methods may be called
// from any goroutine unless their comment says otherwise.
//
// It is large because both records are stored by one write, in the order of their changes, so that their fields share the
// locks.
type taskRecords struct {
	store             TaskRecordStore
	onTaskStateChange func()          // called after each change of the task's state
	runReturned       <-chan struct{} // closed by Run; then failed puts are no longer retried
	env               *taskenv.Builder
	secrets           *redact.Values // removed from texts before they are stored
	timeline          timeline.Recorder
	alloc             *Alloc
	taskName          string
	logger            hclog.Logger

	// localState belongs to the goroutine of Run and, before Run, to the callers that prepare
	// it. hookStates replaces its field HookStateByName.
	localState state.LocalState

	// putOrderMu keeps the puts in the order of the changes: unlike mu, it is held during each call of the store.
	putOrderMu              sync.Mutex       // taken before mu
	lastPutLocalState       state.LocalState // copy of localState at the last changeAndAlwaysStoreBothRecords, which any goroutine may read
	lastPutNumber           int              // number of the last put; the first one has the number 1
	lastLocalStatePutNumber int              // number of the last put that included the local state
	lastFinishedPutNumber   int              // number of the last put whose result is known; the results of earlier ones do not count
	putRetryDone            chan struct{}    // not nil while a failed put is retried (see retryFailedPut); closed when the records are stored

	mu                  sync.Mutex // also guards the fields of taskRequests and Runner.transitions
	taskState           *api.TaskState
	restartRequest      *state.RestartRequest      // requested restart of the process, or rerun of a dead task
	killedSinceStart    bool                       // the task was killed after its last start and before it finished; stored as LocalState.KillRequested
	emittedOnceMessages []string                   // messages of EmitEventOncePerMessage; stored as LocalState.ReportedOnceOnlyMessages; the slice is replaced, never changed in place
	readVariables       []string                   // stored as LocalState.ReadVariables; the slice is replaced, never changed in place
	deploymentFailure   *restart.DeploymentFailure // stored as LocalState.DeploymentFailure; replaced, never changed in place
	hookStates          map[string]state.HookState // by name of the hook; stored as LocalState.HookStateByName; the map is replaced, never changed in place
}

// newStartID returns a new random id for one start of the task. Drivers use the id as a key, so an id must never repeat,
// not even after a restart of the agent or of the plugin.
func (r *taskRecords) newStartID() string {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s/%s/%s", r.alloc.ID, r.taskName, hex.EncodeToString(b[:]))
}

// wildcardStartID returns the id with which DestroyTask destroys all starts of the task.
func (r *taskRecords) wildcardStartID() string {
	return r.alloc.ID + "/" + r.taskName + "/" + driver.WildcardStart
}

// restoreRecords sets the records of an earlier agent. It must be called before any other method.
func (r *taskRecords) restoreRecords(restored RestoredTask) {
	r.localState, r.lastPutLocalState = restored.LocalState, restored.LocalState
	r.killedSinceStart, r.emittedOnceMessages = restored.LocalState.KillRequested, restored.LocalState.ReportedOnceOnlyMessages
	r.hookStates, r.readVariables = restored.LocalState.HookStateByName, restored.LocalState.ReadVariables
	r.deploymentFailure = restored.LocalState.DeploymentFailure
	if restored.TaskState != nil {
		r.taskState = model.CopyTaskState(restored.TaskState)
	} else {
		r.addReceivedEvent()
	}
}

// addReceivedEvent adds the event Received, the first event of a task.
func (r *taskRecords) addReceivedEvent() {
	r.redactAndAppendEvent(r.taskState, model.EventReceived())
}

// resetToNewTaskKeepingHookData replaces the records by the records of a new task that keeps the data of its hooks. It
// must be called before Run.
func (r *taskRecords) resetToNewTaskKeepingHookData() {
	r.localState = state.LocalState{LastKnownCapabilities: r.localState.LastKnownCapabilities}
	r.mu.Lock()
	r.hookStates = maps.Clone(r.hookStates)
	for name, was := range r.hookStates {
		r.hookStates[name] = state.HookState{AttachmentJSON: was.AttachmentJSON, Data: was.Data}
	}
	r.mu.Unlock()
	r.changeAndAlwaysStoreBothRecords(state.DurabilitySync, func(s *api.TaskState) bool {
		if s.State == model.TaskPending {
			return false
		}
		model.ResetTaskForRerun(s)
		model.SetTaskState(s, model.TaskPending, time.Now())
		return true
	})
}

// hookState returns the state of a hook; the zero value if there is none.
func (r *taskRecords) hookState(name string) state.HookState {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hookStates[name]
}

// previousHookState returns a copy of the data that a hook has stored, for the field PreviousState of a request.
func (r *taskRecords) previousHookState(name string) map[string]string {
	return maps.Clone(r.hookState(name).Data)
}

// changeHookState calls change, which changes the state of a hook, and returns whether it has changed anything. It does
// not store the state.
func (r *taskRecords) changeHookState(name string, change func(*state.HookState)) (changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changeHookStateLocked(name, change)
}

func (r *taskRecords) changeHookStateLocked(name string, change func(*state.HookState)) (changed bool) {
	before := r.hookStates[name]
	after := before
	if change(&after); reflect.DeepEqual(before, after) {
		return false
	}
	hooks := maps.Clone(r.hookStates)
	if hooks == nil {
		hooks = make(map[string]state.HookState)
	}
	hooks[name] = after
	r.hookStates = hooks
	return true
}

// storeHookData stores data as the data of a hook, and blocks until it is on the disk. If it returns an error, the data
// is set nevertheless, and retryFailedPut stores it.
func (r *taskRecords) storeHookData(name string, data map[string]string) error {
	return r.storeRecordsIfChanged(state.DurabilityGrouped, true, func(*api.TaskState) bool {
		return r.changeHookStateLocked(name, func(s *state.HookState) { s.Data = data })
	})
}

// redactAndAppendEvent adds an event to s. It removes the secrets of the task from the event, because API clients can
// read events.
func (r *taskRecords) redactAndAppendEvent(s *api.TaskState, event *api.TaskEvent) {
	if !r.secrets.IsEmpty() {
		model.RedactTaskEvent(event, r.secrets.Text)
	}
	model.AppendTaskEvent(s, event, time.Now())
	r.countStartOrOOMKill(event)
	if !model.IsEventOfOngoingOperation(event) {
		r.timeline.RecordEvent(event.Type, event.DisplayMessage, time.Unix(0, event.Time))
	}
}

// emitEvent adds an event to the task. The caller must not change the event afterwards.
func (r *taskRecords) emitEvent(event *api.TaskEvent) {
	r.storeTaskStateIfChanged(state.DurabilityAsync, func(s *api.TaskState) bool {
		r.redactAndAppendEvent(s, event)
		return true
	})
}

// recordUnhealthy records why the task makes its allocation unhealthy for a deployment, with an event, and blocks until that is
// stored, or the store has failed. It may be called from any goroutine.
func (r *taskRecords) recordUnhealthy(deploymentID, reason string) {
	r.storeBothRecordsIfChanged(state.DurabilityGrouped, func(s *api.TaskState) bool {
		failure := &restart.DeploymentFailure{Time: time.Now(), DeploymentID: deploymentID, Task: r.taskName, Reason: r.secrets.Text(reason)}
		// The end of an earlier run does not explain why a task that has run for long is unhealthy.
		if end := r.lastPutLocalState.LastEnd; end.IsFailure() && (s.State != model.TaskRunning || time.Since(s.StartedAt) < restart.RecoveredAfter) {
			failure.End = end
		}
		r.deploymentFailure = failure
		r.redactAndAppendEvent(s, model.EventAllocUnhealthy(reason))
		return true
	})
}

// setTaskState sets the state of the task, adds the event unless it is nil, and stores the local state too. It belongs
// to the goroutine of Run.
func (r *taskRecords) setTaskState(durability state.Durability, status string, event *api.TaskEvent) {
	r.changeAndAlwaysStoreBothRecords(durability, func(s *api.TaskState) bool {
		if s.State == status && event == nil {
			return false
		}
		ended := status == model.TaskDead && s.State != model.TaskDead
		model.SetTaskState(s, status, time.Now())
		if event != nil {
			r.redactAndAppendEvent(s, event)
		}
		if ended {
			r.countEnd(s.Failed)
		}
		return true
	})
}

// recordEndLocked records how a run of the task, or an attempt to start it, has ended, in the local state, which the caller
// stores. Only this function and, for NextStart, decideRestartAndSetTaskState set LastEnd. recordEndLocked belongs to the
// goroutine of Run and, before Run, to the callers that prepare it. The caller holds mu. killed means that the task was killed
// before.
func (r *taskRecords) recordEndLocked(end restart.RunEnd, killed bool) *restart.RunEnd {
	local := &r.localState
	end.Time, end.OutputStart, end.Error = time.Now(), local.LastStart, r.secrets.Text(end.Error)
	end.Stopped = killed && !r.taskState.Failed
	if request := r.restartRequest; request != nil && !end.StartFailed {
		end.RestartRequested, end.RestartCountsAsFailure = true, request.CountsAsFailure
		end.RequestReason = r.secrets.Text(request.Reason)
	}
	if end.IsFailure() {
		end.RunsInRow = 1
		if last := local.LastEnd; last != nil && end.HasCauseOf(last) && (end.StartFailed || end.Time.Sub(r.taskState.StartedAt) < restart.RecoveredAfter) {
			end.RunsInRow += last.RunsInRow
		}
	}
	local.LastEnd = &end
	return &end
}

// dropUnusedStartID removes the stored id of a start for which StartTask was not called, so that the next agent does not
// search for its processes. It belongs to the goroutine of Run.
func (r *taskRecords) dropUnusedStartID() {
	local := &r.localState
	switch {
	case local.NextStartID != "":
		local.NextStartID = ""
	case local.StartID != "" && local.Handle == nil && local.UnhandledExit == nil:
		local.StartID = ""
	default:
		return
	}
	r.storeBothRecords(state.DurabilityAsync)
}

// resetDeadTaskState removes the end of a dead task from its state, for a requested rerun.
func (r *taskRecords) resetDeadTaskState() {
	r.storeTaskStateIfChanged(state.DurabilitySync, func(s *api.TaskState) bool {
		model.ResetTaskForRerun(s)
		return true
	})
}

// clearRestartRequest deletes the restart or rerun request, so that another one can be made. The request of a dead task
// is kept until the task is no longer dead, so that all earlier requests lead to one rerun.
func (r *taskRecords) clearRestartRequest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restartRequest = nil
}

// storeTaskStateIfChanged calls change, which may change the state of the task. Unless change returns false,
// storeTaskStateIfChanged stores the state and notifies the allocation.
func (r *taskRecords) storeTaskStateIfChanged(durability state.Durability, change func(*api.TaskState) bool) {
	_ = r.storeRecordsIfChanged(durability, false, change) // retryFailedPut retries a failed put
}

// storeBothRecordsIfChanged is like storeTaskStateIfChanged, but always stores the local state too, in the same write.
// change may also set the fields that mergedLocalStateLocked adds to the local state. Unlike
// changeAndAlwaysStoreBothRecords it may be called from any goroutine.
func (r *taskRecords) storeBothRecordsIfChanged(durability state.Durability, change func(*api.TaskState) bool) {
	_ = r.storeRecordsIfChanged(durability, true, change) // retryFailedPut retries a failed put
}

// storeRecordsIfChanged returns the error of the store, except for state.DurabilityAsync.
func (r *taskRecords) storeRecordsIfChanged(durability state.Durability, withLocalState bool, change func(*api.TaskState) bool) error {
	r.putOrderMu.Lock()
	defer r.putOrderMu.Unlock()
	snapshot, changed := r.changeTaskState(change)
	if !changed {
		return nil
	}
	awaitPut := r.putRecordsLocked(snapshot, withLocalState || r.lastLocalStatePutNumber > r.lastFinishedPutNumber || r.putRetryDone != nil, durability)
	r.onTaskStateChange()
	return awaitPut()
}

// changeAndAlwaysStoreBothRecords is like storeTaskStateIfChanged, but also stores r.localState, even if change returns
// false. It belongs to the goroutine of Run. It returns the error of the store, except for state.DurabilityAsync.
func (r *taskRecords) changeAndAlwaysStoreBothRecords(durability state.Durability, change func(*api.TaskState) bool) error {
	r.putOrderMu.Lock()
	defer r.putOrderMu.Unlock()
	snapshot, changed := r.changeTaskState(change)
	r.lastPutLocalState = r.localState
	awaitPut := r.putRecordsLocked(snapshot, true, durability)
	if changed {
		r.onTaskStateChange() // the allocation reacts with a later put, which may share the disk write
	}
	return awaitPut()
}

// storeBothRecords stores a change of the local state. It stores the unchanged state too, because an earlier put of the
// state may have failed.
func (r *taskRecords) storeBothRecords(durability state.Durability) error {
	return r.changeAndAlwaysStoreBothRecords(durability, func(*api.TaskState) bool { return false })
}

// putRecordsLocked puts the state, and also the local state if withLocalState is true. withLocalState must be true as
// long as the last local state is not known to be stored, because the state alone could contradict the stored local
// state. The caller holds putOrderMu, and calls awaitPut, which blocks until the put is stored, except for
// state.DurabilityAsync. If the put fails, retryFailedPut retries it, also for state.DurabilityAsync.
func (r *taskRecords) putRecordsLocked(taskState *api.TaskState, withLocalState bool, durability state.Durability) (awaitPut func() error) {
	r.lastPutNumber++
	number := r.lastPutNumber
	var waitStored state.WaitDurableFunc
	if withLocalState {
		r.lastLocalStatePutNumber = number
		waitStored = r.store.PutBothRecords(r.mergedLocalStateLocked(), taskState, durability)
	} else {
		waitStored = r.store.PutTaskState(taskState, durability)
	}
	return func() error {
		if durability != state.DurabilityAsync {
			err := waitStored()
			r.recordPutResultOrRetryLocked(number, err)
			return err
		}
		go func() {
			err := waitStored()
			r.putOrderMu.Lock()
			defer r.putOrderMu.Unlock()
			r.recordPutResultOrRetryLocked(number, err)
		}()
		return nil
	}
}

// recordPutResultOrRetryLocked records the result of the put with this number, and schedules retryFailedPut after an
// error. The caller holds putOrderMu.
func (r *taskRecords) recordPutResultOrRetryLocked(number int, err error) {
	switch {
	case number <= r.lastFinishedPutNumber:
	case err == nil:
		r.lastFinishedPutNumber = number // each put includes the content of all earlier puts
		if r.putRetryDone != nil {
			close(r.putRetryDone)
			r.putRetryDone = nil
			r.logger.Info("task stored")
		}
	case wait.IsClosed(r.runReturned):
	default:
		r.lastFinishedPutNumber = number
		if r.putRetryDone == nil {
			r.putRetryDone = make(chan struct{})
			r.logger.Error("task not stored, trying again: until it is stored, another agent does not find it as it is", "error", err)
			time.AfterFunc(putRetryDelay, r.retryFailedPut)
		}
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

// retryFailedPut puts the current records after a failed put. It is scheduled again until the records are stored or Run
// has returned.
func (r *taskRecords) retryFailedPut() {
	r.putOrderMu.Lock()
	defer r.putOrderMu.Unlock()
	if r.putRetryDone == nil || wait.IsClosed(r.runReturned) {
		return
	}
	snapshot, _ := r.changeTaskState(func(*api.TaskState) bool { return false })
	if awaitPut := r.putRecordsLocked(snapshot, true, state.DurabilitySync); awaitPut() != nil {
		time.AfterFunc(putRetryDelay, r.retryFailedPut)
	}
}

// mergedLocalStateLocked returns the local state for a put: the last local state, with the fields that other goroutines
// change. The caller holds putOrderMu.
func (r *taskRecords) mergedLocalStateLocked() state.LocalState {
	r.mu.Lock()
	defer r.mu.Unlock()
	local := r.lastPutLocalState
	local.RestartRequest, local.KillRequested, local.ReportedOnceOnlyMessages = r.restartRequest, r.killedSinceStart, r.emittedOnceMessages
	local.HookStateByName, local.ReadVariables, local.DeploymentFailure = r.hookStates, r.readVariables, r.deploymentFailure
	return local
}

func (r *taskRecords) changeTaskState(change func(*api.TaskState) bool) (snapshot *api.TaskState, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = change(r.taskState)
	return model.CopyTaskState(r.taskState), changed
}
