package script

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/confine"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Name is the name of the hook in jobs and in the agent's configuration.
const Name = "script"

// Hook is the hook script. Its zero value is ready for use.
type Hook struct {
	// IsDedicatedProcess is true in a process that serves only this hook: unless the operator allows
	// commands on the host, Configure permanently denies this process the system calls that start
	// programs.
	IsDedicatedProcess bool

	host                hook.Host
	hostCommandsAllowed atomic.Bool // true if the operator allows commands on the host
}

var (
	_ sdk.Configurer = (*Hook)(nil)
	_ sdk.HostSetter = (*Hook)(nil)

	_ hook.AllocPrerun         = (*Hook)(nil)
	_ hook.AllocUpdate         = (*Hook)(nil)
	_ hook.AllocPreTaskRestart = (*Hook)(nil)
	_ hook.AllocPreKill        = (*Hook)(nil)
	_ hook.AllocPostrun        = (*Hook)(nil)
	_ hook.AllocDestroy        = (*Hook)(nil)
	_ hook.AllocShutdown       = (*Hook)(nil)
	_ hook.TaskPrestart        = (*Hook)(nil)
	_ hook.TaskPoststart       = (*Hook)(nil)
	_ hook.TaskUpdate          = (*Hook)(nil)
	_ hook.TaskPreKilling      = (*Hook)(nil)
	_ hook.TaskExited          = (*Hook)(nil)
	_ hook.TaskStop            = (*Hook)(nil)
	_ hook.TaskShutdown        = (*Hook)(nil)
)

// Info returns the description of the hook.
func (*Hook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    Name,
		Version: "0.1.0",
		ConfigSchema: hclspec.Object(map[string]*hclspec.Spec{
			"commands": hclspec.Default(hclspec.Attr("commands", "bool", false), hclspec.Literal("false")),
		}),
		AttachmentSchema: attachmentSchema,
	}
}

// Configure stores the plugin's configuration.
func (h *Hook) Configure(_ context.Context, c *sdk.Config) error {
	var config struct {
		Commands bool `codec:"commands"`
	}
	if err := c.Decode(&config); err != nil {
		return err
	}
	h.hostCommandsAllowed.Store(config.Commands)
	if h.IsDedicatedProcess && !config.Commands { // the denial has no end: the host starts a new process for another configuration
		confine.DenyProcessSyscalls(confine.ExecAndSystemAdminSyscalls()...)
	}
	return nil
}

// SetHost stores the host, whose calls the actions use.
func (h *Hook) SetHost(host hook.Host, _ hook.Node) { h.host = host }

// runPointAction runs the action that the attachment's config has for a hook point, and emits an event
// if the action succeeds. Errors are recoverable (the restart policy of the task may start it
// again), except for errors of the configuration.
func (h *Hook) runPointAction(ctx context.Context, meta hook.RequestMeta, payload hookPayload) error {
	var actionsByPoint map[string]*scriptAction
	if err := meta.DecodeConfig(&actionsByPoint); err != nil {
		return err
	}
	a := actionsByPoint[payload.HookPoint]
	if a == nil {
		return nil
	}
	a, err := a.interpolate(ctx, h.host, meta.Scope())
	if err != nil {
		return sdk.Recoverable(err)
	}
	if a.Timeout != "" {
		timeout, err := time.ParseDuration(a.Timeout)
		if err != nil || timeout <= 0 {
			return fmt.Errorf(`timeout: %q is not a time such as "5s"`, a.Timeout)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no end within %v", timeout))
		defer cancel()
	}
	actionName, output, err := h.runAction(ctx, a, meta, payload)
	switch {
	case errors.As(err, new(permanentError)):
		return fmt.Errorf("%s: %w", actionName, err)
	case err != nil && ctx.Err() != nil:
		return sdk.Recoverable(fmt.Errorf("%s: %w", actionName, context.Cause(ctx)))
	case err != nil && output != "":
		return sdk.Recoverable(fmt.Errorf("%s: %w: %s", actionName, err, output))
	case err != nil:
		return sdk.Recoverable(fmt.Errorf("%s: %w", actionName, err))
	}
	h.emitSuccessEvent(ctx, meta, payload, actionName, output)
	return nil
}

// permanentError is an error that a retry cannot fix.
type permanentError string

func (p permanentError) Error() string { return string(p) }

// runAction runs the action, and returns the name of the action for messages and its output.
func (h *Hook) runAction(ctx context.Context, a *scriptAction, meta hook.RequestMeta, payload hookPayload) (actionName, output string, err error) {
	switch {
	case !a.hasExactlyOneAction():
		return payload.HookPoint, "", permanentError("say one of command, exec and url")
	case len(a.HostCommand) > 0 && !h.hostCommandsAllowed.Load():
		return "command", "", permanentError(`commands on the host are not allowed here; the operator of the agent can allow them: plugin "script" { config { commands = true } }`)
	case len(a.HostCommand) > 0:
		output, err = runHostCommand(ctx, a.HostCommand, payload)
		return a.HostCommand[0], output, err
	case len(a.ExecInTask) > 0:
		output, err = h.execInTask(ctx, meta, a.ExecInTask)
		return a.ExecInTask[0], output, err
	}
	output, err = sendRequest(ctx, a, payload)
	return a.methodOrDefault() + " " + a.redactedURL, output, err
}

func (h *Hook) execInTask(ctx context.Context, meta hook.RequestMeta, command []string) (output string, err error) {
	result, err := h.host.Exec(ctx, meta.Scope(), hook.ExecRequest{Command: command})
	if err != nil {
		return "", err
	}
	var t tailBuffer
	_, _ = t.Write(result.Stdout) // Write to a tailBuffer never fails
	_, _ = t.Write(result.Stderr)
	if code := result.Exit.ExitCode; code != 0 {
		return t.String(), fmt.Errorf("exit code %d", code)
	}
	return t.String(), nil
}

// eventTimeout is short, because an agent that shuts down no longer receives
// events.
const eventTimeout = time.Second

// emitSuccessEvent emits an event about a successful action. It logs errors.
func (h *Hook) emitSuccessEvent(ctx context.Context, meta hook.RequestMeta, payload hookPayload, actionName, output string) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	message := payload.HookPoint + ": " + actionName
	if output != "" {
		message += ": " + output
	}
	err := h.host.EmitEvent(ctx, meta.Scope(), hook.Event{
		Message: message,
		Details: map[string]string{"hook": Name, "hook_point": payload.HookPoint},
	})
	if err != nil {
		hclog.L().Debug("event not told", "alloc_id", payload.AllocID, "task", payload.Task, "hook_point", payload.HookPoint, "error", err)
	}
}

