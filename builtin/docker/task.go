package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// task is a task that runs as one container.
type task struct {
	driver *Driver
	engine untypedEngineClient
	start  *sdk.StartRequest
	state  taskState

	exited           chan struct{} // closed by Wait when the container has exited
	outputPump       *logPump      // outputPump and allOutputWritten are nil if the driver does not copy the output
	allOutputWritten chan struct{} // closed when all output is written
	cancelOutputPump context.CancelFunc

	cpuSampler cpuSampler
}

// taskState is the data for Recover.
type taskState struct {
	ContainerID    string                  `codec:"container_id"`
	ContainerName  string                  `codec:"container_name"`
	ImageID        string                  `codec:"image_id"`
	TTY            bool                    `codec:"tty"`
	StopSignal     string                  `codec:"stop_signal"`
	CollectsOutput bool                    `codec:"collects_output"`
	Network        *driver.NetworkOverride `codec:"network"`
}

// State returns the data for Recover.
func (t *task) State() any { return t.state }

// Network returns the address of the container.
func (t *task) Network() *driver.NetworkOverride { return t.state.Network }

// Attributes returns the names by which users find the container.
func (t *task) Attributes() map[string]string {
	return map[string]string{"container_id": t.state.ContainerID, "container_name": t.state.ContainerName, "image_id": t.state.ImageID}
}

// outputPositionFileInTaskDir returns the path of the file with the positions of the output, relative to
// the task's directory.
func (t *task) outputPositionFileInTaskDir() string {
	return privateFilePathInTaskDir(t.start.TaskDir(), "docker-output-"+path.Base(t.start.ID))
}

// prepareOutputPump opens the file with the positions of the output.
func (t *task) prepareOutputPump() {
	if !t.state.CollectsOutput {
		return
	}
	p := &logPump{engine: t.engine, containerID: t.state.ContainerID, hasTTY: t.state.TTY, start: t.start, bootTimeNanos: bootUnixNanos}
	dir, err := os.OpenRoot(t.start.TaskDir())
	if err == nil {
		defer dir.Close()
		p.positionFile, err = openPositionFile(dir, t.outputPositionFileInTaskDir())
	}
	if err != nil {
		t.start.Logger().Warn("output can be repeated if this plugin process is killed, because its position is not stored", "error", err)
		p.positionFile = newInMemoryPositionFile()
	}
	t.outputPump = p
}

// startOutputPump copies the output in the background until the task is destroyed. The FIFOs of a
// recovered task can be without a reader, so the goroutine opens them, too.
func (t *task) startOutputPump() {
	if t.outputPump == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.cancelOutputPump, t.allOutputWritten = cancel, make(chan struct{})
	go func() {
		defer close(t.allOutputWritten)
		t.outputPump.copyUntilExit(ctx, t.hasExited)
	}()
}

// stopOutputPumpAndCleanUp stops the copy of the output, closes the output files, and removes the file with the
// positions.
func (t *task) stopOutputPumpAndCleanUp() {
	if t.outputPump == nil {
		return
	}
	if t.cancelOutputPump != nil {
		t.cancelOutputPump()
		<-t.allOutputWritten
	}
	t.outputPump.closeOutputFIFOs()
	t.outputPump.positionFile.unmap()
	if dir, err := os.OpenRoot(t.start.TaskDir()); err == nil {
		defer dir.Close()
		if err := dir.Remove(t.outputPositionFileInTaskDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.start.Logger().Debug("remove the position of the output", "error", err)
		}
	}
	t.outputPump = nil
}

func (t *task) hasExited() bool {
	return wait.IsClosed(t.exited)
}

// outputTimeout limits how long an exited task waits for its output to be written.
const outputTimeout = 5 * time.Second

// Wait waits until the container has exited and its output is written. While the engine
// does not answer, the task counts as running.
func (t *task) Wait(ctx context.Context) (driver.ExitResult, error) {
	result, err := t.waitForContainerExit(ctx)
	close(t.exited)
	if t.allOutputWritten != nil {
		timer := time.NewTimer(outputTimeout)
		defer timer.Stop()
		select {
		case <-t.allOutputWritten:
		case <-timer.C:
			t.start.Logger().Warn("the output of an exited task is not written", "timeout", outputTimeout)
		case <-ctx.Done():
		}
	}
	return result, err
}

