package driver

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
)

// APIVersion is the version of the driver protocol, for base.Info.APIVersions. For hosts only.
const APIVersion = "v0.1.0"

// Driver is the contract between the host and one task driver. Both the host's client and
// the implementation in the plugin process implement it.
//
// All methods may be called concurrently, also for the same task. The host sets no deadline
// on calls for tasks; the end of the context ends the call without any effect on the task.
// A client whose plugin process has exited returns ErrPluginDown. For hosts only.
type Driver interface {
	// TaskConfigSchema returns the schema of a task's config block. If a driver returns a
	// nil Spec, the block must be empty; if the client returns one, the driver has sent no
	// schema.
	TaskConfigSchema(ctx context.Context) (*hclspec.Spec, error)

	// Capabilities returns the features of the driver.
	Capabilities(ctx context.Context) (*Capabilities, error)

	// Init runs once after SetConfig or reattach. A driver without it returns nil.
	Init(ctx context.Context) error

	// Shutdown runs once before a graceful shutdown of the plugin. It must not stop tasks.
	Shutdown(ctx context.Context) error

	// Fingerprint sends the driver's health immediately and on each change. The channel is
	// closed when ctx ends or the stream breaks; before it closes after a broken stream, a
	// last Fingerprint has Err set: ErrPluginDown, ErrChannelClosed if the driver has
	// closed its channel, or another error of the driver.
	Fingerprint(ctx context.Context) (<-chan Fingerprint, error)

	// StartTask blocks until the task runs. The restart policy applies only if the error
	// is Recoverable. An implementation may change config.Env.
	StartTask(ctx context.Context, config *TaskConfig) (*Handle, *NetworkOverride, error)

	// RecoverTask takes over a task that runs already. It does nothing if the driver has
	// the task. A Recoverable error means that the driver could not determine whether the
	// task exists, and that another call may succeed; any other error means that the
	// driver does not have the task.
	RecoverTask(ctx context.Context, handle *Handle) error

	// WaitTask blocks until the task has exited, and returns the same result to every
	// caller until DestroyTask.
	WaitTask(ctx context.Context, taskID string) (*ExitResult, error)

	// StopTask sends signal (empty means the driver's default), waits up to
	// timeout, kills, and returns when the task has stopped.
	StopTask(ctx context.Context, taskID string, timeout time.Duration, signal string) error

	// DestroyTask removes the task from the driver; with force it kills a running task
	// first. An id that ends in WildcardStart matches any start of the task.
	DestroyTask(ctx context.Context, taskID string, force bool) error

	// InspectTask returns the driver's view of the task.
	InspectTask(ctx context.Context, taskID string) (*TaskStatus, error)

	// TaskStats sends a sample immediately and one per interval. The channel is closed
	// when ctx, the stream or the task ends; the caller may call again. A client blocks
	// until the first sample, or returns the error sent in its place; after
	// ErrStatsNotImplemented or an Error that is not Recoverable, further calls are
	// pointless.
	TaskStats(ctx context.Context, taskID string, interval time.Duration) (<-chan *TaskStats, error)

	// TaskEvents sends the driver's events about its tasks. The channel is closed when ctx
	// ends or the stream breaks. A driver without events may return a nil channel.
	TaskEvents(ctx context.Context) (<-chan *TaskEvent, error)

	// SignalTask sends one signal by name.
	SignalTask(ctx context.Context, taskID string, signal string) error

	// ExecTask runs a command in the task's environment and collects its output.
	ExecTask(ctx context.Context, taskID string, command []string, timeout time.Duration) (*ExecResult, error)

	// ExecTaskStreaming runs a command with live streams and blocks until the command has
	// exited; the end of ctx kills it. A command that exits by itself is not an error,
	// whatever its exit code.
	ExecTaskStreaming(ctx context.Context, taskID string, exec Exec) (*ExitResult, error)

	// CreateNetwork creates the network namespace of an allocation; created is false if
	// the namespace already existed. A nil isolation means that the tasks need none. A driver
	// that creates no networks returns ErrCreateNetworkNotSupported.
	CreateNetwork(ctx context.Context, allocID, hostname string) (isolation *NetworkIsolation, created bool, err error)

	// DestroyNetwork undoes CreateNetwork. A driver that creates no networks returns
	// ErrDestroyNetworkNotSupported.
	DestroyNetwork(ctx context.Context, allocID string, isolation *NetworkIsolation) error
}

