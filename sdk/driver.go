package sdk

import (
	"context"
	"errors"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Driver is the interface that the author of a task driver implements. T is the
// author's type of a running task: a pointer to a struct, or an interface if a driver has
// several types of tasks. The optional methods of a task that are called are those of the value
// that Start, Recover or Adopt returns; an interface must have the methods that Capabilities
// requires. A method with the name of an optional method and another signature is an error: at the
// start of the program, or, if T is an interface, of each start that returns a value of that type. Such a
// task is killed and destroyed.
//
// All methods of a driver and of its tasks may be called concurrently.
type Driver[T Task] interface {
	// Info describes the driver. It is called before the configuration is known, and again
	// whenever the capabilities are needed, so it must be cheap. Only Capabilities may depend on the
	// configuration: other fields of later results are not used.
	Info() DriverInfo

	// Start starts a task and returns when the task runs. It may block for a long time (to
	// pull an image, for example), and should return when ctx ends. The task must not
	// depend on ctx, nor on this process: it must continue when either ends.
	//
	// An error fails the task for good, unless it is marked by [Recoverable]. A panic
	// counts as an error that is not marked; see docs/reference/drivers.md.
	Start(ctx context.Context, start *StartRequest) (T, error)
}

// Task is one running task, implemented by the author. Its two methods are required;
// the interfaces below are optional.
type Task interface {
	// Wait blocks until the task has exited and returns its exit status. It is called once
	// per task, right after Start, Recover or Adopt. ctx ends when the task is destroyed. An
	// error is a problem that the exit status does not show, such as an exit status that is unknown
	// and therefore zero: the task has failed, and users see the error. Wait does not set Err of the
	// result, which the package sets to the error.
	Wait(ctx context.Context) (driver.ExitResult, error)

	// Kill kills the task, in any state, and makes Wait return. It may return before the task has
	// exited. Killing a task that has exited is not an error.
	Kill(ctx context.Context) error
}

// Signaler is a task that accepts signals. Stopping such a task sends the signal first,
// and kills the task only after the kill timeout. Signals at other times require
// Capabilities.SendSignals.
type Signaler interface {
	// Signal sends a signal by name, such as "SIGHUP". An empty name means the driver's
	// default stop signal. An unknown name is an error.
	Signal(ctx context.Context, name string) error
}

// Stopper is a task with its own stop operation. A task without it is stopped by
// Signal, the kill timeout, and Kill.
type Stopper interface {
	// Stop sends the signal to the task, waits at most for the timeout, kills the task, and returns when it has
	// exited.
	Stop(ctx context.Context, req StopRequest) error
}

// StopRequest says how a task is stopped.
type StopRequest struct {
	Signal  string        // such as "SIGTERM"; empty means the driver's default
	Timeout time.Duration // time from the signal until the task is killed
}

// Execer is a task in whose environment another command can run. The driver must also
// declare Capabilities.Exec.
type Execer interface {
	// Exec runs the command and returns when the command has exited and its output is
	// written to Stdout and Stderr of exec, which are never nil; Stdin and Resize can be nil.
	// The command is killed when ctx ends. An exit code other than 0 is a result and not an
	// error.
	Exec(ctx context.Context, exec driver.Exec) (driver.ExitResult, error)
}

// StatsProvider is a task that can report its resource usage.
type StatsProvider interface {
	// Stats takes one sample, whose ByPID can be empty if driver.IsTotalsOnly(ctx). The package calls it at once and then once per interval, which the host
	// chooses, and sets a Timestamp that is zero. After an error there is no sample for this interval.
	Stats(ctx context.Context) (driver.TaskStats, error)
}

// StateProvider is a task that another process of the driver can find again, using the
// value that State returns. See [Recoverer].
type StateProvider interface {
	// State is called when the task has started, and again for a host that has not received its value. The
	// exported fields of the value are encoded (tag `codec`), and the host stores them. The host gets no
	// later value: State must return all that Recover needs when the task has started.
	State() any
}

// NetworkReporter is a task with its own address.
type NetworkReporter interface {
	// Network is called once, when the task has started or was recovered. nil means the host's network.
	Network() *driver.NetworkOverride
}

// AttributesProvider is a task with attributes that the host receives when it inspects the task.
type AttributesProvider interface {
	// Attributes is called each time that the host inspects the task.
	Attributes() map[string]string
}

// Destroyer is a task that has something to clean up after its exit.
type Destroyer interface {
	// Destroy removes what is left of a task that has exited, for each start of the task. ctx does not end
	// when the host disconnects. After an error the host calls Destroy again until it succeeds.
	Destroy(ctx context.Context) error
}

// Recoverer is a driver whose tasks outlive its process. A driver without Recover loses its
// tasks when its process exits, and the host starts them again.
type Recoverer[T Task] interface {
	// Recover finds a task that an earlier process of this driver started. It must only
	// rely on the value of start.DecodeState: start.DriverConfig may be empty. It returns an error if the
	// task no longer exists and its exit status is unknown; a task whose exit status is
	// known is recovered, and its Wait returns the status.
	//
	// An error that is marked by [Recoverable] means that the driver could not determine
	// whether the task exists (a file descriptor or a service was missing): the host calls
	// again later, and does not start the task in the meantime.
	Recover(ctx context.Context, start *StartRequest) (T, error)
}

// Adopter is a Recoverer that can find the task of a start during which its process died: the host has the id
// of the start, and no state of the task. Without Adopt, such a start counts as executed: the host
// destroys it, its exit status is unknown, and the restart policy of the task decides. Only a nomad-lite agent requests
// Adopt.
type Adopter[T Task] interface {
	// Adopt finds the task of a start that an earlier process of this driver was executing. The request is
	// the request of Start; start.DecodeState returns an error. A task that has exited is adopted if its exit status is
	// known, and its Wait returns the status. Adopt starts nothing, and removes nothing of a task that was
	// executed: the host destroys the start after it has stored what Adopt returned.
	//
	// [ErrNotExecuted] means that nothing of the task was executed, so that the host starts it. An error
	// that is marked by [Recoverable] means that the driver could not find that out: the host calls again
	// later. Any other error means that the task was executed and that its exit status is unknown.
	Adopt(ctx context.Context, start *StartRequest) (T, error)
}

// ErrNotExecuted is returned by Adopt for a start that has executed nothing of its task.
var ErrNotExecuted = errors.New("the task was not executed")

// Fingerprinter is a driver that is not always healthy, or that reports attributes of
// the machine. A driver without Fingerprint is always healthy.
type Fingerprinter interface {
	// Fingerprint inspects the machine. It is called immediately and then once per
	// DriverInfo.FingerprintInterval, for each host that is connected; the package reports changes to the
	// host. The result must set Health: its zero
	// value means that the driver cannot work on this machine, for the reason in HealthDescription.
	Fingerprint(ctx context.Context) driver.Fingerprint
}

// Initializer is a driver with work to do once, after its configuration and before the
// first task.
type Initializer interface {
	// Init returns an error if the driver cannot be used. Hosts before Nomad 2.0.4 do not call it.
	Init(ctx context.Context) error
}

// Shutdowner is a driver with work to do before a graceful shutdown of its process.
type Shutdowner interface {
	// Shutdown must not stop tasks: they outlive the process. Hosts before Nomad 2.0.4 do not call it, and no
	// host calls it before a process that is killed.
	Shutdown(ctx context.Context) error
}

// NetworkManager is a driver that creates the network namespaces of allocations. Hosts call it if
// the driver declares Capabilities.MustCreateNetwork.
type NetworkManager interface {
	// CreateNetwork creates the network of an allocation, or returns the network that exists already.
	CreateNetwork(ctx context.Context, req CreateNetworkRequest) (CreateNetworkResponse, error)

	// DestroyNetwork undoes CreateNetwork. A network that no longer exists is not an error. After an error a
	// nomad-lite agent calls again.
	DestroyNetwork(ctx context.Context, req DestroyNetworkRequest) error
}

// CreateNetworkRequest is a request for the network of an allocation.
type CreateNetworkRequest struct {
	AllocID  string
	Hostname string // hostname of the group's network block; can be empty
}

// CreateNetworkResponse is the network of an allocation.
type CreateNetworkResponse struct {
	Isolation *driver.NetworkIsolation // nil means that the driver isolates nothing
	Created   bool                     // false if the network existed already
}

// DestroyNetworkRequest names the network of an allocation.
type DestroyNetworkRequest struct {
	AllocID   string
	Isolation *driver.NetworkIsolation // from the response of CreateNetwork; not nil
}

// OrphanKiller is a driver that can find the processes of a start that it has no record of,
// for example because its own process died during Start.
type OrphanKiller interface {
	// Sweep kills the processes that an earlier start of the task has left, and reports
	// whether it found any. The package calls Sweep when a host destroys a task id that the
	// driver does not know, unless the driver knows another start of the same task.
	Sweep(ctx context.Context, req SweepRequest) (found bool, err error)
}

// SweepRequest names the task of an earlier start.
type SweepRequest struct {
	AllocID, TaskName string
}

// DriverInfo is the description of a driver. Only Name is required.
type DriverInfo struct {
	Name    string // name that users write: letters, digits, "_", "-" and "."
	Version string // such as "1.2.3"; empty means "0.1.0"

	// ConfigSchema describes the configuration in the host's `plugin` block. nil means
	// that the driver has no configuration.
	ConfigSchema *hclspec.Spec

	// TaskSchema describes the `config` block of a task. nil means an empty one.
	TaskSchema *hclspec.Spec

	// Capabilities are the features that the driver offers. A capability that is not
	// declared is not offered, even if T has its method: T may embed a type with more
	// methods than the driver wants to offer. SendSignals requires [Signaler], Exec
	// requires [Execer], MustCreateNetwork requires [NetworkManager].
	Capabilities driver.Capabilities

	// StateVersion is the version of the value that State returns; 0 means 1. Recover
	// receives states of this and of earlier versions.
	StateVersion int32

	// FingerprintInterval is the time between two calls of Fingerprint; 0 means 30 s.
	FingerprintInterval time.Duration
}
