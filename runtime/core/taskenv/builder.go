package taskenv

import (
	"maps"
	"slices"
	"sync"
	"weak"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// Builder collects the inputs for a task's environment. Its methods may be called concurrently. The
// caller must not change maps and slices after it has passed them.
type Builder struct {
	mu        sync.Mutex
	inputs    envInputs         // fields of inputs are replaced; the values they point to never change
	cachedEnv weak.Pointer[Env] // environment built from inputs; nil after a change of inputs, or if no caller uses it
}

type envInputs struct {
	node  Node
	alloc Alloc
	task  Task

	taskDir                hook.TaskDir
	isolation              driver.FSIsolation
	hostEnv                map[string]string
	driverPortsByLabel     map[string]int
	tokenByIdentity        map[string]string
	valueBySecretReference map[string]string
	hookEnvs               []hookEnv
	templateEnv            map[string]string
}

type hookEnv struct {
	hookName string
	env      map[string]string
}

// NewBuilder returns a builder for one task's environment, or for the allocation's if task is the zero
// value.
func NewBuilder(node Node, alloc Alloc, task Task) *Builder {
	return &Builder{inputs: envInputs{node: node, alloc: alloc, task: task}}
}

// Build returns the current environment.
func (b *Builder) Build() *Env {
	b.mu.Lock()
	defer b.mu.Unlock()
	env := b.cachedEnv.Value()
	if env == nil {
		in := b.inputs
		env = newEnv(&in)
		b.cachedEnv = weak.Make(env)
	}
	return env
}

// SetAlloc replaces the allocation's and the task's data, after an allocation update or when its network
// was created.
func (b *Builder) SetAlloc(alloc Alloc, task Task) {
	b.changeInputs(func(in *envInputs) { in.alloc, in.task = alloc, task })
}

// SetDirs sets the task's directories and its driver's file system isolation.
func (b *Builder) SetDirs(dir hook.TaskDir, isolation driver.FSIsolation) {
	b.changeInputs(func(in *envInputs) { in.taskDir, in.isolation = dir, isolation })
}

// SetHostEnv sets the variables inherited from the agent; see [FilterHostEnv]. With a driver that
// isolates by image, the task inherits none.
func (b *Builder) SetHostEnv(env map[string]string) {
	b.changeInputs(func(in *envInputs) { in.hostEnv = env })
}

// SetDriverPortByLabel sets the ports to which the driver has mapped the task's own network ports, by label.
func (b *Builder) SetDriverPortByLabel(portByLabel map[string]int) {
	b.changeInputs(func(in *envInputs) { in.driverPortsByLabel = portByLabel })
}

// SetIdentityTokens sets the tokens passed to the task as variables, by identity name.
func (b *Builder) SetIdentityTokens(tokenByIdentity map[string]string) {
	b.changeInputs(func(in *envInputs) { in.tokenByIdentity = tokenByIdentity })
}

// SetHookEnv replaces one hook's variables; nil removes them. Hooks are ordered by their first SetHookEnv
// call; later hooks have precedence.
func (b *Builder) SetHookEnv(hookName string, env map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hooks := slices.Clone(b.inputs.hookEnvs)
	i := slices.IndexFunc(hooks, func(h hookEnv) bool { return h.hookName == hookName })
	if i < 0 {
		hooks = append(hooks, hookEnv{hookName: hookName})
		i = len(hooks) - 1
	}
	if !maps.Equal(hooks[i].env, env) { // most hooks set no variables, and the built environment has some KB
		hooks[i].env = maps.Clone(env)
		b.cachedEnv = weak.Pointer[Env]{}
	}
	b.inputs.hookEnvs = hooks
}

// SetTemplateEnv replaces the template variables. They have the highest precedence, and are not
// interpolated.
func (b *Builder) SetTemplateEnv(env map[string]string) {
	b.changeInputs(func(in *envInputs) { in.templateEnv = env })
}

func (b *Builder) changeInputs(change func(*envInputs)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.inputs)
	b.cachedEnv = weak.Pointer[Env]{}
}
