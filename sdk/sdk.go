package sdk

import (
	"context"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// Plugin is what can be served: a [Driver], or a hook, which is any value with
// the method of at least one moment ([TaskPrestart], [AllocPostrun], …).
type Plugin interface {
	// Info says what the plugin is. It is called before any configuration is
	// known, and again later; only Capabilities may depend on the configuration.
	Info() Info
}

// Driver is what the author of a task driver writes. T is the author's type of a running task.
//
// All methods of a driver and of its tasks may be called concurrently.
type Driver[T Task] interface {
	Plugin

	// Start starts a task and returns when it runs. It may take its time (to
	// pull an image, say) and should give up when ctx ends. The task must not
	// depend on ctx, nor on this process: it goes on when either ends.
	//
	// An error fails the task for good, unless it is marked by [Recoverable]. A
	// panic is an error that is not; see docs/drivers.md.
	Start(ctx context.Context, start *StartRequest) (T, error)
}

// Task is one running task, in the hands of its author. These two methods are
// the least; the interfaces below them are optional.
type Task interface {
	// Wait blocks until the task has ended and says how. It is called once per
	// task, right after Start or Recover. ctx ends when the task is destroyed.
	// An error says that the driver could not find out; the task then counts as
	// failed.
	Wait(ctx context.Context) (ExitResult, error)

	// Kill ends the task, whatever it is doing, and Wait returns. Killing a task
	// that has ended is no error.
	Kill(ctx context.Context) error
}

// Signaler is a task to which signals can be sent. Stopping such a task sends
// the signal first, and kills only after the kill timeout.
type Signaler interface {
	// Signal sends a signal by name, such as "SIGHUP". An empty name means the
	// driver's own way of asking a task to end. An unknown name is an error.
	Signal(ctx context.Context, name string) error
}

// Stopper is a task that has its own way to stop. A task without it is stopped
// by Signal, the kill timeout, and Kill.
type Stopper interface {
	// Stop asks the task to end by the signal (empty means the driver's
	// default), waits up to timeout, kills it, and returns when it has ended.
	Stop(ctx context.Context, timeout time.Duration, signal string) error
}

// Execer is a task in whose surroundings another command can run.
type Execer interface {
	// Exec runs the command and returns when it has ended and its output is
	// written. The command is killed when ctx ends. A code other than 0 is a
	// result and not an error.
	Exec(ctx context.Context, exec Exec) (ExitResult, error)
}

// StatsProvider is a task that knows what it uses.
type StatsProvider interface {
	// Stats takes one sample. The package asks once per interval.
	Stats(ctx context.Context) (TaskStats, error)
}

// StateProvider is a task that another process of the driver can find again, by what
// State returns. See [Recoverer].
type StateProvider interface {
	// State is called once, when the task has started. The value is encoded by
	// its exported fields (tag `codec`), and the host keeps it.
	State() any
}

// NetworkReporter is a task with an address of its own.
type NetworkReporter interface {
	// Network is called once, when the task has started. nil means the host's network.
	Network() *NetworkOverride
}

// AttributesProvider is a task about which a driver has more to say when it is inspected.
type AttributesProvider interface {
	Attributes() map[string]string
}

// Destroyer is a task that leaves something behind to clean up.
type Destroyer interface {
	// Destroy removes what is left of a task that has ended. It is called again after
	// an error, by the host, until it succeeds.
	Destroy(ctx context.Context) error
}

// Recoverer is a driver whose tasks outlive its process. A driver without it
// loses its tasks with its process, and the host starts them again.
type Recoverer[T Task] interface {
	// Recover finds a task that an earlier process of this driver started. It
	// must rely on start.State alone for what it needs to know:
	// start.DriverConfig may be empty. It returns an error if the task is gone
	// and nobody knows how it ended; a task that is known to have ended is
	// recovered, and its Wait says how.
	//
	// An error that is marked by [Recoverable] means that the driver could not find out
	// whether the task is gone (a file descriptor or a service was missing): the host
	// calls again later, and does not start the task meanwhile.
	Recover(ctx context.Context, start *StartRequest) (T, error)
}

// Configurer is a driver or a hook with a configuration of its own, in the `plugin` block
// of the host.
type Configurer interface {
	// Configure takes the configuration. It may be called more than once and
	// must have no effect outside of the process: hosts call it only to find out
	// whether a configuration is good.
	Configure(ctx context.Context, config *Config) error
}

// Fingerprinter is a driver that is not always healthy, or has something to say
// about the machine.
type Fingerprinter interface {
	// Fingerprint looks at the machine now. It is asked at once and then once
	// per Info.FingerprintInterval; what has changed is reported.
	Fingerprint(ctx context.Context) Fingerprint
}

// Initializer is a driver that has work to do once, before the first task and after
// its configuration.
type Initializer interface {
	Init(ctx context.Context) error
}

// Shutdowner is a driver that has work to do before its process is ended
// orderly. It must not stop tasks: they outlive the process.
type Shutdowner interface {
	Shutdown(ctx context.Context) error
}

// NetworkManager is a driver that makes the network namespaces of allocations.
type NetworkManager interface {
	// CreateNetwork makes the network of an allocation. created is false when it
	// was there. A nil isolation means that there is nothing to isolate.
	CreateNetwork(ctx context.Context, allocID, hostname string) (isolation *NetworkIsolation, created bool, err error)

	// DestroyNetwork undoes CreateNetwork.
	DestroyNetwork(ctx context.Context, allocID string, isolation *NetworkIsolation) error
}

// OrphanKiller is a driver that can find the remains of a start that it does not know
// (any more), for example because its process died during Start.
type OrphanKiller interface {
	// Sweep ends what may still run of this task. found says whether there was
	// anything. It is called when a host destroys an id that is unknown, and
	// not while another start of the same task is known.
	Sweep(ctx context.Context, allocID, taskName string) (found bool, err error)
}

// Info is what a plugin says about itself. Only Name is required.
type Info struct {
	Name    string // what users call it: letters, digits, "_", "-" and "."
	Version string // such as "1.2.3"; empty means "0.1.0"

	// ConfigSchema describes the configuration in the host's `plugin` block. nil
	// means that there is none to give.
	ConfigSchema *Spec

	// What follows is for drivers.

	// TaskSchema describes the `config` block of a task. nil means an empty one.
	TaskSchema *Spec

	// Capabilities are those that do not follow from methods. SendSignals, Exec
	// and MustCreateNetwork are filled in from the methods that T and the driver have.
	Capabilities Capabilities

	// StateVersion is the version of what State returns; 0 means 1. Recover is
	// handed states of this and of earlier versions.
	StateVersion int32

	// FingerprintInterval is the time between two looks at the machine; 0 means 30 s.
	FingerprintInterval time.Duration

	// What follows is for hooks.

	// AttachmentSchema describes the configuration with which a job or the
	// agent attaches the hook. nil means that there is none to give.
	AttachmentSchema *Spec

	// EveryAlloc asks to be called for all allocations. Without it the hook is
	// called for what it is attached to.
	EveryAlloc bool

	// WholeAlloc asks for Alloc.JSON.
	WholeAlloc bool
	// DecidesHealth says that an allocation is healthy for its deployment only when
	// the hook has said so, with Host.SetHealth.
	DecidesHealth bool

	// Timeouts say how long a call may take, of moments for which the host's
	// default (a minute for Prerun and Prestart, else ten seconds) is wrong.
	Timeouts map[Point]time.Duration
}

// The values that an author meets. They are those of the wire contract:
//
//	go doc github.com/nomad-lite/nomad-lite/plugins/driver.TaskConfig
type (
	// TaskConfig is everything the host says about one start of a task.
	TaskConfig = driver.TaskConfig
	// Resources is what placement granted to the task.
	Resources = driver.Resources
	// Mount is one host path that a task sees.
	Mount = driver.Mount
	// Device is one device node that a task sees.
	Device = driver.Device
	// NetworkIsolation is the network namespace that the tasks of a group share.
	NetworkIsolation = driver.NetworkIsolation
	// NetworkOverride is the address that a driver gave to a task by itself.
	NetworkOverride = driver.NetworkOverride

	// ExitResult is how a task or a command ended.
	ExitResult = driver.ExitResult
	// Exec is one command to run in a task, with its streams.
	Exec = driver.Exec
	// TerminalSize is in characters.
	TerminalSize = driver.TerminalSize

	// TaskStats is one sample of what a task uses.
	TaskStats = driver.TaskStats
	// Usage is one set of CPU and memory figures.
	Usage = driver.Usage
	// CPUUsage is measured since the sample before.
	CPUUsage = driver.CPUUsage
	// MemoryUsage is in bytes.
	MemoryUsage = driver.MemoryUsage

	// Fingerprint is one report about the driver itself.
	Fingerprint = driver.Fingerprint
	// Attribute is one typed value of a Fingerprint.
	Attribute = driver.Attribute
	// Health is the driver's own verdict.
	Health = driver.Health
	// Capabilities is what a host must know before it uses a driver.
	Capabilities = driver.Capabilities
	// FSIsolation says how much of the host's files a task sees.
	FSIsolation = driver.FSIsolation
	// NetworkMode says which network namespace a task lives in.
	NetworkMode = driver.NetworkMode
	// MountConfigs says whether a driver takes mounts.
	MountConfigs = driver.MountConfigs
)

// The verdicts of a Fingerprint.
const (
	HealthUndetected = driver.HealthUndetected // what the driver needs is not on this machine
	HealthUnhealthy  = driver.HealthUnhealthy  // it is there and does not work
	HealthHealthy    = driver.HealthHealthy
)

// The values of Capabilities.
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

// ErrTaskNotFound is what a host is told about a task id that the driver does
// not know. The package answers it by itself; it is here for tests.
var ErrTaskNotFound = driver.ErrTaskNotFound

// Recoverable marks an error of Start as one that another try may heal: the
// restart policy of the task applies. An error of Recover that is marked means that the
// task may still be there, see [Recoverer]. nil stays nil.
func Recoverable(err error) error { return driver.Recoverable(err) }
