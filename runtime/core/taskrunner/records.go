package taskrunner

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/redact"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core"
	"github.com/nomad-lite/nomad-lite/runtime/core/record"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskenv"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// TaskRecordStore stores one task's record: the task's state, and the fields beside it. The calls do not block; the returned
// WaitDurableFunc blocks until the record is on the disk. Records reach the disk in put order, across all tasks. Neither the
// runner nor the store changes a record after the call. The calls for one task do not overlap. PutBothRecords stores either both
// parts or none, because the process's exit and the task's state must not contradict each other after a crash.
type TaskRecordStore interface {
	PutTaskState(*api.TaskState, state.Durability) state.WaitDurableFunc
	PutBothRecords(record.Fields, *api.TaskState, state.Durability) state.WaitDurableFunc

	// TaskHandle returns a stored start's handle with its environment; nil if there is none. See [core.Store].
	TaskHandle(startID string) (*driver.Handle, error)
}

// taskRecords holds a task's record, and stores it. Its methods may be called from any goroutine.
type taskRecords struct {
	store             TaskRecordStore
	onTaskStateChange func()          // called after each change of the task's state
	runReturned       <-chan struct{} // closed by Run; then failed puts are no longer retried
	env               *taskenv.Builder
	secrets           *redact.Values // removed from texts before they are stored
	timeline          timeline.Recorder
	metrics           core.Metrics // nil counts nothing
	alloc             *Alloc
	taskName          string
	logger            hclog.Logger

	mu                    sync.Mutex // also guards the fields of taskRequests and Runner.transitions, and is held during each store call
	record                record.Record
	lastPutNumber         int           // last put's number; the first one has the number 1
	lastFieldsPutNumber   int           // number of the last put with the fields
	lastFinishedPutNumber int           // number of the last put with a known result; results from earlier ones do not count
	putRetryDone          chan struct{} // not nil while a failed put is retried (see retryFailedPut); closed when the record is stored
}

// newStartID returns a new random id for one start. Drivers use the id as a key, so an id must never repeat, not even after an
// agent or plugin restart.
func (r *taskRecords) newStartID() string {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return fmt.Sprintf("%s/%s/%s", r.alloc.ID, r.taskName, hex.EncodeToString(b[:]))
}

// wildcardStartID returns the id with which DestroyTask destroys all starts of the task.
func (r *taskRecords) wildcardStartID() string {
	return r.alloc.ID + "/" + r.taskName + "/" + driver.WildcardStart
}

// current returns the record.
func (r *taskRecords) current() record.Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.record
}

// completeHandle returns a start's handle with its environment, or nil if neither the store nor the record has the start.
func (r *taskRecords) completeHandle(startID string) *driver.Handle {
	stored, err := r.store.TaskHandle(startID)
	if err != nil {
		r.logger.Error("handle of task lost, its driver may not recover it", "task_id", startID, "error", err)
	}
	if stored == nil { // it is not stored yet, so the record still has the environment
		fields := r.fields()
		for id, h := range fields.Handles() {
			if id == startID {
				return h
			}
		}
	}
	return stored
}

// fields returns the record's content beside the task's state.
func (r *taskRecords) fields() record.Fields { return r.current().Fields() }

// commit applies a fact to the record, stores the change, and calls onTaskStateChange if the change concerns the allocation. It
// blocks until the change is stored if the fact requires it. retryFailedPut retries a failed put.
func (r *taskRecords) commit(f record.Fact) record.Change {
	change, _ := r.commitOrError(f)
	return change
}

// commitOrError is commit for a caller that must not continue after a failed put. It returns the put's error.
func (r *taskRecords) commitOrError(f record.Fact) (record.Change, error) {
	return r.commitIf(func(record.Record) record.Fact { return f })
}

// commitIf is commitOrError for a fact that depends on the record, or on fields guarded by the mutex mu. It calls factOf with mu
// held; factOf returns nil for no fact.
func (r *taskRecords) commitIf(factOf func(record.Record) record.Fact) (change record.Change, err error) {
	r.mu.Lock()
	f := factOf(r.record)
	if f == nil {
		r.mu.Unlock()
		return record.Change{}, nil
	}
	r.record, change = record.Apply(r.record, f)
	r.reportEvents(change)
	awaitPut := r.putLocked(change.Put, durabilityOf[change.Durability])
	r.mu.Unlock()
	if change.TellAlloc {
		r.onTaskStateChange() // the allocation reacts with a later put, which may share the disk write
	}
	return change, awaitPut()
}

