package record

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Record is the task state that the next agent needs. It is a value: Apply returns a changed copy, and never changes the values
// behind its pointers, maps and slices. The zero value is not valid; see New and Restore.
type Record struct {
	fields Fields
	status *api.TaskState
	// killed means this agent has been told to kill the task. It is not stored: a kill for the next agent to finish is in the
	// status, or comes again with the allocation.
	killed bool
}

// Fields is a record's content beside the task's state, for its stored form.
type Fields struct {
	HookStateByName       map[string]HookState // keyed by hook name
	AllocHookConfigByName map[string]string    // configurations of the hooks that the allocation has had, keyed by hook name
	StartID               string               // current start's id: set before StartTask is called; empty after the exit is handled, unless NextStartID replaces it
	// Handle is the task's handle; nil unless the task runs or its exit is not handled yet. It may be without its environment, which
	// the store has then.
	Handle          *driver.Handle
	NetworkOverride *driver.NetworkOverride
	// HandleUnrecoverable means Handle has no driver state, because the agent that started the task has not received it: only the
	// plugin process with the task can report its exit.
	HandleUnrecoverable bool
	UnhandledExit       *restart.RunEnd // how the start has ended; nil before, and after the restart policy has decided
	NextStartID         string          // StartID for the restart expected to follow UnhandledExit without a delay; empty if none is
	RestartState        restart.State
	RunComplete         bool            // the task will never run again
	LastEnd             *restart.RunEnd // how the last run or start has ended; nil if none has
	LastStart           time.Time       // before the last StartTask call; zero if there was none

	// FirstPendingDestroy is the start that the driver must still destroy; nil if there is none.
	FirstPendingDestroy *PendingDestroy
	// LastKnownCapabilities are the driver's capabilities as last reported, used while the driver is unavailable. It is nil until
	// the driver has reported them.
	LastKnownCapabilities *driver.Capabilities

	// RestartRequest is set from the request for a restart until the task has ended or runs again.
	RestartRequest *RestartRequest

	// KillRequested is set when an unfinished task is killed, until the task starts again. lite_after and lite_rerun depend on
	// it.
	KillRequested bool

	// ReportedOnceOnlyMessages are messages from events that the task gets only once.
	ReportedOnceOnlyMessages []string

	// ReadVariables are variable paths. The task and its hooks were given these variables' items.
	ReadVariables []string

	// DeploymentFailure is why the task made its allocation unhealthy for its latest deployment; nil if it has not.
	DeploymentFailure *restart.DeploymentFailure
}

// RestartRequest is a restart requested by a caller. It applies only to the process or finished run for which it was requested,
// not to a later one.
type RestartRequest struct {
	CountsAsFailure bool   // the restart counts as a failed attempt for the restart policy
	Reason          string // why the restart was requested, for the log
}

// HookState is a hook's response to a task's prestart call.
type HookState struct {
	// AttachmentJSON is the configuration with which a plugin was attached to the task, as JSON. It is empty for a hook without
	// an attachment.
	AttachmentJSON string

	PrestartDone bool
	Data         map[string]string
	Env          map[string]string
	Mounts       []driver.Mount
	Devices      []driver.Device
}

// PendingDestroy is a start for which the driver call DestroyTask has not succeeded yet, so its processes may still run. While
// the state has it, the task does not start again, and its allocation does not end.
type PendingDestroy struct {
	StartID string
	Handle  *driver.Handle // the start's handle; nil if StartTask returned none
	// NotFoundIsInconclusive means "task not found" proves nothing: the plugin process that should have started the task has
	// exited, and the driver does not search for tasks.
	NotFoundIsInconclusive bool
	// Next, which has no handle, is destroyed after this start; nil if there is none.
	Next *PendingDestroy
}

// New returns the record for a task that the agent has received now.
func New(now time.Time) Record {
	r := Record{fields: Fields{RestartState: restart.State{WindowStart: now}}, status: &api.TaskState{State: model.TaskPending}}
	d := draft{Record: r}
	d.addEvent(now, model.EventReceived())
	return d.Record
}

// Restore returns the record stored by an earlier agent. status is nil if that agent has stored none. A request is dropped if it
// does not apply to the record, and an unfinished kill that has failed the task continues.
func Restore(now time.Time, fields Fields, status *api.TaskState) Record {
	r := Record{fields: fields, status: status}
	if r.fields.RestartState.WindowStart.IsZero() {
		r.fields.RestartState.WindowStart = now
	}
	if status == nil {
		r.status = New(now).status
	}
	ofProcess := (fields.StartID != "" || fields.Handle != nil) && fields.UnhandledExit == nil // a stored exit says already whether a restart was requested
	if !ofProcess && !r.IsRerunRequestedByEarlierAgent() {
		r.fields.RestartRequest = nil
	}
	r.killed = r.IsKilledByEarlierAgent()
	return r
}

// Fields returns the content for the stored form. The caller must not change what it refers to.
func (r Record) Fields() Fields { return r.fields }

// Status returns a copy of the task's state, which shares its events.
func (r Record) Status() *api.TaskState { return model.CopyTaskState(r.status) }

// IsRerunRequestedByEarlierAgent reports whether a dead task was requested to run again under an earlier agent.
func (r Record) IsRerunRequestedByEarlierAgent() bool {
	return r.fields.RestartRequest != nil && r.status.State == model.TaskDead && !r.status.Failed && !r.fields.RunComplete
}

