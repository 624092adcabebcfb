package agent

import (
	"github.com/nomad-lite/nomad-lite/runtime/core/noderunner"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// emitOutputLoss adds an event about lost or resumed output to the task.
func emitOutputLoss(allocs *noderunner.Runner, loss logs.OutputLoss) {
	runner := allocs.AllocRunner(loss.AllocID)
	if runner == nil {
		return
	}
	event := model.EventOutputLost(string(loss.Stream), loss.DroppedBytes, loss.Reason)
	if loss.WritingResumed {
		event = model.EventOutputResumed(string(loss.Stream), loss.DroppedBytes)
	}
	_ = runner.EmitEvent(loss.Task, event) // fails only for an unknown task, which has no events
}
