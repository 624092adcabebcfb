package agent

import (
	"context"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// outputLossReporter adds events to tasks and to the node when output of tasks cannot be written, usually because the disk is
// full, and when the output is written again.
type outputLossReporter struct {
	allocRunner   func(id string) *allocrunner.Runner
	outputLossErr func() error // returns nil while the output of all tasks is written and the disk has space
	addNodeEvent  func(ctx context.Context, message string) error
	logger        hclog.Logger
	lossReported  chan struct{} // reportLoss sends a value
}

func newOutputLossReporter(a *Agent) *outputLossReporter {
	return &outputLossReporter{
		allocRunner: a.Alloc,
		outputLossErr: func() error {
			if err := a.TaskOutputLossErr(); err != nil {
				return err
			}
			return a.store.CheckDiskSpaceForNewObjects()
		},
		addNodeEvent: func(ctx context.Context, message string) error {
			return localnode.AddNodeEvent(ctx, a.store, a.node.ID(), "Storage", message)
		},
		logger:       a.logger,
		lossReported: make(chan struct{}, 1),
	}
}

// reportLoss adds an event about lost or resumed output to the task, and wakes run. It does not block.
func (o *outputLossReporter) reportLoss(loss logs.OutputLoss) {
	if runner := o.allocRunner(loss.AllocID); runner != nil {
		event := model.EventOutputLost(string(loss.Stream), loss.DroppedBytes, loss.Reason)
		if loss.WritingResumed {
			event = model.EventOutputResumed(string(loss.Stream), loss.DroppedBytes)
		}
		_ = runner.EmitEvent(loss.Task, event) // fails only for an unknown task, which has no events
	}
	select {
	case o.lossReported <- struct{}{}:
	default:
	}
}

// spaceCheckInterval is the time between two checks whether output is written again.
const spaceCheckInterval = 10 * time.Second

// run adds an event to the node when output of tasks is lost, and when it is written again, until ctx ends.
func (o *outputLossReporter) run(ctx context.Context) {
	check := time.NewTicker(spaceCheckInterval)
	check.Stop()
	for reported := false; ; {
		select {
		case <-o.lossReported:
		case <-check.C:
		case <-ctx.Done():
			return
		}
		err := o.outputLossErr()
		if (err != nil) == reported {
			continue
		}
		message := "Output of tasks is written again"
		if err != nil {
			message = "Output of tasks cannot be written: " + err.Error()
			check.Reset(spaceCheckInterval)
		} else {
			check.Stop()
		}
		reported = err != nil
		if err := o.addNodeEvent(ctx, message); err != nil {
			o.logger.Warn("event of the node not stored", "event", message, "error", err)
		}
	}
}
