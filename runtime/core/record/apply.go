package record

import (
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

// Fact is an event in a task's life. Only this package has facts.
type Fact interface {
	// apply changes d.Record and d.Change.
	apply(d *draft)
}

// Parts is a set of record parts, which are stored apart.
type Parts uint8

// The parts.
const (
	StatusPart Parts = 1 << iota // the task's state
	FieldsPart                   // the content of Fields
	AllParts   = StatusPart | FieldsPart
)

// Durability says how soon a change must be on the disk.
type Durability int

// The durabilities.
const (
	WithNextPut Durability = iota // with the next put, whatever it is for: a crash before may lose the change
	Soon                          // the caller does not wait for the put
	Grouped                       // the caller waits, and the store may delay the put to write several at once
	Now                           // the caller waits
)

// Change lists the consequences of a fact.
type Change struct {
	Put        Parts // parts to put now; none for WithNextPut
	Durability Durability
	TellAlloc  bool             // the allocation must react: the task's state has changed, or the task was killed
	Events     []*api.TaskEvent // events added to the task's state
	Ended      bool             // the task has become dead
	Failed     bool             // with Ended: the task has failed
	Decision   restart.Decision // for Decided
}

// Applied reports whether the fact requires a put or a call to the allocation. It is false for a second request, for example.
func (c Change) Applied() bool { return c.Put != 0 || c.TellAlloc }

// Apply returns the record after a fact, and the consequences. It does not change r.
func Apply(r Record, f Fact) (Record, Change) {
	d := draft{Record: r}
	f.apply(&d)
	d.Failed = d.Ended && d.status.Failed
	return d.Record, d.Change
}

// draft is a record while a fact is being applied to it.
type draft struct {
	Record
	Change
}

// editStatus returns the task's state. The caller may change it.
func (d *draft) editStatus() *api.TaskState {
	d.status = model.CopyTaskState(d.status)
	d.TellAlloc = true
	return d.status
}

// put marks the whole record for a put.
func (d *draft) put(durability Durability) { d.Put, d.Durability = AllParts, durability }

// addEvent adds a copy of event. It ignores a nil event.
func (d *draft) addEvent(now time.Time, event *api.TaskEvent) {
	if event == nil {
		return
	}
	added := *event
	model.AppendTaskEvent(d.editStatus(), &added, now)
	d.Events = append(d.Events, &added)
}

// setState sets the task's state: pending, running or dead.
func (d *draft) setState(now time.Time, state string) {
	if d.status.State == state {
		return
	}
	d.Ended = state == model.TaskDead
	model.SetTaskState(d.editStatus(), state, now)
}

// recordEnd records how the task's run or start attempt has ended.
func (d *draft) recordEnd(now time.Time, end restart.RunEnd) *restart.RunEnd {
	f := &d.fields
	end.Time, end.OutputStart = now, f.LastStart
	end.Stopped = d.killed && !d.status.Failed
	if request := f.RestartRequest; request != nil && !end.StartFailed {
		end.RestartRequested, end.RestartCountsAsFailure, end.RequestReason = true, request.CountsAsFailure, request.Reason
	}
	if end.IsFailure() {
		end.RunsInRow = 1
		if last := f.LastEnd; last != nil && end.HasCauseOf(last) && (end.StartFailed || now.Sub(d.status.StartedAt) < restart.RecoveredAfter) {
			end.RunsInRow += last.RunsInRow
		}
	}
	f.LastEnd = &end
	return &end
}

// recordExit records that the process has ended. The exit fulfils a restart request.
func (d *draft) recordExit(now time.Time, end restart.RunEnd) {
	d.fields.UnhandledExit = d.recordEnd(now, end)
	d.fields.RestartRequest = nil
}

// clearRestartDelay records that the task starts now.
func (d *draft) clearRestartDelay() {
	d.fields.RestartState = d.fields.RestartState.WithoutDelay()
}

// forgetStart removes the current start.
func (d *draft) forgetStart() {
	f := &d.fields
	f.StartID, f.Handle, f.NetworkOverride, f.HandleUnrecoverable = "", nil, nil, false
}
