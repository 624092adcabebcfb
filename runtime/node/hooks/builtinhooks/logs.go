package builtinhooks

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
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

var (
	_ hook.TaskPrestart = (*LogsHook)(nil)
	_ hook.TaskStop     = (*LogsHook)(nil)
	_ hook.AllocDestroy = (*AllocLogsHook)(nil)
)

// LogCollector collects task output; [logs.CollectorClient] implements it.
type LogCollector interface {
	// Start starts the collection, and returns the paths for the task's output. It may be called again for the same task.
	Start(ctx context.Context, task logs.Task) (stdoutPath, stderrPath string, err error)
	// Stop waits briefly for remaining output, and ends the collection. If allProcessesEnded is true, the task's process is known to
	// be dead; otherwise its output keeps a reader.
	Stop(ctx context.Context, allocID, task string, allProcessesEnded bool) error
	// StopCollectionOfEarlierAgent is like Stop, for a collection not started by this agent. An earlier agent may have started it.
	StopCollectionOfEarlierAgent(ctx context.Context, task logs.Task, allProcessesEnded bool) error
	// StopUnlessStopped ends the collection if Stop or StopCollectionOfEarlierAgent has failed, under this agent or an
	// earlier one.
	StopUnlessStopped(ctx context.Context, allocID, task string) error
}

// OutputMode is the destination of a task's output.
type OutputMode int

const (
	OutputDiscarded    OutputMode = iota // the job has disabled logs: the task writes to the null device
	OutputCollected                      // the log collector reads the output
	OutputReadByDriver                   // the driver reads the output: it receives paths without files
)

// LogsHook collects the output of the task. Its name in events is Nomad's.
type LogsHook struct {
	hooks.BuiltinHookDefaults
	collector                    LogCollector
	taskAndOutputMode            func() (logs.Task, OutputMode)
	setOutputPaths               func(stdoutPath, stderrPath string)
	allProcessesEnded            func() bool
	emitEvent                    func(*api.TaskEvent)
	collectionStartedByThisAgent atomic.Bool // this agent has started the collection of the task's output
}

// NewLogsHook returns the hook for one task. taskAndOutputMode returns the task and its output mode. setOutputPaths passes the
// paths for the next start to the runner. allProcessesEnded reports whether no task process can be alive. emit gets an event when
// the task has to wait.
func NewLogsHook(collector LogCollector, taskAndOutputMode func() (logs.Task, OutputMode), setOutputPaths func(stdout, stderr string), allProcessesEnded func() bool, emit func(*api.TaskEvent)) *LogsHook {
	return &LogsHook{collector: collector, taskAndOutputMode: taskAndOutputMode, setOutputPaths: setOutputPaths, allProcessesEnded: allProcessesEnded, emitEvent: emit}
}

// Name implements Hook.
func (*LogsHook) Name() string { return "logmon" }

// NoDeadline implements Hook: a task waits for file descriptors until others have ended. Each collector call has its own timeout.
func (*LogsHook) NoDeadline() bool { return true }

// Timeouts for collector calls.
const (
	collectorStartTimeout = time.Minute
	collectorStopTimeout  = 10 * time.Second
)

// Prestart implements hook.TaskPrestart.
func (l *LogsHook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	task, mode := l.taskAndOutputMode()
	task.AlreadyRunning = req.Running
	switch mode {
	case OutputDiscarded:
		return hook.TaskPrestartResponse{}, nil
	case OutputReadByDriver:
		l.setOutputPaths(logs.UncollectedOutputPaths(task))
		return hook.TaskPrestartResponse{}, nil
	}
	failpoint.Hit(failpoint.StepTaskDir, failpoint.PhaseDuring)
	stdout, stderr, err := l.startCollectionOnceFDsAreFree(ctx, task)
	if err != nil {
		return hook.TaskPrestartResponse{}, driver.Recoverable(fmt.Errorf("collect logs: %w", err))
	}
	failpoint.Hit(failpoint.StepTaskDir, failpoint.PhaseAfter)
	l.collectionStartedByThisAgent.Store(true)
	l.setOutputPaths(stdout, stderr)
	return hook.TaskPrestartResponse{}, nil
}

// startCollectionOnceFDsAreFree starts the collection, and blocks while other tasks hold all file descriptors.
func (l *LogsHook) startCollectionOnceFDsAreFree(ctx context.Context, task logs.Task) (stdoutPath, stderrPath string, err error) {
	for waiting := false; ; waiting = true {
		call, cancel := context.WithTimeout(ctx, collectorStartTimeout)
		stdoutPath, stderrPath, err = l.collector.Start(call, task)
		cancel()
		var tooManyTasksErr *logs.TooManyTasksError
		if !errors.As(err, &tooManyTasksErr) {
			return stdoutPath, stderrPath, err
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
	task, mode := l.taskAndOutputMode()
	switch {
	case mode != OutputCollected:
		return hook.TaskStopResponse{}, nil
	case !l.collectionStartedByThisAgent.Load():
		return hook.TaskStopResponse{}, l.collector.StopCollectionOfEarlierAgent(ctx, task, l.allProcessesEnded())
	}
	return hook.TaskStopResponse{}, l.collector.Stop(ctx, req.Alloc.ID, req.Task.Name, l.allProcessesEnded())
}

// AllocLogsHook ends the collections that LogsHook could not stop, when the allocation is removed from disk. Without it, the
// collector and the keeper would hold the tasks' FIFOs for ever.
type AllocLogsHook struct {
	hooks.BuiltinHookDefaults
	collector LogCollector
	taskNames []string
}

// NewAllocLogsHook returns the hook for one allocation with the given tasks.
func NewAllocLogsHook(collector LogCollector, taskNames []string) *AllocLogsHook {
	return &AllocLogsHook{collector: collector, taskNames: taskNames}
}

// Name implements Hook.
func (*AllocLogsHook) Name() string { return "logmon" }

// Destroy implements hook.AllocDestroy.
func (l *AllocLogsHook) Destroy(ctx context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, collectorStopTimeout)
	defer cancel()
	var errs []error
	for _, task := range l.taskNames {
		errs = append(errs, l.collector.StopUnlessStopped(ctx, req.Alloc.ID, task))
	}
	return hook.AllocDestroyResponse{}, errors.Join(errs...)
}
