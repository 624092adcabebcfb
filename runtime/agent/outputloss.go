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

// outputLosses reports output of tasks that cannot be written, usually because the disk is full: as events of the tasks and
// of the node. The API reports it as the health of the agent.
type outputLosses struct {
	alloc   func(id string) *allocrunner.Runner
	check   func() error // returns nil while the output of all tasks is written and the disk has space
	putNode func(ctx context.Context, message string) error
	logger  hclog.Logger
	changed chan struct{} // has a value after a report of the log collector
}

func newOutputLosses(a *Agent) *outputLosses {
	return &outputLosses{
		alloc: a.Alloc,
		check: func() error {
			if err := a.OutputLossErr(); err != nil {
				return err
			}
			return a.store.CheckSpace()
		},
		putNode: func(ctx context.Context, message string) error {
			return localnode.AddEvent(ctx, a.store, a.node.ID(), "Storage", message)
		},
		logger:  a.logger,
		changed: make(chan struct{}, 1),
	}
}

// handle reports lost output to the task, and wakes run. It does not block.
func (o *outputLosses) handle(loss logs.OutputLoss) {
	if runner := o.alloc(loss.AllocID); runner != nil {
		event := model.EventOutputLost(string(loss.Stream), loss.Bytes, loss.Reason)
		if loss.WritingResumed {
			event = model.EventOutputResumed(string(loss.Stream), loss.Bytes)
		}
		_ = runner.EmitEvent(loss.Task, event) // a task that is unknown has no events
	}
	select {
	case o.changed <- struct{}{}:
	default:
	}
}

// spaceCheckInterval is the time between two checks whether output is written again.
const spaceCheckInterval = 10 * time.Second

// run adds an event to the node when output of tasks is lost, and when it is written again, until ctx ends.
func (o *outputLosses) run(ctx context.Context) {
	check := time.NewTicker(spaceCheckInterval)
	check.Stop()
	for reported := false; ; {
		select {
		case <-o.changed:
		case <-check.C:
		case <-ctx.Done():
			return
		}
		err := o.check()
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
		if err := o.putNode(ctx, message); err != nil {
			o.logger.Warn("event of the node not stored", "event", message, "error", err)
		}
	}
}
