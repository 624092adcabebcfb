package taskrunner

import (
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/model"
)

// State returns a copy of the task's state.
func (r *Runner) State() *api.TaskState {
	state, _ := r.Snapshot()
	return state
}

// Snapshot returns State, and reports whether the task was killed since its last start
// and before it had finished.
func (r *Runner) Snapshot() (state *api.TaskState, killed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return model.CopyTaskState(r.records.state), r.records.killed
}

// EmitEvent adds an event to the task. Events are for display only. The runner owns the
// event afterwards.
func (r *Runner) EmitEvent(event *api.TaskEvent) { r.records.emit(event) }

// EmitEventOnce is EmitEvent for an event that the task gets only once, even if another
// plugin process sends it again: the messages are stored with the task. After 16
// messages further ones are ignored.
func (r *Runner) EmitEventOnce(event *api.TaskEvent) { r.records.emitOnce(event) }

func terminatedEvent(result driver.ExitResult) *api.TaskEvent {
	message := ""
	if result.Err != nil {
		message = result.Err.Error()
	}
	return model.EventTerminated(result.ExitCode, result.Signal, result.OOMKilled, message)
}
