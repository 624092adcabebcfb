package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/sdk"
)

// Start creates and starts the container of a task. After an error it removes the container.
func (d *Driver) Start(ctx context.Context, start *sdk.StartRequest) (_ *task, err error) {
	executed := false
	defer func() {
		if !executed {
			err = sdk.MarkIfResourceExhausted(err)
		}
	}()
	config, engine, err := d.currentConfigAndClient()
	if err != nil {
		return nil, err
	}
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		return nil, err
	}
	if err := tc.validateAndParseDurations(); err != nil {
		return nil, err
	}
	b := sourceMounter{engine: newUntypedEngineClient(engine), start: start}
	plan, err := planContainer(config, &tc, start, b.cannotBindMountReason())
	if err != nil {
		return nil, err
	}
	if err := checkAPIVersionForOptions(ctx, engine, &tc); err != nil {
		return nil, err
	}
	if joinsGroupNetwork(&tc, start.NetworkIsolation) {
		if err := checkGroupNetworkStillExists(ctx, engine, start.NetworkIsolation); err != nil {
			return nil, err
		}
	}
	d.reaper.registerStartAndBeginReaping(d, start.ID)
	defer func() {
		if err != nil {
			d.reaper.unregisterStart(start.ID)
		}
	}()
	imageID, err := d.images.acquireImageForStart(ctx, &tc, start)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.images.releaseImageOfStart(imageID, start.ID, start.Logger())
		}
	}()
	defer func() {
		if err != nil {
			err = errors.Join(err, unmountSources(start))
		}
	}()
	if plan, err = d.mountSourcesOrReplan(ctx, plan, b, config, &tc); err != nil {
		return nil, err
	}
	options := plan.createOptions
	options.Config.Image = imageID
	id, err := createOrReplaceContainer(ctx, engine, options, cmp.Or(tc.ContainerExistsAttempts, config.ContainerExistsAttempts))
	if err != nil {
		return nil, markRecoverableUnlessRefused(fmt.Errorf("create the container %s: %w", options.Name, err))
	}
	defer func() {
		if err == nil {
			return
		}
		if removeErr := killAndRemoveContainer(context.WithoutCancel(ctx), engine, id); removeErr != nil {
			start.Logger().Warn("a container that could not be started remains", "container", options.Name, "error", removeErr)
		}
	}()

	t := &task{driver: d, engine: newUntypedEngineClient(engine), start: start, exited: make(chan struct{}), state: taskState{
		ContainerID: id, ContainerName: options.Name, ImageID: imageID, TTY: tc.TTY, CollectsOutput: mustCopyOutput(config, start),
	}}
	t.prepareOutputPump()
	defer func() {
		if err != nil {
			t.stopOutputPumpAndCleanUp()
		}
	}()
	if t.outputPump != nil {
		openCtx, cancel := context.WithTimeout(ctx, outputReaderTimeout)
		err := t.outputPump.openOutputFIFOs(openCtx)
		cancel()
		if err != nil {
			return nil, err
		}
	}
	if _, err := engine.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return nil, markRecoverableUnlessRefused(fmt.Errorf("start the container %s: %w", options.Name, err))
	}
	executed = true
	inspected, err := engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, markRecoverableUnlessRefused(fmt.Errorf("inspect the container %s: %w", options.Name, err))
	}
	t.state.Network = networkOverride(&tc, start.Resources, inspected.Container)
	t.state.StopSignal = inspected.Container.Config.StopSignal
	t.startOutputPump()
	return t, nil
}

// mountSourcesOrReplan makes the mounts of a plan. From then on, tasks cannot replace the sources of the
// container. If the driver cannot make mounts that the engine sees, mountSourcesOrReplan returns another
// plan, without them.
func (d *Driver) mountSourcesOrReplan(ctx context.Context, plan *containerPlan, mounter sourceMounter, config *pluginConfig, tc *taskConfig) (*containerPlan, error) {
	cannotBindMountReason := mounter.cannotBindMountReason()
	if len(plan.driverMountedSources) > 0 {
		err := mounter.replaceAllMounts(ctx, plan.driverMountedSources)
		var reason *cannotBindMountError
		if !errors.As(err, &reason) {
			return plan, err
		}
		cannotBindMountReason = reason
		if plan, err = planContainer(config, tc, mounter.start, cannotBindMountReason); err != nil {
			return nil, err
		}
	}
	if !plan.engineMountsTaskReplaceablePaths {
		return plan, nil
	}
	if _, err := d.Sweep(ctx, sdk.SweepRequest{AllocID: mounter.start.AllocID, TaskName: mounter.start.Name}); err != nil {
		return nil, err
	}
	return planContainer(config, tc, mounter.start, cannotBindMountReason) // resolves the links of the sources again, now that no container of the task can change them
}

