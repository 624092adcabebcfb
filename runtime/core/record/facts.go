package record

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// The facts. The caller redacts their texts and events, and provides times, random numbers and new ids. Neither Apply nor the
// caller changes the values behind a fact's pointers, maps and slices.
type (
	// CapabilitiesSeen means the driver has reported its capabilities.
	CapabilitiesSeen struct{ Capabilities *driver.Capabilities }

	// HooksAttached means hooks are attached to the task and its allocation, with these configurations.
	HooksAttached struct {
		AllocConfigByName    map[string]string // the allocation's hooks
		AttachmentJSONByName map[string]string // the task's hooks
	}

	// HookAnswered means a hook has answered Prestart. If the answer changes something before a start, the next start gets a new
	// id, and that id's put stores the answer at the latest.
	HookAnswered struct {
		Hook           string
		Failed         bool              // only the answer's data is valid
		AlreadyRunning bool              // the task runs: it was started by an earlier agent
		DataAtCall     map[string]string // the hook's data when it was called
		Data           map[string]string // the answer's data; nil if Failed and the answer has none
		Done           bool
		Env            map[string]string
		Mounts         []driver.Mount
		Devices        []driver.Device
	}

	// HookDataStored means a hook stores data.
	HookDataStored struct {
		Hook string
		Data map[string]string
	}

	// StartChosen means the task is about to start. CandidateID becomes the start's id unless the record has one already. If the
	// put fails, StartTask is not called: either StartFailed and Decided follow, or UnusedStartDropped, and remove the id.
	StartChosen struct {
		LastStart   time.Time // not after the process's first output
		CandidateID string
	}

	// Started means the driver has started the task.
	Started struct {
		Now           time.Time
		Handle        *driver.Handle // without the driver config, which must not be stored
		Network       *driver.NetworkOverride
		Unrecoverable bool
	}

	// HandleStored means the store has the start's handle, so the record keeps it only without its environment.
	HandleStored struct{ WithoutEnv *driver.Handle }

	// StartFailed means an attempt to start the task has failed.
	StartFailed struct {
		Now   time.Time
		Error string
	}

	// NothingExecuted means an earlier agent's last start has certainly executed nothing.
	NothingExecuted struct{}

	// Adopted means the driver has the task from an interrupted start.
	Adopted struct {
		Handle        *driver.Handle // without the driver config, which must not be stored
		Network       *driver.NetworkOverride
		Unrecoverable bool
	}

	// TakenOver means this agent watches a process that an earlier agent has started.
	TakenOver struct{ Now time.Time }

	// Exited means the process has ended. CandidateID becomes the next start's id if the policy restarts the task at once, so
	// that the start needs no put. If the put fails, the step waits until a later put has stored the exit and the id, or until
	// the task is killed. A killed task is not started.
	Exited struct {
		Now         time.Time
		End         restart.RunEnd // exit status, signal and error from the driver
		Policy      restart.Policy
		CandidateID string
		Event       *api.TaskEvent
	}

	// ExitUnknown means an earlier agent's start has ended with an unknown exit status.
	ExitUnknown struct {
		Now   time.Time
		Error string
	}

	// Decided means the restart policy decides now about a task that has ended or was not started.
	Decided struct {
		Now          time.Time
		Policy       restart.Policy
		Outcome      restart.RunOutcome
		RandomInt64N func(int64) int64 // for the delay's jitter
		KilledEvent  *api.TaskEvent    // for a killed task; nil for no event
		NextMayRun   bool              // the start after the exit may have been executed: if the policy does not start the task now, the driver must destroy it
	}

	// RestartRequested means a caller requests a restart for the process.
	RestartRequested struct {
		Now     time.Time
		Request RestartRequest
		Event   *api.TaskEvent
	}

	// RestartFailed means the process was not stopped for the requested restart.
	RestartFailed struct{}

	// RerunRequested means a caller requests another run of the dead task, which has succeeded.
	RerunRequested struct {
		Now     time.Time
		Request RestartRequest
		Event   *api.TaskEvent
	}

	// RerunCancelled means the requested rerun is not needed.
	RerunCancelled struct{}

	// RerunBegun means a dead task runs again on request. Decided follows.
	RerunBegun struct{}

	// Killed means the task must end for good.
	Killed struct {
		Now   time.Time
		Event *api.TaskEvent // nil for no event
	}

	// DestroyOwed means a start may have processes, and the driver must destroy it.
	DestroyOwed struct{ Start PendingDestroy }

	// UndecidedStartOwed means the runner will not query the driver again about an earlier agent's last start. The driver must
	// destroy each start in the record, even one with a stored exit.
	UndecidedStartOwed struct{}

	// Destroyed means the driver has destroyed the first pending start.
	Destroyed struct{}

	// AllDestroyed means the driver has destroyed all starts, and no other put may come for a long time.
	AllDestroyed struct{}

	// DestroyDoubtful means the first attempt to destroy an earlier agent's starts has failed. The plugin process that started
	// them may exit before the next attempt.
	DestroyDoubtful struct{ DriverFindsTasksByName bool }

	// UnusedStartDropped means StartTask is not called with the stored id, so the next agent need not search for its processes.
	UnusedStartDropped struct{}

	// Rebooted means the machine has booted since the record was stored.
	Rebooted struct{ Now time.Time }

	// FilesLost means the task's files are lost: it starts as a new task, and its hooks keep their data.
	FilesLost struct{ Now time.Time }

	// Died means the task does not run again under this agent.
	Died struct{ Now time.Time }

	// Completed means the task never runs again.
	Completed struct{}

	// EventEmitted adds an event.
	EventEmitted struct {
		Now   time.Time
		Event *api.TaskEvent
	}

	// EventEmittedOnce adds an event unless the task has got one with the same message before, or 16 other ones.
	EventEmittedOnce struct {
		Now   time.Time
		Event *api.TaskEvent // with its display message
	}

	// VariableRead means the task, or a hook for it, was given a variable's items. After 1,000 paths further ones are ignored.
	VariableRead struct{ Path string }

	// Unhealthy means the task makes its allocation unhealthy for a deployment.
	Unhealthy struct {
		Now     time.Time
		Failure restart.DeploymentFailure // without End
		Event   *api.TaskEvent
	}
)

