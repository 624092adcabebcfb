package driver

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// Driver is the contract between the host and one task driver, on both sides
// of the wire: the client that the host holds and the implementation inside the
// plugin satisfy it alike (plugin-protocol 3).
//
// All methods may be called concurrently, also for the same task. Task calls
// carry no deadline of the host's; the context ends them early without any
// effect on the task. A client whose plugin process has died returns
// ErrPluginDown.
type Driver interface {
	// TaskConfigSchema says what the config block of a task accepts. Nil is an
	// empty block on the driver's side, and a driver that says nothing on the
	// host's.
	TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error)

	// Capabilities says what the driver can do.
	Capabilities(ctx context.Context) (*Capabilities, error)

	// Init runs once after SetConfig or reattach. A driver without it returns nil.
	Init(ctx context.Context) error

	// Shutdown runs once before an orderly end of the plugin. It must not stop tasks.
	Shutdown(ctx context.Context) error

	// Fingerprint sends the driver's health at once and on each change. The
	// channel closes when ctx ends or the stream breaks; a break is told by a
	// last Fingerprint with Err set: ErrPluginDown, or ErrChannelClosed when
	// the driver has closed its channel, or what else it says.
	Fingerprint(ctx context.Context) (<-chan Fingerprint, error)

	// StartTask blocks until the task runs. An error says by Recoverable
	// whether the restart policy applies.
	StartTask(ctx context.Context, config *TaskConfig) (*Handle, *NetworkOverride, error)

	// RecoverTask takes over a task that runs already. It does nothing when the
	// driver knows the task. A Recoverable error means that the driver could not find
	// out whether the task is there, and that another call may; any other error means
	// that the driver does not have it.
	RecoverTask(ctx context.Context, handle *Handle) error

	// WaitTask blocks until the task has exited, and gives the same answer to
	// every caller until DestroyTask.
	WaitTask(ctx context.Context, taskID string) (*ExitResult, error)

	// StopTask sends signal (empty means the driver's default), waits up to
	// timeout, kills, and returns when the task has stopped.
	StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) error

	// DestroyTask forgets the task; with force it kills a running one first. An
	// id that ends in WildcardStart is for whatever runs of a task.
	DestroyTask(ctx context.Context, taskID string, force bool) error

	// InspectTask tells the driver's view of the task.
	InspectTask(ctx context.Context, taskID string) (*TaskStatus, error)

	// TaskStats sends a sample at once and one per interval. The channel
	// closes when ctx, the stream or the task ends; the caller may ask again.
	// A client blocks until the first sample, or returns the error that comes
	// in its place; ErrStatsNotImplemented and an Error that is not Recoverable
	// mean that there is no point in asking again.
	TaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *TaskStats, error)

	// TaskEvents sends what the driver says about its tasks. The channel
	// closes when ctx ends or the stream breaks. A driver without events may
	// return a nil channel.
	TaskEvents(ctx context.Context) (<-chan *TaskEvent, error)

	// SignalTask sends one signal by name.
	SignalTask(ctx context.Context, taskID string, signal string) error

	// ExecTask runs a command in the task's surroundings and collects its output.
	ExecTask(ctx context.Context, taskID string, command []string, timeout time.Duration) (*ExecResult, error)

	// ExecTaskStreaming runs a command with live streams and blocks until it
	// has ended; the end of ctx kills it. A command that ends by itself is no
	// error, whatever its exit code.
	ExecTaskStreaming(ctx context.Context, taskID string, exec Exec) (*ExitResult, error)

	// CreateNetwork makes the network namespace of an allocation; created is
	// false when it was there.
	CreateNetwork(ctx context.Context, allocID, hostname string) (isolation *NetworkIsolation, created bool, err error)

	// DestroyNetwork undoes CreateNetwork.
	DestroyNetwork(ctx context.Context, allocID string, isolation *NetworkIsolation) error
}

// WildcardStart is the last part of a task id, "<alloc id>/<task>/any", when nobody
// knows the id any more under which the task was started. Drivers that are made
// with the SDK understand it; to others it is a task that they do not know.
const WildcardStart = "any"

// Exec is one streaming command.
type Exec struct {
	Command []string
	TTY     bool

	// Stdin is what the command reads; nil means nothing. An error other than
	// io.EOF ends the call. A Read may still wait when the call has returned:
	// its owner ends it, and what it gives then is lost.
	Stdin io.Reader

	Stdout io.Writer           // nil means discard
	Stderr io.Writer           // nil means discard; unused with TTY
	Resize <-chan TerminalSize // nil means never; the sender may close it
}

// TerminalSize is in characters.
type TerminalSize struct {
	Height, Width int
}

// Health is the driver's own verdict.
type Health int32

// The numbers are those of the wire.
const (
	HealthUndetected Health = iota
	HealthUnhealthy
	HealthHealthy
)

// Fingerprint is one report about the driver itself.
type Fingerprint struct {
	Attributes        map[string]Attribute
	Health            Health
	HealthDescription string
	Err               error
}

// Attribute is one typed value.
type Attribute struct {
	Value any    // bool, int64, float64 or string; an int is sent as int64
	Unit  string // plugin-protocol 2.4; only with int64 and float64
}

// String renders the attribute as the node shows it: the value in decimal, with
// the unit right behind it (plugin-protocol 2.4).
func (a Attribute) String() string { return fmt.Sprint(a.Value) + a.Unit }

// FSIsolation says how much of the host's files a task sees.
type FSIsolation int32

// The numbers are those of the wire.
const (
	FSIsolationNone FSIsolation = iota
	FSIsolationChroot
	FSIsolationImage
	FSIsolationUnveil
)

// MountConfigs says whether the driver takes mounts.
type MountConfigs int32

// The numbers are those of the wire.
const (
	MountConfigsAny MountConfigs = iota
	MountConfigsNone
)

// Capabilities is what the host must know before it uses the driver
// (plugin-protocol 3.15).
type Capabilities struct {
	SendSignals           bool
	Exec                  bool
	FSIsolation           FSIsolation
	NetworkIsolationModes []NetworkMode
	MustCreateNetwork     bool
	MountConfigs          MountConfigs
	DisableLogCollection  bool
	DynamicWorkloadUsers  bool
}
