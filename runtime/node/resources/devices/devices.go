package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
)

const (
	// reserveTimeout limits a call of Reserve, including all waits for the plugin.
	reserveTimeout = 30 * time.Second

	// unknownDeviceTimeout is how long Reserve waits for a device that no plugin reports,
	// because the plugin may be starting.
	unknownDeviceTimeout = 10 * time.Second
)

// devicePlugins is the part of the supervisor that a Manager needs.
type devicePlugins interface {
	DeviceGroups() []supervisor.DeviceGroup
	Changed() <-chan struct{} // the channel is closed when the result of DeviceGroups changes
	// Device returns the plugin with the name. It waits until launchDeadline for a plugin process that is starting.
	Device(ctx context.Context, name string, launchDeadline time.Time) (device.Plugin, error)
}

// Config configures a Manager.
type Config struct {
	StatsInterval time.Duration // time between two samples of the statistics of a plugin
	// NoCallTimeouts makes Reserve wait without a time limit until the plugin answers or the caller's context ends.
	NoCallTimeouts bool
	Logger         hclog.Logger
}

// Manager reserves devices for tasks, and collects statistics. Its methods may be called
// concurrently.
type Manager struct {
	plugins        devicePlugins
	noCallTimeouts bool
	sampler        statsSampler
}

// New returns a Manager. The caller must call Close.
func New(p devicePlugins, c Config) *Manager {
	return &Manager{plugins: p, noCallTimeouts: c.NoCallTimeouts, sampler: newSampler(p, c.StatsInterval, c.Logger)}
}

// Close stops the collection of statistics, and waits until its goroutines have returned.
func (m *Manager) Close() { m.sampler.close() }

// GroupIDOf returns the vendor, type and name of allocated devices, which identify their group.
func GroupIDOf(d *api.AllocatedDeviceResource) device.GroupID {
	return device.GroupID{Vendor: d.Vendor, Type: d.Type, Name: d.Name}
}

// Reserve calls the plugin of devices that the scheduler has chosen for a task, and returns what
// the task needs to use them. If the process of the plugin exits during the call, Reserve waits
// for the next process and calls it once more. Reserve fails after 30 seconds, unless the Manager has no
// timeouts. A reservation is not released by a call: device plugins have no such method.
func (m *Manager) Reserve(ctx context.Context, d *api.AllocatedDeviceResource) (*device.Reservation, error) {
	untilTimeout := ctx
	if !m.noCallTimeouts {
		var cancel context.CancelFunc
		untilTimeout, cancel = context.WithTimeout(ctx, reserveTimeout)
		defer cancel()
	}
	r, err := m.reserveWithoutTimeout(untilTimeout, d)
	switch {
	case err == nil:
		return r, nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case untilTimeout.Err() != nil:
		err = fmt.Errorf("no answer after %v: %w", reserveTimeout, err)
	}
	return nil, fmt.Errorf("failed to reserve device %s: %w", GroupIDOf(d), err)
}

// reserveWithoutTimeout is Reserve without reserveTimeout, and without the device in the errors.
func (m *Manager) reserveWithoutTimeout(ctx context.Context, d *api.AllocatedDeviceResource) (*device.Reservation, error) {
	name, err := m.waitForPlugin(ctx, GroupIDOf(d))
	if err != nil {
		return nil, err
	}
	launchDeadline, ok := ctx.Deadline()
	if !ok {
		launchDeadline = time.Now().Add(reserveTimeout)
	}
	for attempt := 1; ; attempt++ {
		plugin, err := m.plugins.Device(ctx, name, launchDeadline)
		if err != nil {
			return nil, err
		}
		r, err := plugin.Reserve(ctx, d.DeviceIDs)
		switch {
		case err == nil:
			return r, nil
		case errors.Is(err, device.ErrPluginDown) && attempt == 1:
		case errors.Is(err, device.ErrPluginDown):
			return nil, fmt.Errorf("device plugin %q has exited during the call, twice", name)
		case ctx.Err() != nil:
			return nil, fmt.Errorf("device plugin %q does not respond to Reserve: %w", name, err)
		default:
			return nil, err
		}
	}
}

// waitForPlugin returns the name of the plugin that reports a group of devices. It waits up to unknownDeviceTimeout.
func (m *Manager) waitForPlugin(ctx context.Context, id device.GroupID) (pluginName string, err error) {
	timeout := time.NewTimer(unknownDeviceTimeout)
	defer timeout.Stop()
	for {
		changed := m.plugins.Changed()
		groups := m.plugins.DeviceGroups()
		if i := slices.IndexFunc(groups, func(g supervisor.DeviceGroup) bool { return g.ID == id }); i >= 0 {
			return groups[i].Plugin, nil
		}
		select {
		case <-changed:
		case <-timeout.C:
			return "", errors.New("no device plugin reports it: nomad-lite plugin status shows the plugins that have failed")
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// NodeResources converts groups of devices to the form of Nomad's API for nodes, sorted by
// their ids.
func NodeResources(groups []supervisor.DeviceGroup) []*api.NodeDeviceResource {
	var all []*api.NodeDeviceResource
	for _, g := range groups {
		r := &api.NodeDeviceResource{Vendor: g.ID.Vendor, Type: g.ID.Type, Name: g.ID.Name, Attributes: make(map[string]*api.Attribute, len(g.Attributes))}
		for _, d := range g.Devices {
			instance := &api.NodeDevice{ID: d.ID, Healthy: d.Healthy, HealthDescription: d.HealthDescription}
			if d.PCIBusID != "" {
				instance.Locality = &api.NodeDeviceLocality{PciBusID: d.PCIBusID}
			}
			r.Instances = append(r.Instances, instance)
		}
		for name, a := range g.Attributes {
			r.Attributes[name] = toAPIAttribute(a)
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b *api.NodeDeviceResource) int { return strings.Compare(a.ID(), b.ID()) })
	return all
}

func toAPIAttribute(a device.Attribute) *api.Attribute {
	out := &api.Attribute{Unit: a.Unit}
	switch v := a.Value.(type) {
	case int64:
		out.IntVal = &v
	case float64:
		out.FloatVal = &v
	case bool:
		out.BoolVal = &v
	case string:
		out.StringVal = &v
	}
	return out
}
