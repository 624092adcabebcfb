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
	in  envInputs         // fields of in are replaced; the values that they point to never change
	env weak.Pointer[Env] // environment built from in; nil after a change of in, or when unused
}

type envInputs struct {
	node  Node
	alloc Alloc
	task  Task

	dir         hook.TaskDir
	isolation   driver.FSIsolation
	hostEnv     map[string]string
	driverPorts map[string]int
	tokens      map[string]string
	secrets     map[string]string
	hookEnvs    []hookEnv
	templateEnv map[string]string
}

type hookEnv struct {
	hookName string
	env      map[string]string
}

// NewBuilder returns a builder for one task, or for the allocation as a whole
// if task is zero.
func NewBuilder(node Node, alloc Alloc, task Task) *Builder {
	return &Builder{in: envInputs{node: node, alloc: alloc, task: task}}
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
	b.set(func(in *envInputs) { in.alloc, in.task = alloc, task })
}

// SetDirs sets the task's directories, and the file system isolation of its driver.
func (b *Builder) SetDirs(dir hook.TaskDir, isolation driver.FSIsolation) {
	b.set(func(in *envInputs) { in.dir, in.isolation = dir, isolation })
}

// SetHostEnv sets the variables that the task inherits from the agent; see [HostEnv]. A task whose
// driver isolates by image inherits none.
func (b *Builder) SetHostEnv(env map[string]string) { b.set(func(in *envInputs) { in.hostEnv = env }) }

// SetDriverPorts sets the driver's port mapping for the task's own network, by label.
func (b *Builder) SetDriverPorts(ports map[string]int) {
	b.set(func(in *envInputs) { in.driverPorts = ports })
}

// SetTokens sets the tokens that the task gets as variables, by the name of the identity.
func (b *Builder) SetTokens(tokens map[string]string) {
	b.set(func(in *envInputs) { in.tokens = tokens })
}

// SetHookEnv replaces the variables of one hook; nil removes them. Hooks are ordered by their
// first call; later hooks have precedence.
func (b *Builder) SetHookEnv(hook string, env map[string]string) {
	b.set(func(in *envInputs) {
		in.hookEnvs = slices.Clone(in.hookEnvs)
		i := slices.IndexFunc(in.hookEnvs, func(h hookEnv) bool { return h.hookName == hook })
		if i < 0 {
			in.hookEnvs = append(in.hookEnvs, hookEnv{hookName: hook})
			i = len(in.hookEnvs) - 1
		}
		in.hookEnvs[i].env = maps.Clone(env)
	})
}

// SetTemplateEnv replaces the variables of templates. They have the highest precedence, and are
// not interpolated.
func (b *Builder) SetTemplateEnv(env map[string]string) {
	b.set(func(in *envInputs) { in.templateEnv = env })
}

func (b *Builder) set(change func(*envInputs)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.in)
	b.env = weak.Pointer[Env]{}
}
