package sdk

import (
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// Hook is the interface that the author of a hook implements, with a method for at least one
// hook point, such as that of [hook.TaskPrestart] or [hook.AllocPostrun]. A hook can have
// the methods of all hook points. The methods may be called concurrently, for one task as
// well as for many, and again with the same request after a restart of the plugin or the
// agent.
type Hook interface {
	// Info describes the hook. It is called once, when the process starts.
	Info() HookInfo
}

// HookInfo is the description of a hook. Only Name is required.
type HookInfo struct {
	Name    string // name that users write: letters, digits, "_", "-" and "."
	Version string // such as "1.2.3"; empty means "0.1.0"

	// ConfigSchema describes the configuration in the host's `plugin` block. nil means
	// that the hook has no configuration.
	ConfigSchema *hclspec.Spec

	// AttachmentSchema describes the configuration with which a job or the agent attaches
	// the hook. nil means that the attachment has no configuration.
	AttachmentSchema *hclspec.Spec

	// AllAllocs requests calls for all allocations. Without it the hook is only called
	// for the allocations and tasks that it is attached to.
	AllAllocs bool

	// IncludeAllocJSON requests [hook.Alloc].JSON.
	IncludeAllocJSON bool
	// ReportsHealth means that an allocation is healthy for its deployment only after the
	// hook has reported it, with SetHealth of [hook.Host].
	ReportsHealth bool

	// Timeouts limit the duration of calls for hook points for which the host's default
	// (one minute for Prerun and Prestart, else ten seconds) is unsuitable.
	Timeouts map[hook.Point]time.Duration
}

// HostSetter is a hook that calls its host: to run a command in a task, to restart a
// task, to read variables, and for the other methods of [hook.Host].
type HostSetter interface {
	// SetHost is called once, before the first hook point. The host is valid as long as the
	// process lives: its calls block while no agent runs.
	SetHost(host hook.Host, node hook.Node)
}