// checkAPIVersionForOptions refuses options that the engine would ignore.
func checkAPIVersionForOptions(ctx context.Context, engine *client.Client, t *taskConfig) error {
	if t.MACAddress == "" {
		return nil
	}
	if _, err := engine.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return markRecoverableUnlessRefused(err)
	}
	var minor int
	if _, err := fmt.Sscanf(engine.ClientVersion(), "1.%d", &minor); err == nil && minor < 44 {
		return errors.New("mac_address needs an engine of version 25 or later: the engine here would ignore it, remove the option")
	}
	return nil
}

// mustCopyOutput reports whether the driver must copy the output of the task to files of the host.
func mustCopyOutput(c *pluginConfig, start *sdk.StartRequest) bool {
	isNull := func(path string) bool { return path == "" || path == os.DevNull }
	return !c.DisableLogCollection && !(isNull(start.StdoutPath) && isNull(start.StderrPath))
}

// createOrReplaceContainer creates a container. A container of an earlier start of the same task
// that has the name is removed first, up to the given number of times.
func createOrReplaceContainer(ctx context.Context, engine *client.Client, options *client.ContainerCreateOptions, removeAttempts int) (string, error) {
	const minDelay, maxDelay = 100 * time.Millisecond, 5 * time.Second
	delay := minDelay
	for attempt := 0; ; attempt++ {
		created, err := engine.ContainerCreate(ctx, *options)
		if err == nil {
			return created.ID, nil
		}
		switch {
		case !isNameInUseError(err):
			return "", err
		case attempt >= removeAttempts:
			return "", fmt.Errorf("a container has the name after %d attempts to remove it (container_exists_attempts): %w", removeAttempts, err)
		}
		existing, inspectErr := engine.ContainerInspect(ctx, options.Name, client.ContainerInspectOptions{})
		switch {
		case isContainerGone(inspectErr):
			// The engine has just removed the container.
		case inspectErr != nil:
			return "", inspectErr
		case existing.Container.Config.Labels[labelAllocID] != options.Config.Labels[labelAllocID],
			existing.Container.Config.Labels[labelTaskName] != options.Config.Labels[labelTaskName],
			isOfOtherRunningAgent(existing.Container.Config.Labels):
			return "", fmt.Errorf("another container has the name, and it is not of this task: remove it with docker rm: %w", err)
		default:
			if err := killAndRemoveContainer(ctx, engine, existing.Container.ID); err != nil {
				return "", err
			}
			continue
		}
		select {
		case <-time.After(delay):
			delay = min(2*delay, maxDelay)
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// isNameInUseError reports whether the engine has refused to create a container because of its name. Podman
// reports that as a server error.
func isNameInUseError(err error) bool {
	return cerrdefs.IsConflict(err) || strings.Contains(err.Error(), "is already in use")
}

// killAndRemoveContainer kills and removes a container, and returns when it is gone.
func killAndRemoveContainer(ctx context.Context, engine *client.Client, id string) error {
	const timeout = time.Minute
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		_, err := engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil, isContainerGone(err):
			return nil
		case !cerrdefs.IsConflict(err) || !strings.Contains(err.Error(), "in progress"):
			return markRecoverableUnlessRefused(fmt.Errorf("remove the container %s: %w", id, err))
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return sdk.Recoverable(fmt.Errorf("remove the container %s: %w", id, err))
		}
	}
}

// Recover finds the container of a task, which may have exited.
func (d *Driver) Recover(ctx context.Context, start *sdk.StartRequest) (_ *task, err error) {
	_, engine, err := d.currentConfigAndClient()
	if err != nil {
		return nil, err
	}
	d.reaper.registerStartAndBeginReaping(d, start.ID)
	defer func() { d.reaper.unregisterUnlessRecoverable(start.ID, err) }()
	t := &task{driver: d, engine: newUntypedEngineClient(engine), start: start, exited: make(chan struct{})}
	if err := start.DecodeState(&t.state); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	inspected, err := engine.ContainerInspect(ctx, t.state.ContainerID, client.ContainerInspectOptions{})
	if err != nil {
		return nil, markRecoverableUnlessRefused(fmt.Errorf("inspect the container %s: %w", t.state.ContainerName, err))
	}
	if got := inspected.Container.Config.Labels[labelStartID]; got != start.ID {
		return nil, fmt.Errorf("the container %s is of the start %q", t.state.ContainerName, got)
	}
	t.prepareOutputPump()
	d.images.markImageUsedByStart(t.state.ImageID, start.ID)
	t.startOutputPump()
	return t, nil
}

// Adopt finds the container of a start whose plugin process has died, by the label with the id of the start. A
// container that is only created has executed nothing, because the driver starts it with another request.
func (d *Driver) Adopt(ctx context.Context, start *sdk.StartRequest) (_ *task, err error) {
	config, engine, err := d.currentConfigAndClient()
	if err != nil {
		return nil, err
	}
	d.reaper.registerStartAndBeginReaping(d, start.ID)
	defer func() { d.reaper.unregisterUnlessRecoverable(start.ID, err) }()
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	filters := client.Filters{}.Add("label", labelStartID+"="+start.ID)
	list, err := engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("list the containers of the start: %w", err))
	}
	if len(list.Items) == 0 {
		return nil, sdk.ErrNotExecuted
	}
	id := list.Items[0].ID
	// The list can have the state before a request that the engine is executing. An inspection waits for the request.
	inspected, err := engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("inspect the container %s: %w", id, err)) // recoverable also if the container was removed in the meantime: the next list does not have it
	}
	if inspected.Container.State.Status == container.StateCreated {
		// Without force, the engine refuses to remove a container that runs now.
		if _, err := engine.ContainerRemove(ctx, id, client.ContainerRemoveOptions{RemoveVolumes: true}); err != nil && !isContainerGone(err) {
			return nil, sdk.Recoverable(fmt.Errorf("remove the container %s, which was not started: %w", id, err))
		}
		return nil, sdk.ErrNotExecuted
	}
	var tc taskConfig
	if err := start.DecodeConfig(&tc); err != nil {
		return nil, err
	}
	t := &task{driver: d, engine: newUntypedEngineClient(engine), start: start, exited: make(chan struct{}), state: taskState{
		ContainerID: id, ContainerName: containerName(start), ImageID: inspected.Container.Image, TTY: tc.TTY, CollectsOutput: mustCopyOutput(config, start),
		Network: networkOverride(&tc, start.Resources, inspected.Container), StopSignal: inspected.Container.Config.StopSignal,
	}}
	t.prepareOutputPump()
	d.images.markImageUsedByStart(t.state.ImageID, start.ID)
	t.startOutputPump()
	return t, nil
}

// Sweep removes the containers of a task for which the driver has no task object. It does not
// remove containers of another running agent. It reports whether there was a container.
func (d *Driver) Sweep(ctx context.Context, req sdk.SweepRequest) (bool, error) {
	_, engine, err := d.currentConfigAndClient()
	if err != nil {
		return false, err
	}
	filters := client.Filters{}.Add("label", labelAllocID+"="+req.AllocID, labelTaskName+"="+req.TaskName)
	list, err := engine.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: filters})
	if err != nil {
		return false, markRecoverableUnlessRefused(fmt.Errorf("list the containers of the task: %w", err))
	}
	var errs []error
	found := false
	for _, c := range list.Items {
		if !isOfOtherRunningAgent(c.Labels) {
			found = true
			err := killAndRemoveContainer(ctx, engine, c.ID)
			if err == nil {
				d.reaper.unregisterStart(c.Labels[labelStartID]) // a recovery that has failed may have registered it
			}
			errs = append(errs, err)
		}
	}
	return found, errors.Join(errs...)
}
