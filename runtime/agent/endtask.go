package agent

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/agent/datadirectory"
	"github.com/nomad-lite/nomad-lite/runtime/core/taskdriver"
)

// taskEnderWithoutDriver ends tasks, and waits for their exits, without their drivers.
type taskEnderWithoutDriver struct {
	keeper            *keeper.Client
	decodeTaskProcess func(driver string, driverState []byte) (process datadirectory.TaskProcess, known bool) // Config.DecodeTaskProcess; may be nil
}

// endTask ends a task's processes while its driver is unavailable. It implements taskdriver.EndTaskWithoutDriverFunc.
//
// The keeper adopted the task when the task's plugin died, so it has the main process's exit status, even if that process has
// exited before the call.
func (e taskEnderWithoutDriver) endTask(ctx context.Context, req taskdriver.EndTaskRequest) (taskdriver.EndTaskResult, error) {
	found, err := osprocess.EndLeftovers(ctx, req.AllocID, req.Task)
	result := taskdriver.EndTaskResult{FoundProcesses: len(found) > 0}
	if err != nil {
		return result, err
	}
	if !req.TasksAreHostProcesses || req.Handle == nil || e.decodeTaskProcess == nil {
		return result, nil
	}
	main, known := e.decodeTaskProcess(req.Driver, req.Handle.DriverState)
	if !known {
		return result, nil
	}
	if main.Alive() { // EndLeftovers does not find a process that has moved to another cgroup and changed its environment
		result.FoundProcesses = true
		_ = unix.Kill(-main.PID, unix.SIGKILL)
		if err := main.Signal(unix.SIGKILL); err != nil && main.Alive() {
			return result, fmt.Errorf("kill process %d: %w", main.PID, err)
		}
	}
	if exit, err := e.waitProcessExit(ctx, main); err == nil {
		result.ExitResult = exit
	} else if main.Alive() {
		return result, fmt.Errorf("wait for process %d: %w", main.PID, err)
	}
	return result, nil
}

// awaitExitWithoutDriver implements taskdriver.AwaitExitWithoutDriverFunc. The keeper adopted the task when its plugin
// died.
func (e taskEnderWithoutDriver) awaitExitWithoutDriver(ctx context.Context, driverName string, handle *driver.Handle) (*driver.ExitResult, error) {
	if e.decodeTaskProcess != nil {
		if main, known := e.decodeTaskProcess(driverName, handle.DriverState); known {
			return e.waitProcessExit(ctx, main)
		}
	}
	return nil, keeper.ErrExitStatusUnknown
}

// waitProcessExit blocks until a process has exited, and returns its exit status as a driver does.
func (e taskEnderWithoutDriver) waitProcessExit(ctx context.Context, main datadirectory.TaskProcess) (*driver.ExitResult, error) {
	status, err := e.keeper.Wait(ctx, main.ID)
	if err != nil {
		return nil, err
	}
	exit := &driver.ExitResult{ExitCode: status.ExitCode, Signal: status.Signal}
	if status.Signal != 0 {
		exit.ExitCode = 128 + status.Signal
	}
	if exit.OOMKilled = main.HasOOMKill(); exit.OOMKilled {
		exit.Err = status.OOMError()
	}
	return exit, nil
}
