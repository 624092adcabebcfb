package template

import (
	"context"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Name is the name of the hook.
const Name = "template"

// Evaluators evaluate templates, as [evaluators.Pool] does.
type Evaluators interface {
	Evaluate(context.Context, *evaluate.Request) (*evaluate.Result, error)
	EvaluateAlone(context.Context, *evaluate.Request) (*evaluate.Result, error)
	AloneLimits() string
}

// Hook renders the templates of all tasks of a node.
type Hook struct {
	Evaluators Evaluators // evaluate the templates

	host hook.Host
	node hook.Node

	mu              sync.Mutex
	renderersByTask map[taskKey]*taskRenderer
}

type taskKey struct{ allocID, taskName string }

var (
	_ sdk.HostSetter     = (*Hook)(nil)
	_ hook.TaskPrestart  = (*Hook)(nil)
	_ hook.TaskPoststart = (*Hook)(nil)
	_ hook.TaskStop      = (*Hook)(nil)
)

// Info describes the hook. Prestart has no timeout, because it waits for
// missing data.
func (*Hook) Info() sdk.HookInfo {
	const year = 365 * 24 * time.Hour
	return sdk.HookInfo{Name: Name, Timeouts: map[hook.Point]time.Duration{hook.Prestart: 10 * year}}
}

// SetHost stores the host and the node. The plugin server calls it once, before the first hook
// point.
func (h *Hook) SetHost(host hook.Host, node hook.Node) {
	h.host, h.node = host, node
}

// Prestart blocks until all templates are rendered. When a task restarts, it returns the earlier output immediately, unless the job sets
// render_templates or the last rendering failed. For a task that is already running, it does not wait for missing data.
func (h *Hook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	config, err := parseConfig(req.AttachmentJSON)
	if err != nil {
		return hook.TaskPrestartResponse{}, err
	}
	k := taskKey{req.Alloc.ID, req.Task.Name}
	existing := h.findRenderer(k)
	if existing != nil && !req.Running && (config.RenderOnRestart || existing.lastRenderError() != nil) {
		h.stopRenderer(k)
	}
	r := prestartOrPoststartFields{config: config, alloc: req.Alloc, taskDir: req.Dir, taskEnv: req.Env}
	t, request := h.findOrStartRenderer(k, req.Scope(), r, req.Running)
	select {
	case <-t.firstRenderDone:
	case <-ctx.Done():
		if !req.Running {
			h.stopUnusedRenderer(k, t, request)
		}
		return hook.TaskPrestartResponse{}, ctx.Err()
	}
	if t == existing && req.Running {
		t.repeatUnperformedRestart()
	}
	vars, err := t.takeRenderedEnvForStart(req.Running)
	switch {
	case err == nil || req.Running:
		return hook.TaskPrestartResponse{Env: vars}, nil
	case isPermanent(err):
		select {
		case <-ctx.Done():
			return hook.TaskPrestartResponse{}, ctx.Err()
		case <-time.After(killTimeout):
			return hook.TaskPrestartResponse{}, err
		}
	}
	return hook.TaskPrestartResponse{}, sdk.Recoverable(err)
}

// killTimeout is how long Prestart waits, after a permanent error, for the kill that this error has requested. A kill cancels ctx.
const killTimeout = 5 * time.Second

// Poststart triggers the actions that need a running process, such as scripts
// and pending restarts.
func (h *Hook) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	config, err := parseConfig(req.AttachmentJSON)
	if err != nil {
		return hook.TaskPoststartResponse{}, err
	}
	r := prestartOrPoststartFields{config: config, alloc: req.Alloc, taskDir: req.Dir, taskEnv: req.Env}
	t, _ := h.findOrStartRenderer(taskKey{req.Alloc.ID, req.Task.Name}, req.Scope(), r, true)
	wait.Notify(t.taskStarted)
	return hook.TaskPoststartResponse{}, nil
}

// Stop stops the rendering of the task's templates, and removes the task's renderer with its cached
// data.
func (h *Hook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	h.stopRenderer(taskKey{req.Alloc.ID, req.Task.Name})
	return hook.TaskStopResponse{}, nil
}

func (h *Hook) findRenderer(k taskKey) *taskRenderer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.renderersByTask[k]
}

// findOrStartRenderer returns the renderer of a task, and passes it the scope for calls of the
// host. It makes and starts the renderer if the task has none. taskHasRun means that the task is
// running with files that an earlier process has rendered. request is the number of the request to the renderer.
func (h *Hook) findOrStartRenderer(k taskKey, scope hook.Scope, r prestartOrPoststartFields, taskHasRun bool) (t *taskRenderer, request int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t = h.renderersByTask[k]
	if t != nil {
		t.hostClient.replaceScopeAndRetryCalls(scope)
		t.requests++
		return t, t.requests
	}
	t = newTaskRenderer(h.host, h.node, scope, r, taskHasRun, h.Evaluators)
	if h.renderersByTask == nil {
		h.renderersByTask = map[taskKey]*taskRenderer{}
	}
	h.renderersByTask[k] = t
	t.startRendering(r.config.Templates)
	return t, t.requests
}

// stopUnusedRenderer stops the renderer of a request that was cancelled, unless a later request uses it, for example of the next agent.
func (h *Hook) stopUnusedRenderer(k taskKey, t *taskRenderer, request int) {
	h.mu.Lock()
	isUnused := h.renderersByTask[k] == t && t.requests == request
	if isUnused {
		delete(h.renderersByTask, k)
	}
	h.mu.Unlock()
	if isUnused {
		t.cancelAndWait()
	}
}

func (h *Hook) stopRenderer(k taskKey) {
	h.mu.Lock()
	t := h.renderersByTask[k]
	delete(h.renderersByTask, k)
	h.mu.Unlock()
	if t != nil {
		t.cancelAndWait()
	}
}
