package taskdriver

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/core/timeline"
	"github.com/nomad-lite/nomad-lite/runtime/job/tracespan"
)

// recordCallsOf returns a driver that calls d and records the calls in the allocation's time line. The result is a new
// value each time, so it must not be compared with other drivers.
func (a *Access) recordCallsOf(d driver.Driver) driver.Driver { return timelineRecordingDriver{d, a} }

// StartTask calls StartTask on the plugin process d.
func (a *Access) StartTask(ctx context.Context, d driver.Driver, config *driver.TaskConfig) (*driver.Handle, *driver.NetworkOverride, error) {
	return a.recordCallsOf(d).StartTask(ctx, config)
}

// StartRunSpan starts the span for a process run, or continues an earlier agent's span.
func (a *Access) StartRunSpan(startID string, startedAt time.Time) *timeline.ActiveSpan {
	return a.Timeline.StartRunSpan(startID, a.DriverName, startedAt)
}

// timelineRecordingDriver records the driver calls that change a task. It does not record WaitTask, because a process
// run has its own span.
type timelineRecordingDriver struct {
	driver.Driver
	access *Access
}

func (r timelineRecordingDriver) recordCall(ctx context.Context, name string, call func(context.Context) error) error {
	return r.access.Timeline.CallWithSpan(ctx, tracespan.KindDriver, name, r.access.DriverName, call)
}

func (r timelineRecordingDriver) StartTask(ctx context.Context, config *driver.TaskConfig) (handle *driver.Handle, network *driver.NetworkOverride, err error) {
	err = r.recordCall(ctx, "StartTask", func(ctx context.Context) (err error) {
		handle, network, err = r.Driver.StartTask(ctx, config)
		return err
	})
	return handle, network, err
}

func (r timelineRecordingDriver) RecoverTask(ctx context.Context, handle *driver.Handle) error {
	return r.recordCall(ctx, "RecoverTask", func(ctx context.Context) error { return r.Driver.RecoverTask(ctx, handle) })
}

func (r timelineRecordingDriver) StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) error {
	return r.recordCall(ctx, "StopTask", func(ctx context.Context) error { return r.Driver.StopTask(ctx, taskID, timeout, signal) })
}

func (r timelineRecordingDriver) DestroyTask(ctx context.Context, taskID string, force bool) error {
	return r.recordCall(ctx, "DestroyTask", func(ctx context.Context) error { return r.Driver.DestroyTask(ctx, taskID, force) })
}

func (r timelineRecordingDriver) SignalTask(ctx context.Context, taskID string, signal string) error {
	span := r.access.Timeline.StartSpan(tracespan.KindDriver, "SignalTask", r.access.DriverName)
	err := r.Driver.SignalTask(span.ContextWithTraceparent(ctx), taskID, signal)
	span.End(signal, err)
	return err
}

func (r timelineRecordingDriver) ExecTask(ctx context.Context, taskID string, command []string, timeout time.Duration) (*driver.ExecResult, error) {
	span := r.access.Timeline.StartSpan(tracespan.KindDriver, "ExecTask", r.access.DriverName)
	result, err := r.Driver.ExecTask(span.ContextWithTraceparent(ctx), taskID, command, timeout)
	var exit *driver.ExitResult
	if result != nil {
		exit = &result.Exit
	}
	span.End(describeProgramWithoutArgs(command, exit), err)
	return result, err
}

func (r timelineRecordingDriver) ExecTaskStreaming(ctx context.Context, taskID string, exec driver.Exec) (*driver.ExitResult, error) {
	span := r.access.Timeline.StartSpan(tracespan.KindDriver, "ExecTaskStreaming", r.access.DriverName)
	exit, err := r.Driver.ExecTaskStreaming(span.ContextWithTraceparent(ctx), taskID, exec)
	span.End(describeProgramWithoutArgs(exec.Command, exit), err)
	return exit, err
}

// describeProgramWithoutArgs returns a command's program and, if the command has exited, the exit code. It omits the
// arguments, because they may contain secrets.
func describeProgramWithoutArgs(command []string, exit *driver.ExitResult) string {
	switch {
	case len(command) == 0:
		return ""
	case exit == nil:
		return command[0]
	}
	return fmt.Sprintf("%s: exit code %d", command[0], exit.ExitCode)
}
