package device

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
)

// APIVersion is the version of the device plugin protocol, for base.Info.APIVersions. For hosts only.
const APIVersion = "v0.1.0"

// Plugin is the contract between the host and one device plugin. Both the host's client and
// the implementation in the plugin process implement it.
//
// All methods may be called concurrently. A client whose plugin process has exited returns
// ErrPluginDown. For hosts only.
type Plugin interface {
	// Fingerprint sends all devices immediately and on each change; each Fingerprint replaces
	// the one before. The channel is closed when ctx ends or the stream breaks; before it
	// closes after a broken stream, a last Fingerprint has Err set: ErrPluginDown,
	// ErrDisabled, ErrStreamEnded if the plugin has closed its channel, or another error. The
	// client also ends the stream, with an error, after an invalid Fingerprint.
	Fingerprint(ctx context.Context) (<-chan Fingerprint, error)

	// Reserve returns what a task needs to use the devices with the ids, which are of one
	// group. An unknown id is an error. The host calls Reserve once per device block of a task
	// before the first start of the task, and never releases a reservation: a plugin must
	// return a reservation again, also for ids that it has reserved before.
	Reserve(ctx context.Context, ids []string) (*Reservation, error)

	// Stats sends the statistics of all devices immediately and once per interval; an
	// interval of 0 means DefaultStatsInterval. The channel is closed when ctx ends or the
	// stream breaks; before it closes after an error, a last Stats has Err set. A channel that
	// closes without Err means that the plugin has no further statistics.
	Stats(ctx context.Context, interval time.Duration) (<-chan Stats, error)
}

// DefaultStatsInterval is the interval of Stats if the host requests none. For hosts only.
const DefaultStatsInterval = time.Second

// ErrPluginDown means that the plugin process has exited. The caller requests another
// process from the supervisor. For hosts only.
var ErrPluginDown = base.ErrPluginDown

var (
	// ErrDisabled means that a plugin does not look for devices, because of its configuration
	// or because the machine lacks a driver. It is sent as text, which is the same as Nomad's.
	ErrDisabled = errors.New("device is not enabled")

	// ErrStreamEnded means that the plugin has ended its fingerprint stream without an error. For hosts only.
	ErrStreamEnded = errors.New("the plugin has ended the fingerprint stream")
)

// Fingerprint is one report of all devices of a plugin. For hosts only.
type Fingerprint struct {
	Groups []Group
	// FailureReason is the reason why the plugin could not look for devices; empty if it could. Groups then has the devices that
	// it has found before, as unhealthy, and the stream continues.
	FailureReason string
	Err           error // why the stream has ended; the other fields are then empty
}

// GroupID is the name of a group of equal devices. Jobs request devices by type, by vendor/type
// or by vendor/type/name.
type GroupID struct {
	Vendor string // vendor of the device, such as "nvidia"
	Type   string // kind of device, such as "gpu"
	Name   string // model, such as "Tesla T4"
}

// String returns vendor/type/name.
func (g GroupID) String() string { return g.Vendor + "/" + g.Type + "/" + g.Name }

// Group is a set of equal devices: they have the same attributes.
type Group struct {
	ID         GroupID
	Devices    []Device
	Attributes map[string]Attribute
}

// Device is one device of a group.
type Device struct {
	// ID is unique among all devices of the plugin, also those of other groups, because Reserve receives only ids. It names the
	// same device after a restart of the plugin or of the machine, because hosts store it with the tasks.
	ID                string
	Healthy           bool   // the host gives unhealthy devices to no task
	HealthDescription string // why the device is unhealthy
	PCIBusID          string // PCI address, such as "00000000:65:00.0"; empty if unknown
}

// Reservation is what a task needs to use devices.
type Reservation struct {
	Env     map[string]string // environment variables of the task
	Mounts  []Mount
	Devices []HostDevice
}

// Mount is a path of the host that the task sees. A task of a driver without mounts, such as raw_exec, sees the file at HostPath
// only, with the rights of its user.
type Mount struct {
	TaskPath string // absolute
	HostPath string // absolute; must exist when the task starts
	ReadOnly bool
}

// HostDevice is a device file of the host that the task can open. A task of a driver that does not isolate the file system, such
// as raw_exec, sees the file at HostPath only, with the rights of its user.
type HostDevice struct {
	TaskPath    string // absolute
	HostPath    string // absolute; must exist when the task starts
	Permissions string // "r" (read), "w" (write), "m" (mknod), or several of them
}

// Stats are the statistics of all devices of a plugin at one time. For hosts only.
type Stats struct {
	Groups []GroupStats
	Err    error
}

// GroupStats are the statistics of one group.
type GroupStats struct {
	ID        GroupID
	Instances map[string]DeviceStats // keys are the IDs of devices
	// DeviceIDsWithoutTimestamp has the sorted IDs of the devices whose statistics the client has dropped, because
	// the statistics have no timestamp. Only the client sets DeviceIDsWithoutTimestamp. For hosts only.
	DeviceIDsWithoutTimestamp []string
}

// DeviceStats are the statistics of one device.
type DeviceStats struct {
	Summary StatValue // most important statistic
	Stats   StatObject
	// Timestamp is the time of measurement. The server replaces a zero Timestamp by the
	// current time; the client drops statistics without one, see DeviceIDsWithoutTimestamp.
	Timestamp time.Time
}

// StatObject is a tree of statistics.
type StatObject struct {
	Nested     map[string]StatObject
	Attributes map[string]StatValue
}

// StatValue is one statistic.
type StatValue struct {
	Value any // int64, float64, string or bool; an int is sent as int64; nil if not measured
	// Max is the maximum of a number, such as the size of a memory, and has the type of
	// Value; nil if there is none.
	Max         any
	Unit        string // unit of Value and Max, such as "MiB"; any text
	Description string // description of Value and Max, such as "used memory / total memory"
}