const (
	maxReportedMessages = 16
	maxReadVariables    = 1000
)

func (f CapabilitiesSeen) apply(d *draft) { d.fields.LastKnownCapabilities = f.Capabilities }

func (f HooksAttached) apply(d *draft) {
	d.fields.AllocHookConfigByName = f.AllocConfigByName
	for name, attachment := range f.AttachmentJSONByName {
		s := d.HookState(name)
		s.AttachmentJSON = attachment
		d.fields.HookStateByName = withHookState(d.fields.HookStateByName, name, s)
	}
}

func (f HookAnswered) apply(d *draft) {
	was := d.HookState(f.Hook)
	s := was
	// If the hook has stored data during the call, the record no longer has DataAtCall, and an answer with DataAtCall does not
	// replace it.
	if (!f.Failed || f.Data != nil) && !maps.Equal(f.DataAtCall, f.Data) {
		s.Data = f.Data
	}
	if !f.Failed {
		s.PrestartDone, s.Env, s.Mounts, s.Devices = f.Done, f.Env, f.Mounts, f.Devices
	}
	if reflect.DeepEqual(was, s) {
		return
	}
	d.fields.HookStateByName = withHookState(d.fields.HookStateByName, f.Hook, s)
	if !f.AlreadyRunning {
		d.fields.StartID = ""
	}
	d.put(Soon)
}

func (f HookDataStored) apply(d *draft) {
	s := d.HookState(f.Hook)
	if maps.Equal(s.Data, f.Data) && (s.Data == nil) == (f.Data == nil) {
		return
	}
	s.Data = f.Data
	d.fields.HookStateByName = withHookState(d.fields.HookStateByName, f.Hook, s)
	d.put(Grouped)
}

func (f StartChosen) apply(d *draft) {
	d.clearRestartDelay()
	d.fields.LastStart = f.LastStart
	if d.fields.StartID == "" { // Exited has stored no id for this start
		d.fields.StartID = f.CandidateID
		d.put(Now)
	}
}

func (f Started) apply(d *draft) {
	r := &d.fields
	r.Handle, r.NetworkOverride, r.HandleUnrecoverable = f.Handle, f.Network, f.Unrecoverable
	r.KillRequested = d.killed // a kill during the start is a kill for this process
	d.setState(f.Now, model.TaskRunning)
	d.addEvent(f.Now, model.EventStarted())
	d.put(Grouped)
}

func (f HandleStored) apply(d *draft) {
	if d.fields.Handle != nil && d.fields.HandleStartID() == f.WithoutEnv.Config.ID {
		d.fields.Handle = f.WithoutEnv
	}
}

func (f StartFailed) apply(d *draft) {
	d.recordEnd(f.Now, restart.RunEnd{StartFailed: true, Error: f.Error})
}

func (NothingExecuted) apply(d *draft) {
	if d.LastStart() == WithNextID {
		d.fields.NextStartID = ""
		return
	}
	d.forgetStart()
	d.fields.RestartRequest = nil
}

func (f Adopted) apply(d *draft) {
	d.fields.Handle, d.fields.NetworkOverride, d.fields.HandleUnrecoverable = f.Handle, f.Network, f.Unrecoverable
	d.put(Now)
}

