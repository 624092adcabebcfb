package sdk

import (
	"context"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Configurer is a driver or a hook with its own configuration, in the `plugin` block of
// the host.
type Configurer interface {
	// Configure accepts the configuration. It may be called more than once and must have
	// no effect outside of the process: hosts also call it only to validate a
	// configuration.
	Configure(ctx context.Context, config *Config) error
}

// The types that authors use are the types of the wire contract:
//
//	go doc github.com/nomad-lite/nomad-lite/plugins/driver.TaskConfig
type (
	// TaskConfig is everything a driver receives about one start of a task.
	TaskConfig = driver.TaskConfig
	// Resources is what placement granted to the task.
	Resources = driver.Resources
	// Mount is one host path that a task sees.
	Mount = driver.Mount
	// Device is one device node that a task sees.
	Device = driver.Device
	// NetworkIsolation is the network namespace that the tasks of a group share.
	NetworkIsolation = driver.NetworkIsolation
	// NetworkOverride is the address that a driver itself gave to a task.
	NetworkOverride = driver.NetworkOverride

	// ExitResult is the exit status of a task or a command.
	ExitResult = driver.ExitResult
	// Exec is one command to run in a task, with its streams.
	Exec = driver.Exec
	// TerminalSize is in characters.
	TerminalSize = driver.TerminalSize

	// TaskStats is one sample of a task's resource usage.
	TaskStats = driver.TaskStats
	// Usage is one set of CPU and memory figures.
	Usage = driver.Usage
	// CPUUsage is measured since the previous sample.
	CPUUsage = driver.CPUUsage
	// MemoryUsage is in bytes.
	MemoryUsage = driver.MemoryUsage

	// Fingerprint is one report of the driver about itself.
	Fingerprint = driver.Fingerprint
	// Attribute is one typed value of a Fingerprint.
	Attribute = driver.Attribute
	// Health is the driver's health as the driver reports it.
	Health = driver.Health
	// Capabilities are the features that a host must know before it uses a driver.
	Capabilities = driver.Capabilities
	// FSIsolation is how much of the host's file system a task can see.
	FSIsolation = driver.FSIsolation
	// NetworkMode is the kind of network namespace that a task runs in.
	NetworkMode = driver.NetworkMode
	// MountConfigs reports whether a driver supports mounts.
	MountConfigs = driver.MountConfigs
)

// Values of Fingerprint.Health.
const (
	HealthUndetected = driver.HealthUndetected // the driver's requirements are not on this machine
	HealthUnhealthy  = driver.HealthUnhealthy  // the driver's requirements are present and do not work
	HealthHealthy    = driver.HealthHealthy
)

// Values of the fields of Capabilities.
const (
	FSIsolationNone   = driver.FSIsolationNone
	FSIsolationChroot = driver.FSIsolationChroot
	FSIsolationImage  = driver.FSIsolationImage
	FSIsolationUnveil = driver.FSIsolationUnveil

	NetworkHost  = driver.NetworkHost
	NetworkGroup = driver.NetworkGroup
	NetworkTask  = driver.NetworkTask
	NetworkNone  = driver.NetworkNone

	MountConfigsAny  = driver.MountConfigsAny
	MountConfigsNone = driver.MountConfigsNone
)

// ErrTaskNotFound is the error for a task id that the driver does not have. The package
// returns it to hosts itself; it is exported for tests.
var ErrTaskNotFound = driver.ErrTaskNotFound

// Recoverable marks an error of Start for which a retry may succeed: the restart policy
// of the task applies. A marked error of Recover means that the task may still exist,
// see [Recoverer]. nil stays nil.
func Recoverable(err error) error { return driver.Recoverable(err) }
