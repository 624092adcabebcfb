package agent

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/runtime/node/allocrunner"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// The node has one event when the output of the first task is lost, and one when the disk has space again, which no report of the log
// collector announces if the tasks have ended.
func TestOutputLossIsAnEventOfTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		var full atomic.Bool
		o := &outputLossReporter{
			allocRunner: func(string) *allocrunner.Runner { return nil },
			outputLossErr: func() error {
				if full.Load() {
					return errors.New("no space")
				}
				return nil
			},
			addNodeEvent: func(_ context.Context, message string) error { events = append(events, message); return nil },
			logger:       hclog.NewNullLogger(),
			lossReported: make(chan struct{}, 1),
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); o.run(ctx) }()
		for range 2 {
			full.Store(true)
			for range 3 {
				o.reportLoss(logs.OutputLoss{})
				time.Sleep(time.Second)
			}
			full.Store(false)
			time.Sleep(spaceCheckInterval)
			synctest.Wait()
		}
		cancel()
		<-done
		lost, written := "Output of tasks cannot be written: no space", "Output of tasks is written again"
		if want := []string{lost, written, lost, written}; !slices.Equal(events, want) {
			t.Errorf("events %q, want %q", events, want)
		}
	})
}
