package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Labels of a network that CreateNetwork returns, with Nomad's names. The host writes the hostname
// of the allocation by them.
const (
	sandboxContainerIDLabel = "docker_sandbox_container_id"
	sandboxHostnameLabel    = "docker_sandbox_hostname"
)

// groupNetworkContainerName is Nomad's name for the container that holds the network of a group.
func groupNetworkContainerName(allocID string) string { return "nomad_init_" + allocID }

// CreateNetwork starts a container that does nothing, for its network namespace, which has
// only a loopback interface. If the container of the allocation runs already, CreateNetwork
// returns its namespace. A container that has exited is replaced.
func (d *Driver) CreateNetwork(ctx context.Context, req sdk.CreateNetworkRequest) (_ sdk.CreateNetworkResponse, err error) {
	var none sdk.CreateNetworkResponse
	config, engine, err := d.currentConfigAndClient()
	if err != nil {
		return none, err
	}
	name := groupNetworkContainerName(req.AllocID)
	existing, err := engine.ContainerInspect(ctx, name, client.ContainerInspectOptions{})
	switch {
	case err == nil && existing.Container.State.Running && existing.Container.Config.Labels[labelAllocID] == req.AllocID && !isOfOtherRunningAgent(existing.Container.Config.Labels):
		isolation, err := networkIsolationOf(existing.Container, req.Hostname)
		return sdk.CreateNetworkResponse{Isolation: isolation}, err
	case err != nil && !isContainerGone(err):
		return none, markRecoverableUnlessRefused(fmt.Errorf("inspect the container %s: %w", name, err))
	}
	labels := map[string]string{labelAllocID: req.AllocID}
	addDataDirectoryLabel(labels)
	imageID, err := d.images.pullOrMakeInfraImage(ctx, config)
	if err != nil {
		return none, err
	}
	id, err := createOrReplaceContainer(ctx, engine, &client.ContainerCreateOptions{
		Name:   name,
		Config: &container.Config{Image: imageID, Hostname: req.Hostname, Labels: labels},
		HostConfig: &container.HostConfig{
			NetworkMode:    network.NetworkNone,
			CapDrop:        []string{"ALL"},
			SecurityOpt:    []string{"no-new-privileges"},
			ReadonlyRootfs: true,
			LogConfig:      container.LogConfig{Type: "none"},
		},
	}, 1)
	if err != nil {
		return none, markRecoverableUnlessRefused(fmt.Errorf("create the container %s: %w", name, err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, killAndRemoveContainer(context.WithoutCancel(ctx), engine, id))
		}
	}()
	if _, err := engine.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return none, markRecoverableUnlessRefused(fmt.Errorf("start the container %s: %w", name, err))
	}
	inspected, err := engine.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return none, markRecoverableUnlessRefused(fmt.Errorf("inspect the container %s: %w", name, err))
	}
	isolation, err := networkIsolationOf(inspected.Container, req.Hostname)
	return sdk.CreateNetworkResponse{Isolation: isolation, Created: true}, err
}

// networkIsolationOf returns the network namespace of a running container.
func networkIsolationOf(c container.InspectResponse, hostname string) (*driver.NetworkIsolation, error) {
	if !hasNetworkNamespace(c) {
		return nil, fmt.Errorf("the container %s exited at once: infra_image must have a program that runs until it is stopped", c.Name)
	}
	labels := map[string]string{sandboxContainerIDLabel: c.ID}
	if hostname != "" {
		labels[sandboxHostnameLabel] = hostname
	}
	return &driver.NetworkIsolation{Mode: driver.NetworkGroup, Path: c.NetworkSettings.SandboxKey, Labels: labels}, nil
}

func hasNetworkNamespace(c container.InspectResponse) bool {
	return c.State.Running && c.NetworkSettings != nil && c.NetworkSettings.SandboxKey != ""
}

// DestroyNetwork removes the container of CreateNetwork. A container that is gone is no
// error.
func (d *Driver) DestroyNetwork(ctx context.Context, req sdk.DestroyNetworkRequest) error {
	_, engine, err := d.currentConfigAndClient()
	if err != nil {
		return err
	}
	return removeGroupNetworkContainer(ctx, engine, groupNetworkContainerName(req.AllocID), req.AllocID)
}

// removeGroupNetworkContainer removes a container if it holds the network of the allocation.
func removeGroupNetworkContainer(ctx context.Context, engine *client.Client, nameOrID, allocID string) error {
	inspected, err := engine.ContainerInspect(ctx, nameOrID, client.ContainerInspectOptions{})
	switch {
	case isContainerGone(err):
		return nil
	case err != nil:
		return markRecoverableUnlessRefused(fmt.Errorf("inspect the container %s: %w", nameOrID, err))
	case inspected.Container.Name != "/"+groupNetworkContainerName(allocID) || inspected.Container.Config.Labels[labelAllocID] != allocID:
		return nil // the container has another owner
	}
	return killAndRemoveContainer(ctx, engine, inspected.Container.ID)
}

// joinsGroupNetwork reports whether a task joins the network of its group. A network_mode of
// the task takes precedence, as under Nomad.
func joinsGroupNetwork(t *taskConfig, isolation *driver.NetworkIsolation) bool {
	return t.NetworkMode == "" && isolation != nil && isolation.Path != ""
}

// joinGroupNetwork sets the network of a container in the network of a group. The engine gives the
// container the hostname of the container that holds the network, and accepts no options for the
// container's host names and resolver.
func (b *containerBuilder) joinGroupNetwork() error {
	id := b.start.NetworkIsolation.Labels[sandboxContainerIDLabel]
	if id == "" {
		return errors.New("the driver docker cannot join a network namespace by its path: the network of the group must be made by this driver")
	}
	b.hostConfig.NetworkMode = container.NetworkMode("container:" + id)
	if n := b.taskConfig.networkConfig; n.Hostname != "" {
		return fmt.Errorf("hostname = %q is refused, because the tasks of the group share a hostname: set hostname in the network block of the group", n.Hostname)
	}
	if _, err := b.endpointConfig(); err != nil {
		return err
	}
	if err := b.publishPorts(); err != nil {
		return err
	}
	return b.mountHostsAndResolvConf()
}

// checkGroupNetworkStillExists returns an error if the group has another network namespace than the host has
// prepared. A namespace is gone when its container has exited, for example after a restart
// of the engine.
func checkGroupNetworkStillExists(ctx context.Context, engine *client.Client, isolation *driver.NetworkIsolation) error {
	inspected, err := engine.ContainerInspect(ctx, isolation.Labels[sandboxContainerIDLabel], client.ContainerInspectOptions{})
	switch {
	case err != nil && !isContainerGone(err):
		return markRecoverableUnlessRefused(fmt.Errorf("inspect the container that holds the network of the group: %w", err))
	case isContainerGone(err), !hasNetworkNamespace(inspected.Container), inspected.Container.NetworkSettings.SandboxKey != isolation.Path:
		return errors.New("the network of the group no longer exists, because the container that held it was stopped, for example by a restart of the engine: the allocation must be replaced")
	}
	return nil
}
