package taskrunner

import (
	"maps"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/runtime/taskrunner/restart"
)

// LocalState is what the next agent must know to go on with the task where this
// one left it.
type LocalState struct {
	Hooks       map[string]HookState // by the hook's name
	StartID     string               // of the latest start, set before the driver is called
	Handle      *driver.Handle       // nil unless the task runs
	Network     *driver.NetworkOverride
	Restart     restart.State
	RunComplete bool // the task will never run again
}

// HookState is what one Prestart hook has answered.
type HookState struct {
	Done    bool
	Data    map[string]string
	Env     map[string]string
	Mounts  []driver.Mount
	Devices []driver.Device
}

// Store keeps the records of one task. A write has happened when the method
// returns. The runner does not change what it has handed over, nor may the
// store. PutLocal and PutState may be called at the same time, neither overlaps
// itself.
type Store interface {
	PutLocal(LocalState) error
	PutState(*api.TaskState) error
}

// storeLocal keeps what only the goroutine of Run changes.
func (r *Runner) storeLocal() error {
	return r.store.PutLocal(r.local)
}

// keepLocal is storeLocal for what is no reason to stop if it gets lost.
func (r *Runner) keepLocal() {
	if err := r.storeLocal(); err != nil {
		r.logger.Error("local state not stored", "error", err)
	}
}

// setHook leaves the map alone that a store may still hold.
func (s *LocalState) setHook(name string, state HookState) {
	hooks := maps.Clone(s.Hooks)
	if hooks == nil {
		hooks = make(map[string]HookState)
	}
	hooks[name] = state
	s.Hooks = hooks
}