// ExitNotifier is implemented by a Driver whose waits for exits need no goroutine. For hosts only.
type ExitNotifier interface {
	// NotifyExit calls onExit once with what WaitTask returns. It does not block, and
	// onExit must not block. If ctx ends first, onExit may not be called.
	NotifyExit(ctx context.Context, taskID string, onExit func(*ExitResult, error))
}

// TaskSampler is implemented by a Driver that samples a task without a stream of its own.
// For hosts only.
type TaskSampler interface {
	// SampleTask returns one sample, nil if there is none this time, io.EOF if the task has
	// exited, or an error of TaskStats.
	SampleTask(ctx context.Context, taskID string) (*TaskStats, error)
}

// TasksSampler is implemented by a Driver that can sample several tasks with one call. For hosts only.
type TasksSampler interface {
	// SampleTaskTotals samples each task once, and calls onSample for each task with a sample; i is the index of the task in
	// taskIDs. A task that has exited, or that the driver cannot sample now, has no sample. The calls of onSample do not overlap.
	// SampleTaskTotals returns errors.ErrUnsupported if the driver samples a task only by a stream of its own.
	SampleTaskTotals(ctx context.Context, taskIDs []string, onSample func(i int, total TaskTotal)) error
}

// TaskTotal is the usage of a whole task in one sample. For hosts only.
type TaskTotal struct {
	CPUMHz                 float64 // since the previous sample
	MemoryUsage, MemoryRSS uint64  // bytes; 0 if the driver does not measure it
}

type totalsOnlyKey struct{}

// WithTotalsOnly returns a context for a sample whose ByPID is ignored. For hosts only.
func WithTotalsOnly(ctx context.Context) context.Context {
	return context.WithValue(ctx, totalsOnlyKey{}, true)
}

// IsTotalsOnly reports whether the caller of a sample ignores ByPID, so that a driver can leave it empty to save CPU
// time.
func IsTotalsOnly(ctx context.Context) bool { return ctx.Value(totalsOnlyKey{}) != nil }

// NotifyExit calls NotifyExit of an ExitNotifier. For any other driver it calls WaitTask in
// a goroutine, which ends at the latest when ctx ends. For hosts only.
func NotifyExit(ctx context.Context, d Driver, taskID string, onExit func(*ExitResult, error)) {
	if n, ok := d.(ExitNotifier); ok {
		n.NotifyExit(ctx, taskID, onExit)
		return
	}
	go func() { onExit(d.WaitTask(ctx, taskID)) }()
}

// WildcardStart is the last part of a task id, "<alloc id>/<task>/any", if the id under
// which the task was started is no longer known. Drivers that are made with the SDK
// support it; other drivers return ErrTaskNotFound. For hosts only.
const WildcardStart = "any"

// Exec describes a command for ExecTaskStreaming.
type Exec struct {
	Command []string
	TTY     bool

	// Stdin is the input of the command; nil means empty input. An error other than io.EOF
	// ends the call. A Read may still block after the call has returned: the owner of the
	// reader must end it, and its data is lost.
	Stdin io.Reader

	Stdout io.Writer // output of the command; nil means that it is discarded
	Stderr io.Writer // error output of the command; nil means that it is discarded; unused with TTY
	// Resize delivers new terminal sizes; nil means that the size never changes. The sender may
	// close the channel.
	Resize <-chan TerminalSize
}

// TerminalSize is the size of a terminal, in characters.
type TerminalSize struct {
	Height, Width int
}

