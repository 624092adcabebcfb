package taskrunner

import (
	"maps"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/lifecycle"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// nullDevice is where a task writes to whose output nobody collects.
const nullDevice = "/dev/null"

// Task is the task as its job and the placement describe it. Maps and slices
// are shared and never changed.
type Task struct {
	Name    string
	Driver  string
	User    string
	Hook    string // of the lifecycle block
	Sidecar bool
	Leader  bool
	Config  map[string]any
	Meta    map[string]string // of job, group and task, merged

	Resources driver.Resources
	Restart   restart.Policy

	KillTimeout   time.Duration // not above what the agent allows
	KillSignal    string        // empty for the driver's default
	ShutdownDelay time.Duration
}

// Stage is the task's place in the life of its allocation.
func (t Task) Stage() lifecycle.Stage { return lifecycle.StageOf(t.Hook, t.Sidecar) }

// ForHooks returns what hooks are told about the task.
func (t Task) ForHooks() hook.Task {
	return hook.Task{
		Name:      t.Name,
		Driver:    t.Driver,
		User:      t.User,
		Lifecycle: t.Hook,
		Sidecar:   t.Sidecar,
		Leader:    t.Leader,
		Meta:      maps.Clone(t.Meta),
	}
}

// Alloc is what a task shares with the other tasks of its allocation.
type Alloc struct {
	hook.Alloc
	ParentJobID      string
	NetworkIsolation *driver.NetworkIsolation // nil on the network of the host
	DNS              *driver.DNSConfig
}

// Deadlines bound the calls of hooks; zero values stand for the defaults.
type Deadlines struct {
	Prestart time.Duration // one minute
	Others   time.Duration // ten seconds
}

func (d Deadlines) orDefault() Deadlines {
	if d.Prestart == 0 {
		d.Prestart = time.Minute
	}
	if d.Others == 0 {
		d.Others = 10 * time.Second
	}
	return d
}
