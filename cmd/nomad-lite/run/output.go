package run

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/taskview"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

// showTaskOutput shows the output of a task from its first start to the end of its output. If allUpdatesShown is closed
// before the task has started, it returns without output.
func (r *foregroundRun) showTaskOutput(ctx context.Context, t *taskview.Task, allUpdatesShown <-chan struct{}) {
	defer close(t.OutputShown)
	select {
	case <-t.FirstStarted:
	case <-allUpdatesShown:
		if !wait.IsClosed(t.FirstStarted) {
			return
		}
	}
	var stderrReader sync.WaitGroup
	stderrReader.Go(func() { r.followOutputStream(ctx, t, logs.Stderr) })
	r.followOutputStream(ctx, t, logs.Stdout)
	stderrReader.Wait()
}

// followOutputStream shows one output stream of a started task until the task no longer writes to the stream.
func (r *foregroundRun) followOutputStream(ctx context.Context, t *taskview.Task, stream logs.Stream) {
	var lineBuffer taskview.LineBuffer
	last := int64(-1) // number of the log file of the last chunk
	show := func(text []byte) { r.taskView.PrintTaskOutput(t, stream == logs.Stderr, text) }
	err := r.agent.LogCollector().Follow(ctx, logs.FollowRequest{
		AllocID: t.Alloc.ID,
		Task:    t.Name,
		LogDir:  t.LogDir,
		Stream:  stream,
	}, func(c logs.OutputChunk) error {
		file, _ := strconv.ParseInt(c.FileName[strings.LastIndexByte(c.FileName, '.')+1:], 10, 64)
		if file > last+1 {
			r.taskView.QueueMessage("a part of what task " + t.Label + " wrote is not shown: it was rotated away before it was read")
		}
		last = file
		lineBuffer.AddData(c.Data, show)
		return nil
	})
	lineBuffer.Flush(show)
	if err != nil {
		r.taskView.QueueMessage("output of task " + t.Label + " is not shown any more: " + err.Error())
	}
}