// IsKilledByEarlierAgent reports whether an earlier agent has failed the task by a kill, and has died before the task was dead.
func (r Record) IsKilledByEarlierAgent() bool {
	return r.status.Failed && r.status.State != model.TaskDead
}

// MayRerun reports whether the task has ended successfully and may run again on request.
func (r Record) MayRerun() bool {
	return r.status.State == model.TaskDead && !r.status.Failed && !r.killed
}

// IsKilled reports whether this agent has been told to kill the task.
func (r Record) IsKilled() bool { return r.killed }

// HookState returns a hook's state; the zero value if there is none.
func (r Record) HookState(name string) HookState { return r.fields.HookStateByName[name] }

// PredictedDecision returns the decision that the fact Decided would make now, without the delay's jitter. A later kill, restart
// request or task version may change the decision.
func (r Record) PredictedDecision(now time.Time, policy restart.Policy, outcome restart.RunOutcome) restart.Decision {
	decision, _ := r.decide(now, policy, outcome, func(int64) int64 { return 0 })
	return decision
}

func (r Record) decide(now time.Time, policy restart.Policy, outcome restart.RunOutcome, randomInt64N func(int64) int64) (restart.Decision, restart.State) {
	outcome.Killed = r.killed
	return policy.Decide(r.fields.RestartState, now, outcome, randomInt64N)
}

// RemainingDelay returns the time until the task starts again: the rest of the last decision's delay.
func (r Record) RemainingDelay(now time.Time) time.Duration {
	return r.fields.RestartState.RemainingDelay(now)
}

// HooksCalledOrStarted reports whether an agent has called hooks for the task or has started it.
func (r Record) HooksCalledOrStarted() bool {
	f := r.fields
	return len(f.HookStateByName) > 0 || f.StartID != "" || f.FirstPendingDestroy != nil || f.RunComplete || r.status.State != model.TaskPending
}

// AttachmentJSONByHookName returns the configurations of the hooks attached to the task, by hook name. It returns nil if there
// were none.
func (r Record) AttachmentJSONByHookName() map[string]string {
	var attachments map[string]string
	for name, hook := range r.fields.HookStateByName {
		if hook.AttachmentJSON != "" {
			if attachments == nil {
				attachments = make(map[string]string)
			}
			attachments[name] = hook.AttachmentJSON
		}
	}
	return attachments
}

// HandleStartID returns the id of the start that Handle belongs to; empty if there is no handle.
func (f *Fields) HandleStartID() string {
	switch {
	case f.Handle == nil:
		return ""
	case f.Handle.Config == nil:
		return f.StartID
	}
	return f.Handle.Config.ID
}

// Handles yields the content's handles, each with the id of its start. A handle may come twice.
func (f *Fields) Handles() iter.Seq2[string, *driver.Handle] {
	return func(yield func(string, *driver.Handle) bool) {
		if f.Handle != nil && !yield(f.HandleStartID(), f.Handle) {
			return
		}
		for d := f.FirstPendingDestroy; d != nil; d = d.Next {
			if d.Handle != nil && !yield(d.StartID, d.Handle) {
				return
			}
		}
	}
}

// StartsToDestroy returns the starts that the driver must destroy to end the task, in this order: pending destroys, the current
// start, the next start.
func (f *Fields) StartsToDestroy() (starts []PendingDestroy) {
	for d := f.FirstPendingDestroy; d != nil; d = d.Next {
		starts = append(starts, *d)
	}
	if f.FirstPendingDestroy == nil && f.StartID != "" {
		starts = append(starts, PendingDestroy{StartID: f.StartID, Handle: f.Handle})
	}
	if f.NextStartID != "" {
		starts = append(starts, PendingDestroy{StartID: f.NextStartID})
	}
	return starts
}

// Start is the state of a task's last start according to its record.
type Start int

const (
	NoStart     Start = iota // there is no start
	WithID                   // the record has a start's id, and no handle
	RunningByID              // like WithID, and the task state is running: the handle was lost
	WithHandle               // the record has the start's handle
	Lost                     // the task state is running, but the record has neither the start's id nor its handle
	Ended                    // the record has the start's exit, or the task is dead
	WithNextID               // the record has a start's exit, and the id of the start after that exit

	StartCount // number of Start values
)

// LastStart returns the last start's state.
func (r Record) LastStart() Start {
	f := r.fields
	switch {
	case f.UnhandledExit != nil && f.NextStartID != "":
		return WithNextID
	case f.UnhandledExit != nil || r.status.State == model.TaskDead:
		return Ended
	case f.Handle != nil:
		return WithHandle
	case f.StartID != "" && r.status.State == model.TaskRunning:
		return RunningByID
	case f.StartID != "":
		return WithID
	case r.status.State == model.TaskRunning:
		return Lost
	}
	return NoStart
}

// withHookState returns a copy of states with one changed.
func withHookState(states map[string]HookState, name string, s HookState) map[string]HookState {
	states = maps.Clone(states)
	if states == nil {
		states = make(map[string]HookState)
	}
	states[name] = s
	return states
}

// withElement returns a slice with one more element, and leaves elements alone.
func withElement(elements []string, e string) []string { return append(slices.Clone(elements), e) }