// Prerun implements hook.AllocPrerun.
func (h *Hook) Prerun(ctx context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, h.runPointAction(ctx, req.RequestMeta, newAllocPayload(hook.Prerun, req.Alloc))
}

// UpdateAlloc implements hook.AllocUpdate.
func (h *Hook) UpdateAlloc(ctx context.Context, req hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, h.runPointAction(ctx, req.RequestMeta, newAllocPayload(hook.UpdateAlloc, req.Alloc))
}

// PreTaskRestart implements hook.AllocPreTaskRestart.
func (h *Hook) PreTaskRestart(ctx context.Context, req hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, h.runPointAction(ctx, req.RequestMeta, newAllocPayload(hook.PreTaskRestart, req.Alloc))
}

// PreKill implements hook.AllocPreKill.
func (h *Hook) PreKill(ctx context.Context, req hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, h.runPointAction(ctx, req.RequestMeta, newAllocPayload(hook.PreKill, req.Alloc))
}

// Postrun implements hook.AllocPostrun.
func (h *Hook) Postrun(ctx context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, h.runPointAction(ctx, req.RequestMeta, newAllocPayload(hook.Postrun, req.Alloc))
}

// Destroy implements hook.AllocDestroy.
func (h *Hook) Destroy(ctx context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, h.runPointAction(ctx, req.RequestMeta, newAllocPayload(hook.Destroy, req.Alloc))
}

// ShutdownAlloc implements hook.AllocShutdown.
func (h *Hook) ShutdownAlloc(ctx context.Context, req hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, h.runPointAction(ctx, req.RequestMeta, newAllocPayload(hook.ShutdownAlloc, req.Alloc))
}

// Prestart implements hook.TaskPrestart.
func (h *Hook) Prestart(ctx context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	if req.Running {
		return hook.TaskPrestartResponse{}, nil // the action has run before the task was started
	}
	return hook.TaskPrestartResponse{}, h.runPointAction(ctx, req.RequestMeta, newTaskPayload(hook.Prestart, req.Alloc, req.Task))
}

// Poststart implements hook.TaskPoststart.
func (h *Hook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	o := newTaskPayload(hook.Poststart, req.Alloc, req.Task)
	o.Repeated = req.Repeated
	return hook.TaskPoststartResponse{}, h.runPointAction(ctx, req.RequestMeta, o)
}

// Update implements hook.TaskUpdate.
func (h *Hook) Update(ctx context.Context, req hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, h.runPointAction(ctx, req.RequestMeta, newTaskPayload(hook.Update, req.Alloc, req.Task))
}