func (f TakenOver) apply(d *draft) {
	if d.status.State == model.TaskRunning {
		return
	}
	d.clearRestartDelay()
	d.setState(f.Now, model.TaskRunning)
	d.addEvent(f.Now, model.EventStarted())
	d.put(Grouped)
}

func (f Exited) apply(d *draft) {
	d.recordExit(f.Now, f.End)
	if !f.End.StatusUnknown {
		if next := d.PredictedDecision(f.Now, f.Policy, d.fields.UnhandledExit.Outcome()); next.Action == restart.ActionRestart && next.Delay == 0 {
			d.fields.NextStartID = f.CandidateID
		}
	}
	d.addEvent(f.Now, f.Event)
	d.put(Now)
}

func (f ExitUnknown) apply(d *draft) {
	d.recordExit(f.Now, restart.RunEnd{StatusUnknown: true, Error: f.Error})
	d.addEvent(f.Now, model.EventRestoreFailed(f.Error))
	d.put(Now)
}

func (f Decided) apply(d *draft) {
	r := &d.fields
	d.Decision, r.RestartState = d.decide(f.Now, f.Policy, f.Outcome, f.RandomInt64N)
	decision, next := d.Decision, r.NextStartID
	restarts := decision.Action == restart.ActionRestart
	mustWait := decision.Delay > 0 || r.FirstPendingDestroy != nil && !f.NextMayRun // a start already running waits for no destroy
	if !restarts || mustWait {
		next = ""
	}
	if f.NextMayRun && next == "" {
		r.FirstPendingDestroy = r.FirstPendingDestroy.with(PendingDestroy{StartID: r.NextStartID})
	}
	if restarts && r.LastEnd != nil {
		decided := *r.LastEnd
		decided.NextStart = r.RestartState.NextStart
		r.LastEnd = &decided
	}
	d.forgetStart()
	r.StartID, r.NextStartID, r.UnhandledExit, r.RestartRequest = next, "", nil, nil
	switch decision.Action {
	case restart.ActionFinish:
		d.setState(f.Now, model.TaskDead)
	case restart.ActionKill:
		d.setState(f.Now, model.TaskDead)
		d.addEvent(f.Now, f.KilledEvent)
	case restart.ActionGiveUp:
		d.setState(f.Now, model.TaskDead)
		d.addEvent(f.Now, model.EventNotRestarting(decision.Reason))
	case restart.ActionRestart:
		d.setState(f.Now, model.TaskPending)
		d.addEvent(f.Now, model.EventRestarting(decision.Reason, decision.Delay))
	}
	d.put(Soon)
}

func (f RestartRequested) apply(d *draft) {
	if d.fields.RestartRequest != nil {
		return
	}
	d.fields.RestartRequest = &f.Request
	d.addEvent(f.Now, f.Event)
	d.put(Now)
}

func (RestartFailed) apply(d *draft) {
	d.fields.RestartRequest = nil
	d.put(Soon)
}

func (f RerunRequested) apply(d *draft) {
	if d.MayRerun() {
		RestartRequested(f).apply(d)
	}
}

func (RerunCancelled) apply(d *draft) { d.fields.RestartRequest = nil }

func (RerunBegun) apply(d *draft) {
	model.ResetTaskForRerun(d.editStatus())
	d.fields.LastEnd = nil
	d.Put, d.Durability = StatusPart, Now
}

func (f Killed) apply(d *draft) {
	if d.killed {
		return
	}
	d.killed = true
	unfinished := d.status.FinishedAt.IsZero()
	d.fields.KillRequested = d.fields.KillRequested || unfinished
	// An existing event comes from an earlier agent, which died before it killed the task.
	if f.Event != nil && unfinished && model.LastEventOfTypeSinceStart(d.status, f.Event.Type) == nil {
		d.addEvent(f.Now, f.Event)
	}
	d.TellAlloc = true
	d.put(Now)
}

func (f DestroyOwed) apply(d *draft) {
	d.fields.FirstPendingDestroy = d.fields.FirstPendingDestroy.with(f.Start)
}

// with returns the list with one more start, or with new data for a start already in the list.
func (p *PendingDestroy) with(start PendingDestroy) *PendingDestroy {
	switch {
	case p == nil:
		return &start
	case p.StartID == start.StartID:
		start.Next = p.Next
		return &start
	}
	start.Handle = nil // the driver destroys by id, too
	longer := *p
	longer.Next = p.Next.with(start)
	return &longer
}

