package taskenv

import (
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// Builder collects the inputs of a task's environment. Its methods may be called concurrently. The
// caller must not change maps and slices after it has passed them.
type Builder struct {
	mu  sync.Mutex
	in  inputs            // fields are replaced; the values that they point to never change
	env weak.Pointer[Env] // built from in; nil after a change of in, or when unused
}

type inputs struct {
	node  Node
	alloc Alloc
	task  Task

	dir         hook.TaskDir
	isolation   driver.FSIsolation
	host        map[string]string
	driverPorts map[string]int
	hooks       []hookEnv
	template    map[string]string
}

type hookEnv struct {
	hook string
	env  map[string]string
}

// NewBuilder returns a builder for one task, or for the allocation as a whole
// if task is zero.
func NewBuilder(node Node, alloc Alloc, task Task) *Builder {
	return &Builder{in: inputs{node: node, alloc: alloc, task: task}}
}

// Build returns the current environment.
func (b *Builder) Build() *Env {
	b.mu.Lock()
	defer b.mu.Unlock()
	env := b.env.Value()
	if env == nil {
		in := b.in
		env = newEnv(&in)
		b.env = weak.Make(env)
	}
	return env
}

// SetAlloc replaces the data of the allocation and of the task, after an update or when the
// network is ready.
func (b *Builder) SetAlloc(alloc Alloc, task Task) {
	b.set(func(in *inputs) { in.alloc, in.task = alloc, task })
}

// SetDirs sets the task's directories, and the file system isolation of its driver.
func (b *Builder) SetDirs(dir hook.TaskDir, isolation driver.FSIsolation) {
	b.set(func(in *inputs) { in.dir, in.isolation = dir, isolation })
}

// SetHostEnv sets the variables that the task inherits from the agent; see [HostEnv]. A task whose
// driver isolates by image inherits none.
func (b *Builder) SetHostEnv(env map[string]string) { b.set(func(in *inputs) { in.host = env }) }

// SetDriverPorts sets the driver's port mapping for the task's own network, by label.
func (b *Builder) SetDriverPorts(ports map[string]int) {
	b.set(func(in *inputs) { in.driverPorts = ports })
}

// SetHookEnv replaces the variables of one hook; nil removes them. Hooks are ordered by their
// first call; later hooks have precedence.
func (b *Builder) SetHookEnv(hook string, env map[string]string) {
	b.set(func(in *inputs) {
		in.hooks = slices.Clone(in.hooks)
		i := slices.IndexFunc(in.hooks, func(h hookEnv) bool { return h.hook == hook })
		if i < 0 {
			in.hooks = append(in.hooks, hookEnv{hook: hook})
			i = len(in.hooks) - 1
		}
		in.hooks[i].env = maps.Clone(env)
	})
}

// SetTemplateEnv replaces the variables of templates. They have the highest precedence, and are
// not interpolated.
func (b *Builder) SetTemplateEnv(env map[string]string) {
	b.set(func(in *inputs) { in.template = env })
}

func (b *Builder) set(change func(*inputs)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.in)
	b.env = weak.Pointer[Env]{}
}
