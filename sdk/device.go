package sdk

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/device"
)

// Device is the interface that the author of a device plugin implements. Its methods may be
// called concurrently.
type Device interface {
	// Info describes the plugin. It is called once, when the process starts.
	Info() DeviceInfo

	// Fingerprint returns all devices of the machine that the plugin offers, in groups of equal
	// devices. The id of each device must be unique in the plugin, and must name the same
	// device after a restart of the plugin or of the machine. The package calls Fingerprint
	// once per DeviceInfo.FingerprintInterval, and reports changes to the host. No devices
	// are not an error.
	//
	// After [device.ErrDisabled] the host uses the plugin no longer. After any other error, or
	// a panic, the devices of the last call count as unhealthy until a call succeeds.
	Fingerprint(ctx context.Context) ([]device.Group, error)

	// Reserve returns what a task needs to use the devices of the request. It is called before
	// the first start of the task, once for each device block of the task. The host decides which task has a device, and no call
	// releases a device: for devices that were reserved before, Reserve must return the same again.
	Reserve(ctx context.Context, req *ReserveRequest) (*device.Reservation, error)
}

// ReserveRequest contains the devices that the host has chosen for a device block of a task. The devices are of one group.
type ReserveRequest struct {
	Group   device.Group    // as the last Fingerprint returned it, with all of its devices
	Devices []device.Device // as many as the count of the block; at least one
}

// DeviceStatsProvider is a device plugin that reports statistics of its devices.
type DeviceStatsProvider interface {
	// Stats returns the statistics of all devices. The package calls it once per interval,
	// which the host chooses (usually 1 s), and sets each Timestamp that is zero. After an error
	// the host calls again later, after a pause that grows with each error.
	Stats(ctx context.Context) ([]device.GroupStats, error)
}

// DeviceInfo is the description of a device plugin. Only Name is required.
type DeviceInfo struct {
	Name    string // name of the plugin: letters, digits, "_", "-" and "."
	Version string // such as "1.2.3"; empty means "0.1.0"

	// ConfigSchema describes the configuration in the host's `plugin` block. nil means
	// that the plugin has no configuration.
	ConfigSchema *hclspec.Spec

	// FingerprintInterval is the time between two calls of Fingerprint; 0 means 30 s.
	FingerprintInterval time.Duration
}