// PreKilling implements hook.TaskPreKilling.
func (h *Hook) PreKilling(ctx context.Context, req hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, h.runPointAction(ctx, req.RequestMeta, newTaskPayload(hook.PreKilling, req.Alloc, req.Task))
}

// Exited implements hook.TaskExited.
func (h *Hook) Exited(ctx context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	o := newTaskPayload(hook.Exited, req.Alloc, req.Task)
	o.Exit = &taskExitPayload{Code: req.Exit.ExitCode, Signal: req.Exit.Signal, OOMKilled: req.Exit.OOMKilled, WillRestart: req.WillRestart}
	if req.Exit.Err != nil {
		o.Exit.Error = req.Exit.Err.Error()
	}
	return hook.TaskExitedResponse{}, h.runPointAction(ctx, req.RequestMeta, o)
}

// Stop implements hook.TaskStop.
func (h *Hook) Stop(ctx context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, h.runPointAction(ctx, req.RequestMeta, newTaskPayload(hook.Stop, req.Alloc, req.Task))
}

// Shutdown implements hook.TaskShutdown.
func (h *Hook) Shutdown(ctx context.Context, req hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, h.runPointAction(ctx, req.RequestMeta, newTaskPayload(hook.Shutdown, req.Alloc, req.Task))
}

// hookPayload is the JSON that commands and HTTP requests get as their input.
type hookPayload struct {
	HookPoint string           `json:"hook_point"`
	AllocID   string           `json:"alloc_id"`
	AllocName string           `json:"alloc_name"`
	Namespace string           `json:"namespace"`
	JobID     string           `json:"job_id"`
	JobName   string           `json:"job_name"`
	Group     string           `json:"group"`
	NodeID    string           `json:"node_id"`
	NodeName  string           `json:"node_name"`
	Task      string           `json:"task,omitempty"`
	Exit      *taskExitPayload `json:"exit,omitempty"`     // set only at the hook point exited
	Repeated  bool             `json:"repeated,omitempty"` // set only at the hook point poststart
}

type taskExitPayload struct {
	Code        int    `json:"code"`
	Signal      int    `json:"signal"`
	OOMKilled   bool   `json:"oom_killed"`
	Error       string `json:"error,omitempty"`
	WillRestart bool   `json:"will_restart"`
}

func newAllocPayload(point hook.Point, a hook.Alloc) hookPayload {
	return hookPayload{
		HookPoint: point.String(), AllocID: a.ID, AllocName: a.Name, Namespace: a.Namespace, JobID: a.JobID, JobName: a.JobName,
		Group: a.TaskGroup, NodeID: a.NodeID, NodeName: a.NodeName,
	}
}

func newTaskPayload(point hook.Point, a hook.Alloc, t hook.Task) hookPayload {
	o := newAllocPayload(point, a)
	o.Task = t.Name
	return o
}

// envList returns the payload as environment variables, for commands that do not
// read JSON. It uses Nomad's variable names if Nomad has them.
func (h hookPayload) envList() []string {
	env := []string{
		"HOOK_POINT=" + h.HookPoint,
		"NOMAD_ALLOC_ID=" + h.AllocID,
		"NOMAD_ALLOC_NAME=" + h.AllocName,
		"NOMAD_NAMESPACE=" + h.Namespace,
		"NOMAD_JOB_ID=" + h.JobID,
		"NOMAD_JOB_NAME=" + h.JobName,
		"NOMAD_GROUP_NAME=" + h.Group,
	}
	if h.Task != "" {
		env = append(env, "NOMAD_TASK_NAME="+h.Task)
	}
	if h.Repeated {
		env = append(env, "HOOK_REPEATED=true")
	}
	if h.Exit != nil {
		env = append(env,
			fmt.Sprintf("HOOK_EXIT_CODE=%d", h.Exit.Code),
			fmt.Sprintf("HOOK_EXIT_SIGNAL=%d", h.Exit.Signal),
			fmt.Sprintf("HOOK_OOM_KILLED=%t", h.Exit.OOMKilled),
			fmt.Sprintf("HOOK_WILL_RESTART=%t", h.Exit.WillRestart),
		)
	}
	return env
}

// maxOutputSize is the maximum size of the output in an event, in bytes.
const maxOutputSize = 1 << 10

// tailBuffer keeps the end of the data written to it.
type tailBuffer struct{ tail []byte }

func (t *tailBuffer) Write(p []byte) (int, error) {
	t.tail = append(t.tail, p[max(0, len(p)-maxOutputSize):]...)
	t.tail = append(t.tail[:0], t.tail[max(0, len(t.tail)-maxOutputSize):]...)
	return len(p), nil
}

// String returns the output as valid UTF-8 for an event.
func (t *tailBuffer) String() string {
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(t.tail), "\x00", ""), ""))
}