func (UndecidedStartOwed) apply(d *draft) {
	r := &d.fields
	r.FirstPendingDestroy = r.FirstPendingDestroy.with(PendingDestroy{StartID: r.StartID, Handle: r.Handle})
	if r.NextStartID != "" {
		r.FirstPendingDestroy = r.FirstPendingDestroy.with(PendingDestroy{StartID: r.NextStartID})
		r.NextStartID = ""
	}
	if r.UnhandledExit == nil {
		r.StartID = ""
	}
}

func (Destroyed) apply(d *draft) {
	if owed := d.fields.FirstPendingDestroy; owed != nil {
		d.fields.FirstPendingDestroy = owed.Next
	}
}

func (AllDestroyed) apply(d *draft) { d.put(Soon) }

func (f DestroyDoubtful) apply(d *draft) {
	d.fields.FirstPendingDestroy = d.fields.FirstPendingDestroy.doubtful(f.DriverFindsTasksByName)
}

// doubtful returns the list for an attempt by another plugin process, which finds a start only by its handle or by its names.
// Without these, its answer "not found" proves nothing.
func (p *PendingDestroy) doubtful(findsTasksByName bool) *PendingDestroy {
	if p == nil {
		return nil
	}
	later := *p
	later.NotFoundIsInconclusive = p.Handle == nil && !findsTasksByName
	later.Next = p.Next.doubtful(findsTasksByName)
	return &later
}

func (UnusedStartDropped) apply(d *draft) {
	r := &d.fields
	switch {
	case r.NextStartID != "":
		r.NextStartID = ""
	case r.StartID != "" && r.Handle == nil && r.UnhandledExit == nil:
		r.StartID = ""
	default:
		return
	}
	d.put(Soon)
}

// No driver is called for a start before a boot, because some drivers would take an unrelated process with the same pid for the task.
func (f Rebooted) apply(d *draft) {
	r := &d.fields
	r.FirstPendingDestroy, r.NextStartID = nil, ""
	if d.status.State == model.TaskDead || r.UnhandledExit != nil {
		return
	}
	d.forgetStart()
	r.RestartRequest = nil
	if d.status.State == model.TaskRunning {
		r.LastEnd = nil
		d.setState(f.Now, model.TaskPending)
		d.addEvent(f.Now, model.EventRestoreFailed("the machine was booted since; the task is started again"))
		d.put(Now)
	}
}

func (f FilesLost) apply(d *draft) {
	hooks := maps.Clone(d.fields.HookStateByName)
	for name, was := range hooks {
		hooks[name] = HookState{AttachmentJSON: was.AttachmentJSON, Data: was.Data}
	}
	r := &d.fields
	d.fields = Fields{
		HookStateByName: hooks, LastKnownCapabilities: r.LastKnownCapabilities, RestartState: r.RestartState, KillRequested: r.KillRequested,
		ReportedOnceOnlyMessages: r.ReportedOnceOnlyMessages, ReadVariables: r.ReadVariables, DeploymentFailure: r.DeploymentFailure,
	}
	if d.status.State != model.TaskPending {
		model.ResetTaskForRerun(d.editStatus())
		d.setState(f.Now, model.TaskPending)
	}
	d.put(Now)
}

func (f Died) apply(d *draft) {
	d.setState(f.Now, model.TaskDead)
	d.put(Soon)
}

func (Completed) apply(d *draft) {
	if !d.fields.RunComplete {
		d.fields.RunComplete = true
		d.put(Soon)
	}
}

func (f EventEmitted) apply(d *draft) {
	d.addEvent(f.Now, f.Event)
	d.Put, d.Durability = StatusPart, Soon
}

func (f EventEmittedOnce) apply(d *draft) {
	messages := d.fields.ReportedOnceOnlyMessages
	if len(messages) >= maxReportedMessages || slices.Contains(messages, f.Event.DisplayMessage) {
		return
	}
	d.fields.ReportedOnceOnlyMessages = withElement(messages, f.Event.DisplayMessage)
	d.addEvent(f.Now, f.Event)
	d.put(Soon)
}

func (f VariableRead) apply(d *draft) {
	paths := d.fields.ReadVariables
	if len(paths) < maxReadVariables && !slices.Contains(paths, f.Path) {
		d.fields.ReadVariables = withElement(paths, f.Path)
		d.put(Grouped)
	}
}

func (f Unhealthy) apply(d *draft) {
	failure := f.Failure
	failure.Time = f.Now
	// An earlier run's end does not explain why a task is unhealthy after running for long.
	if end := d.fields.LastEnd; end.IsFailure() && (d.status.State != model.TaskRunning || f.Now.Sub(d.status.StartedAt) < restart.RecoveredAfter) {
		failure.End = end
	}
	d.fields.DeploymentFailure = &failure
	d.addEvent(f.Now, f.Event)
	d.put(Grouped)
}