// Health is the driver's health as the driver reports it.
type Health int32

// The values are sent in messages of the protocol.
const (
	HealthUndetected Health = iota // the driver cannot work on this machine, for example because a program is not installed; the zero value
	HealthUnhealthy                // the driver is there and cannot start tasks now
	HealthHealthy                  // the driver can start tasks
)

// Fingerprint is one report of the driver about itself. Hosts place new tasks only if
// the driver is healthy.
type Fingerprint struct {
	// Attributes are added to the attributes of the node, which constraints of jobs can compare. Their
	// names should start with "driver.", the name of the driver and a dot. An attribute that a later report
	// does not contain keeps its value; the empty string removes it. The host adds the attribute
	// "driver.NAME" with the value 1 itself unless Health is HealthUndetected.
	Attributes map[string]Attribute

	Health            Health // the zero value is HealthUndetected, so every report must set it
	HealthDescription string // reason of Health, for users

	// Err is set in the last report of a stream that has failed. It is for hosts: a driver
	// reports a failure by Health and HealthDescription. For hosts only.
	Err error
}

// Attribute is the value of one attribute of a Fingerprint.
type Attribute struct {
	Value any    // bool, int64, float64 or string; an int is sent as int64
	Unit  string // unit of an int64 or float64 value, such as "MHz"
}

// String renders the attribute as in the node's attributes: the value in decimal, with the
// unit directly after it.
func (a Attribute) String() string { return fmt.Sprint(a.Value) + a.Unit }

// FSIsolation is how much of the host's file system a task can see.
type FSIsolation int32

// The values are sent in messages of the protocol.
const (
	FSIsolationNone   FSIsolation = iota // the task sees the file system of the host
	FSIsolationChroot                    // the root directory of the task is its task directory
	FSIsolationImage                     // the task has a file system of its own, such as an image
	FSIsolationUnveil                    // the task sees the paths of the host that the driver permits
)

var fsIsolationNames = [...]string{"none", "chroot", "image", "unveil"}

func (i FSIsolation) String() string { return nameOrUnknown(fsIsolationNames[:], int32(i)) }

// nameOrUnknown returns the name of a value that a driver has sent.
func nameOrUnknown(names []string, value int32) string {
	if value < 0 || int(value) >= len(names) {
		return fmt.Sprintf("unknown (%d)", value)
	}
	return names[value]
}

// MountConfigs is the kind of mounts that a driver supports.
type MountConfigs int32

// The values are sent in messages of the protocol.
const (
	MountConfigsAny  MountConfigs = iota // the driver makes all mounts of TaskConfig.Mounts
	MountConfigsNone                     // the driver makes no mounts, and TaskConfig.Mounts is empty
)

var mountConfigsNames = [...]string{"any", "none"}

func (c MountConfigs) String() string { return nameOrUnknown(mountConfigsNames[:], int32(c)) }

// Capabilities are the features that the host must know before it uses the driver.
type Capabilities struct {
	SendSignals bool        // tasks accept signals, see Driver.SignalTask
	Exec        bool        // commands can run in tasks, see Driver.ExecTask and Driver.ExecTaskStreaming
	FSIsolation FSIsolation // the host makes the task directory accordingly

	// NetworkIsolationModes are the modes in which the driver can run a task. A task in a group whose
	// network has the mode "bridge", "none" or "cni/NAME" needs a driver with NetworkGroup.
	NetworkIsolationModes []NetworkMode

	// MustCreateNetwork means that this driver creates the network namespace of a group by
	// Driver.CreateNetwork. Otherwise the host creates it.
	MustCreateNetwork bool

	MountConfigs MountConfigs

	// DisableLogCollection means that the host does not collect the output of tasks: no files exist at
	// TaskConfig.StdoutPath and TaskConfig.StderrPath.
	DisableLogCollection bool

	// DynamicWorkloadUsers means that the host can choose a user without an account, "nomad-UID", for a
	// task without a user.
	DynamicWorkloadUsers bool
}