// durabilityOf maps the durabilities of changes with a put.
var durabilityOf = map[record.Durability]state.Durability{
	record.Soon: state.DurabilityAsync, record.Grouped: state.DurabilityGrouped, record.Now: state.DurabilitySync,
}

// reportEvents adds what has happened to the task's counters and time line.
func (r *taskRecords) reportEvents(change record.Change) {
	for _, event := range change.Events {
		r.countStartOrOOMKill(event)
		if !model.IsEventOfOngoingOperation(event) {
			r.timeline.RecordEvent(event.Type, event.DisplayMessage, time.Unix(0, event.Time))
		}
	}
	if change.Ended {
		r.countEnd(change.Failed)
	}
}

// redacted removes the task's secrets from an event, because API clients can read events, and returns it. The event may be nil.
func (r *taskRecords) redacted(event *api.TaskEvent) *api.TaskEvent {
	if event != nil && !r.secrets.IsEmpty() {
		model.RedactTaskEvent(event, r.secrets.Text)
	}
	return event
}

// previousHookState returns a copy of a hook's stored data, for the field PreviousState in a request.
func (r *taskRecords) previousHookState(name string) map[string]string {
	return maps.Clone(r.current().HookState(name).Data)
}

// storeHookData stores a hook's data, and blocks until it is on the disk. If it returns an error, the data is set nevertheless,
// and retryFailedPut stores it.
func (r *taskRecords) storeHookData(name string, data map[string]string) error {
	_, err := r.commitOrError(record.HookDataStored{Hook: name, Data: data})
	return err
}

// emitEvent adds an event to the task. The caller must not change the event afterwards.
func (r *taskRecords) emitEvent(event *api.TaskEvent) {
	r.commit(record.EventEmitted{Now: time.Now(), Event: r.redacted(event)})
}

// putLocked puts the given parts of the record. It puts the fields, too, as long as the last ones are not known to be stored,
// because the state alone could contradict the stored fields. The caller holds mu, and calls awaitPut without it. awaitPut blocks
// until the put is stored, except for state.DurabilityAsync. If the put fails, retryFailedPut retries it.
func (r *taskRecords) putLocked(parts record.Parts, durability state.Durability) (awaitPut func() error) {
	if parts == 0 {
		return func() error { return nil }
	}
	r.lastPutNumber++
	number := r.lastPutNumber
	var waitStored state.WaitDurableFunc
	if parts&record.FieldsPart != 0 || r.lastFieldsPutNumber > r.lastFinishedPutNumber || r.putRetryDone != nil {
		r.lastFieldsPutNumber = number
		waitStored = r.store.PutBothRecords(r.record.Fields(), r.record.Status(), durability)
	} else {
		waitStored = r.store.PutTaskState(r.record.Status(), durability)
	}
	await := func() error {
		err := waitStored()
		r.mu.Lock()
		defer r.mu.Unlock()
		r.recordPutResultOrRetryLocked(number, err)
		return err
	}
	if durability != state.DurabilityAsync {
		return await
	}
	return func() error {
		go await()
		return nil
	}
}

// recordPutResultOrRetryLocked records the result of the put with this number, and schedules retryFailedPut after an error. The
// caller holds mu.
func (r *taskRecords) recordPutResultOrRetryLocked(number int, err error) {
	switch {
	case number <= r.lastFinishedPutNumber:
	case err == nil:
		r.lastFinishedPutNumber = number // each put includes everything from all earlier puts
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

// awaitRecordStored blocks until no put has to be retried, and returns true, or until ctx is done, and returns false.
func (r *taskRecords) awaitRecordStored(ctx context.Context) bool {
	r.mu.Lock()
	retryDone := r.putRetryDone
	r.mu.Unlock()
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

// retryFailedPut puts the current record after a failed put. It is scheduled again until the record is stored or Run
// has returned.
func (r *taskRecords) retryFailedPut() {
	r.mu.Lock()
	if r.putRetryDone == nil || wait.IsClosed(r.runReturned) {
		r.mu.Unlock()
		return
	}
	awaitPut := r.putLocked(record.AllParts, state.DurabilitySync)
	r.mu.Unlock()
	if awaitPut() != nil {
		time.AfterFunc(putRetryDelay, r.retryFailedPut)
	}
}
