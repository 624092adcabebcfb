package taskrunner

import (
	"maps"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/core/restart"
)

// nullDevice is a task's output if the output is not collected.
const nullDevice = "/dev/null"

// Task describes a task from its job and its placement. Copies share their maps and slices, which must not be changed.
type Task struct {
	Name          string
	Driver        string
	User          string
	LifecycleHook string // hook in the task's lifecycle block
	Sidecar       bool
	Leader        bool
	Config        map[string]any
	Meta          map[string]string // job, group and task meta, merged

	Resources     driver.Resources
	RestartPolicy restart.Policy

	KillTimeout   time.Duration // kill_timeout, at most the agent's limit
	KillSignal    string        // signal for a graceful stop; empty for the driver's default
	ShutdownDelay time.Duration
}

// Stage returns the task's lifecycle stage.
func (t Task) Stage() lifecycle.Stage { return lifecycle.StageOf(t.LifecycleHook, t.Sidecar) }

// ToHookTask returns the task in the form that hooks receive.
func (t Task) ToHookTask() hook.Task {
	return hook.Task{
		Name:      t.Name,
		Driver:    t.Driver,
		User:      t.User,
		Lifecycle: t.LifecycleHook,
		Sidecar:   t.Sidecar,
		Leader:    t.Leader,
		Meta:      maps.Clone(t.Meta),
	}
}

// Alloc is the data shared by all tasks in an allocation.
type Alloc struct {
	hook.Alloc
	ParentJobID string
	DNS         *driver.DNSConfig
}
