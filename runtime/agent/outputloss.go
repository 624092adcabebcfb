package agent

import (
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// reportOutputLoss adds an event about lost or resumed output to the task, and makes the agent look at its conditions. It does not
// block.
func (a *Agent) reportOutputLoss(loss logs.OutputLoss) {
	if runner := a.Alloc(loss.AllocID); runner != nil {
		event := model.EventOutputLost(string(loss.Stream), loss.DroppedBytes, loss.Reason)
		if loss.WritingResumed {
			event = model.EventOutputResumed(string(loss.Stream), loss.DroppedBytes)
		}
		_ = runner.EmitEvent(loss.Task, event) // fails only for an unknown task, which has no events
	}
	a.conditions.LookNow()
}