func (t *task) waitForContainerExit(ctx context.Context) (driver.ExitResult, error) {
	const maxDelay = 5 * time.Second
	for delay := 50 * time.Millisecond; ; delay = min(2*delay, maxDelay) {
		wait := t.engine.client().ContainerWait(ctx, t.state.ContainerID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		var err error
		select {
		case <-wait.Result:
		case err = <-wait.Error:
		case <-ctx.Done():
			return driver.ExitResult{}, ctx.Err()
		}
		if err == nil {
			var inspected client.ContainerInspectResult
			if inspected, err = t.engine.client().ContainerInspect(ctx, t.state.ContainerID, client.ContainerInspectOptions{}); err == nil && !inspected.Container.State.Running {
				return exitResult(inspected.Container.State)
			}
		}
		if isContainerGone(err) {
			return driver.ExitResult{}, fmt.Errorf("exit status unknown: the container %s was removed", t.state.ContainerName)
		}
		if ctx.Err() != nil {
			return driver.ExitResult{}, ctx.Err()
		}
		t.start.Logger().Debug("waiting for the engine", "container", t.state.ContainerName, "error", err)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return driver.ExitResult{}, ctx.Err()
		}
	}
}

// exitResult converts the state of an exited container. The engine reports a signal as
// exit code 128 plus the signal.
func exitResult(s *container.State) (driver.ExitResult, error) {
	result := driver.ExitResult{ExitCode: s.ExitCode, OOMKilled: s.OOMKilled}
	const signalBase, lastSignal = 128, 64
	if n := s.ExitCode - signalBase; n > 0 && n <= lastSignal {
		result.Signal = n
	}
	if s.Error != "" {
		return result, fmt.Errorf("the engine reports: %s", s.Error)
	}
	return result, nil
}

// Signal sends a signal by name. The default is the stop signal of the image, or SIGTERM.
func (t *task) Signal(ctx context.Context, name string) error {
	if name == "" {
		name = t.state.StopSignal
	}
	if name == "" {
		name = "SIGTERM"
	}
	return t.sendSignal(ctx, name)
}

// Kill kills the container.
func (t *task) Kill(ctx context.Context) error {
	err := t.sendSignal(ctx, "SIGKILL")
	if isContainerGone(err) || isNotRunningError(err) {
		return nil
	}
	return err
}

func (t *task) sendSignal(ctx context.Context, signal string) error {
	_, err := t.engine.client().ContainerKill(ctx, t.state.ContainerID, client.ContainerKillOptions{Signal: signal})
	if err != nil {
		return markRecoverableUnlessRefused(fmt.Errorf("send %s to the container %s: %w", signal, t.state.ContainerName, err))
	}
	return nil
}

// isNotRunningError reports whether the engine has refused a signal because the container has
// exited. Some versions of Docker, and podman, report that as a server error.
func isNotRunningError(err error) bool {
	if err == nil || cerrdefs.IsConflict(err) {
		return err != nil
	}
	texts := []string{"is not running", "can only kill running containers", "container state improper: stopped"}
	return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// Destroy removes the container, unless the operator keeps containers.
func (t *task) Destroy(ctx context.Context) error {
	t.stopOutputPumpAndCleanUp()
	config, _, err := t.driver.currentConfigAndClient()
	if err != nil {
		return err
	}
	if config.GC.RemoveExitedContainers {
		if err := killAndRemoveContainer(ctx, t.engine.client(), t.state.ContainerID); err != nil {
			return err
		}
	}
	if err := unmountSources(t.start); err != nil {
		return err
	}
	t.driver.images.releaseImageOfStart(t.state.ImageID, t.start.ID, t.start.Logger())
	t.driver.reaper.unregisterStart(t.start.ID)
	return nil
}

// cpuSampler turns counters of CPU time into rates.
type cpuSampler struct {
	mu             sync.Mutex
	lastUsage      container.CPUUsage
	lastSampleTime time.Time
}
