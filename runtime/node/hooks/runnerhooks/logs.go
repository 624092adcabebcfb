package runnerhooks

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

var (
	_ hook.TaskPrestart = (*LogsHook)(nil)
	_ hook.TaskStop     = (*LogsHook)(nil)
)

// LogCollector collects the output of tasks; [logs.Collector] implements it.
type LogCollector interface {
	// Start starts the collection, and returns the paths that the task must write to. It
	// may be called again for the same task.
	Start(ctx context.Context, task logs.Task) (stdout, stderr string, err error)
	// Stop waits briefly for remaining output, and ends the collection. If ended is true,
	// the process of the task is known to be dead; otherwise its output keeps a reader.
	Stop(ctx context.Context, allocID, task string, ended bool) error
	// CollectLeftoverAndStop is like Stop, for a task whose collection this agent has not started. An
	// earlier agent may have started it.
	CollectLeftoverAndStop(ctx context.Context, task logs.Task, ended bool) error
}

// OutputMode is the destination of the output of a task.
type OutputMode int

const (
	OutputDiscarded    OutputMode = iota // the job has disabled logs: the task writes to the null device
	OutputCollected                      // the log collector reads the output
	OutputReadByDriver                   // the driver reads the output: it receives paths, at which no file exists
)

// LogsHook collects the output of the task. Its name in events is Nomad's.
type LogsHook struct {
	BuiltinHook
	collector          LogCollector
	logTask            func() (logs.Task, OutputMode)
	setOutput          func(stdout, stderr string)
	allProcessesEnded  func() bool
	emitEvent          func(*api.TaskEvent)
	startedByThisAgent atomic.Bool // this agent has started the collection of the task's output
}

// NewLogsHook returns the hook for one task. task returns the task and the destination of its output; setOutput passes
// the paths for the next start to the runner; ended reports whether no process of the task can be alive; emit gets
// an event when the task has to wait.
func NewLogsHook(collector LogCollector, task func() (logs.Task, OutputMode), setOutput func(stdout, stderr string), ended func() bool, emit func(*api.TaskEvent)) *LogsHook {
	return &LogsHook{collector: collector, logTask: task, setOutput: setOutput, allProcessesEnded: ended, emitEvent: emit}
}

// Name implements hook.Hook.
func (*LogsHook) Name() string { return "logmon" }

// NoDeadline implements Hook: a task waits for file descriptors until others have ended. Each call of the
// collector has a timeout of its own.
func (*LogsHook) NoDeadline() bool { return true }

// The timeouts of the collector's calls.
const (
	collectorStartTimeout = time.Minute
	collectorStopTimeout  = 10 * time.Second
)

// Prestart implements hook.TaskPrestart.
func (l *LogsHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	task, mode := l.logTask()
	task.Running = req.Running
	switch mode {
	case OutputDiscarded:
		return hook.TaskPrestartResponse{}, nil
	case OutputReadByDriver:
		l.setOutput(logs.UncollectedOutputPaths(task))
		return hook.TaskPrestartResponse{}, nil
	}
	failpoint.Hit(failpoint.StepTaskDir, failpoint.PhaseDuring)
	stdout, stderr, err := l.startCollection(ctx, task)
	if err != nil {
		return hook.TaskPrestartResponse{}, driver.Recoverable(fmt.Errorf("collect logs: %w", err))
	}
	failpoint.Hit(failpoint.StepTaskDir, failpoint.PhaseAfter)
	l.startedByThisAgent.Store(true)
	l.setOutput(stdout, stderr)
	return hook.TaskPrestartResponse{}, nil
}

// startCollection starts the collection, and blocks while other tasks hold all file descriptors.
func (l *LogsHook) startCollection(ctx context.Context, task logs.Task) (stdout, stderr string, err error) {
	for waiting := false; ; waiting = true {
		call, cancel := context.WithTimeout(ctx, collectorStartTimeout)
		stdout, stderr, err = l.collector.Start(call, task)
		cancel()
		var tooManyTasksErr *logs.TooManyTasksError
		if !errors.As(err, &tooManyTasksErr) {
			return stdout, stderr, err
		}
		if !waiting {
			l.emitEvent(model.EventWaitingForFileDescriptors(tooManyTasksErr.Error()))
		}
		select {
		case <-tooManyTasksErr.DescriptorsFreed:
		case <-ctx.Done():
			return "", "", context.Cause(ctx)
		}
	}
}

// Stop implements hook.TaskStop.
func (l *LogsHook) Stop(ctx context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, collectorStopTimeout)
	defer cancel()
	task, mode := l.logTask()
	switch {
	case mode != OutputCollected:
		return hook.TaskStopResponse{}, nil
	case !l.startedByThisAgent.Load():
		return hook.TaskStopResponse{}, l.collector.CollectLeftoverAndStop(ctx, task, l.allProcessesEnded())
	}
	return hook.TaskStopResponse{}, l.collector.Stop(ctx, req.Alloc.ID, req.Task.Name, l.allProcessesEnded())
}
