package taskrunner

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
	"github.com/nomad-lite/nomad-lite/runtime/node/timeline"
)

// driverCallRecorder records the driver calls for one task in the time line of the allocation.
type driverCallRecorder struct {
	timeline timeline.Recorder
	driver   string // name of the driver
}

// recordCallsOf returns a driver that calls d and records the calls. The result is a new value each time, so it must not
// be compared with other drivers.
func (c driverCallRecorder) recordCallsOf(d driver.Driver) driver.Driver {
	return timelineRecordingDriver{d, c}
}

func (c driverCallRecorder) recordCall(ctx context.Context, name string, call func(context.Context) error) error {
	return c.timeline.RecordCall(ctx, tracespan.KindDriver, name, c.driver, call)
}

// startRunSpan starts the span for the run of a process, or continues the span that an earlier agent has started.
func (c driverCallRecorder) startRunSpan(startID string, startedAt time.Time) *timeline.ActiveSpan {
	return c.timeline.StartRunSpan(startID, c.driver, startedAt)
}

// timelineRecordingDriver records the driver calls that change a task. It does not record WaitTask, because the run of a
// process has its own span.
type timelineRecordingDriver struct {
	driver.Driver
	recorder driverCallRecorder
}

func (r timelineRecordingDriver) StartTask(ctx context.Context, config *driver.TaskConfig) (handle *driver.Handle, network *driver.NetworkOverride, err error) {
	err = r.recorder.recordCall(ctx, "StartTask", func(ctx context.Context) (err error) {
		handle, network, err = r.Driver.StartTask(ctx, config)
		return err
	})
	return handle, network, err
}

func (r timelineRecordingDriver) RecoverTask(ctx context.Context, handle *driver.Handle) error {
	return r.recorder.recordCall(ctx, "RecoverTask", func(ctx context.Context) error { return r.Driver.RecoverTask(ctx, handle) })
}

func (r timelineRecordingDriver) StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) error {
	return r.recorder.recordCall(ctx, "StopTask", func(ctx context.Context) error { return r.Driver.StopTask(ctx, taskID, timeout, signal) })
}

func (r timelineRecordingDriver) DestroyTask(ctx context.Context, taskID string, force bool) error {
	return r.recorder.recordCall(ctx, "DestroyTask", func(ctx context.Context) error { return r.Driver.DestroyTask(ctx, taskID, force) })
}

func (r timelineRecordingDriver) SignalTask(ctx context.Context, taskID string, signal string) error {
	span := r.recorder.timeline.StartSpan(tracespan.KindDriver, "SignalTask", r.recorder.driver)
	err := r.Driver.SignalTask(span.Context(ctx), taskID, signal)
	span.End(signal, err)
	return err
}

func (r timelineRecordingDriver) ExecTask(ctx context.Context, taskID string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	span := r.recorder.timeline.StartSpan(tracespan.KindDriver, "ExecTask", r.recorder.driver)
	result, err := r.Driver.ExecTask(span.Context(ctx), taskID, command, timeout)
	var exit *driver.ExitResult
	if result != nil {
		exit = &result.Exit
	}
	span.End(describeCommand(command, exit), err)
	return result, err
}

func (r timelineRecordingDriver) ExecTaskStreaming(ctx context.Context, taskID string, exec driver.Exec) (*driver.ExitResult, error) {
	span := r.recorder.timeline.StartSpan(tracespan.KindDriver, "ExecTaskStreaming", r.recorder.driver)
	exit, err := r.Driver.ExecTaskStreaming(span.Context(ctx), taskID, exec)
	span.End(describeCommand(exec.Command, exit), err)
	return exit, err
}

// describeCommand returns the program of a command and, if the command has exited, the exit code. It leaves out the
// arguments, because they can contain secrets.
func describeCommand(command []string, exit *driver.ExitResult) string {
	switch {
	case len(command) == 0:
		return ""
	case exit == nil:
		return command[0]
	}
	return fmt.Sprintf("%s: exit code %d", command[0], exit.ExitCode)
}
