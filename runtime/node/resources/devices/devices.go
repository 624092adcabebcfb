package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/device"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/host/supervisor"
	"github.com/nomad-lite/nomad-lite/runtime/job/model"
)

const (
	// reserveTimeout limits a plugin's Reserve call, including the wait for a starting plugin process.
	reserveTimeout = 30 * time.Second

	// unknownDeviceTimeout is how long Reserve waits for a device reported by no plugin, because the plugin may be starting.
	unknownDeviceTimeout = 10 * time.Second
)

// devicePlugins has the supervisor methods for a Manager.
type devicePlugins interface {
	DeviceGroups() []supervisor.DeviceGroup
	InfoChanged() <-chan struct{} // the channel is closed when the DeviceGroups result changes
	// Device returns the plugin with the name. It waits until launchDeadline for a starting plugin process.
	Device(ctx context.Context, pluginName string, launchDeadline time.Time) (device.Plugin, error)
}

// Config configures a Manager.
type Config struct {
	StatsInterval time.Duration // time between two statistics samples from a plugin
	// ReserveHasNoTimeout makes Reserve wait without a time limit until the plugin answers or the caller's context
	// ends.
	ReserveHasNoTimeout bool
	Logger              hclog.Logger
}

// Manager reserves devices for tasks, and collects statistics. Its methods may be called
// concurrently.
type Manager struct {
	plugins             devicePlugins
	reserveHasNoTimeout bool
	sampler             statsSampler
}

// New returns a Manager. The caller must call Close.
func New(p devicePlugins, c Config) *Manager {
	return &Manager{plugins: p, reserveHasNoTimeout: c.ReserveHasNoTimeout, sampler: newSampler(p, c.StatsInterval, c.Logger)}
}

// Close stops collecting statistics, and waits until its goroutines have returned.
func (m *Manager) Close() { m.sampler.close() }

// GroupIDOf returns the vendor, type and name that identify allocated devices' group.
func GroupIDOf(d *api.AllocatedDeviceResource) device.GroupID {
	return device.GroupID{Vendor: d.Vendor, Type: d.Type, Name: d.Name}
}

// Reserve calls the plugin for a task's devices, which the scheduler has chosen, and returns what the task needs to use them. If
// the plugin process exits during the call, Reserve repeats the call in the next process. While the plugin is unavailable,
// Reserve blocks until ctx is done. It calls reportOutage once, with the error from an unavailable plugin or from the second
// exited process. Reserve fails if a plugin process does not answer for 30 seconds, unless the Manager has no timeouts. No call
// releases a reservation: device plugins have no such method.
func (m *Manager) Reserve(ctx context.Context, d *api.AllocatedDeviceResource, reportOutage func(error)) (*device.Reservation, error) {
	r, err := m.reserveWhenAvailable(ctx, d, reportOutage)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to reserve device %s: %w", model.DeviceInstanceName(d.Vendor, d.Type, d.Name, strings.Join(d.DeviceIDs, ",")), err)
	}
	return r, nil
}

// reserveWhenAvailable is Reserve without the device in the errors.
func (m *Manager) reserveWhenAvailable(ctx context.Context, d *api.AllocatedDeviceResource, reportOutage func(error)) (*device.Reservation, error) {
	name, err := m.waitForPluginOfGroup(ctx, GroupIDOf(d))
	if err != nil {
		return nil, err
	}
	var reportOnce sync.Once
	report := func(err error) { reportOnce.Do(func() { reportOutage(err) }) }
	for exits := 1; ctx.Err() == nil; exits++ {
		r, err := driver.WaitWhileUnavailable(ctx, func(ctx context.Context) (*device.Reservation, error) {
			return m.callReserve(ctx, name, d.DeviceIDs)
		}, report)
		if !errors.Is(err, device.ErrPluginDown) {
			return r, err
		}
		if exits > 1 {
			report(err)
		}
	}
	return nil, context.Cause(ctx)
}

// callReserve calls the plugin's Reserve once. It waits for a starting plugin process. The call and the wait together have
// reserveTimeout.
func (m *Manager) callReserve(ctx context.Context, pluginName string, deviceIDs []string) (*device.Reservation, error) {
	untilTimeout := ctx
	if !m.reserveHasNoTimeout {
		var cancel context.CancelFunc
		untilTimeout, cancel = context.WithTimeout(ctx, reserveTimeout)
		defer cancel()
	}
	plugin, err := m.plugins.Device(untilTimeout, pluginName, time.Time{})
	if err == nil {
		var r *device.Reservation
		if r, err = plugin.Reserve(untilTimeout, deviceIDs); err == nil {
			return r, nil
		}
		switch {
		case errors.Is(err, device.ErrPluginDown):
			return nil, fmt.Errorf("device plugin %q has exited during the call: %w", pluginName, err)
		case untilTimeout.Err() != nil:
			err = fmt.Errorf("device plugin %q does not respond to Reserve: %w", pluginName, err)
		}
	}
	if untilTimeout.Err() != nil {
		err = fmt.Errorf("no answer after %v: %w", reserveTimeout, err)
	}
	return nil, err
}

// waitForPluginOfGroup names the plugin that reports a device group. It waits up to unknownDeviceTimeout.
func (m *Manager) waitForPluginOfGroup(ctx context.Context, groupID device.GroupID) (pluginName string, err error) {
	timeout := time.NewTimer(unknownDeviceTimeout)
	defer timeout.Stop()
	for {
		changed := m.plugins.InfoChanged()
		groups := m.plugins.DeviceGroups()
		if i := slices.IndexFunc(groups, func(g supervisor.DeviceGroup) bool { return g.ID == groupID }); i >= 0 {
			return groups[i].PluginName, nil
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

// ToAPINodeDevices converts device groups to the Nomad API's form for nodes, sorted by their ids.
func ToAPINodeDevices(groups []supervisor.DeviceGroup) []*api.NodeDeviceResource {
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
