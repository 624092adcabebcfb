package script

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/plugins/confine"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Name is the name of the hook in jobs and in the agent's configuration.
const Name = "script"

// Hook is the hook script. Its zero value is ready for use.
type Hook struct {
	// OwnProcess is set by a process that serves only this hook: unless commands
	// on the host are allowed, Configure permanently denies the process the
	// system calls for them.
	OwnProcess bool

	host     sdk.Host
	commands atomic.Bool // commands on the host are allowed
}

var (
	_ sdk.Configurer = (*Hook)(nil)
	_ sdk.HostSetter = (*Hook)(nil)

	_ sdk.AllocPrerun         = (*Hook)(nil)
	_ sdk.AllocUpdate         = (*Hook)(nil)
	_ sdk.AllocPreTaskRestart = (*Hook)(nil)
	_ sdk.AllocPreKill        = (*Hook)(nil)
	_ sdk.AllocPostrun        = (*Hook)(nil)
	_ sdk.AllocDestroy        = (*Hook)(nil)
	_ sdk.AllocShutdown       = (*Hook)(nil)
	_ sdk.TaskPrestart        = (*Hook)(nil)
	_ sdk.TaskPoststart       = (*Hook)(nil)
	_ sdk.TaskUpdate          = (*Hook)(nil)
	_ sdk.TaskPreKilling      = (*Hook)(nil)
	_ sdk.TaskExited          = (*Hook)(nil)
	_ sdk.TaskStop            = (*Hook)(nil)
	_ sdk.TaskShutdown        = (*Hook)(nil)
)

// Info implements sdk.Hook.
func (*Hook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    Name,
		Version: "0.1.0",
		ConfigSchema: sdk.Object(map[string]*sdk.Spec{
			"commands": sdk.Default(sdk.Attr("commands", "bool", false), sdk.Literal("false")),
		}),
		AttachmentSchema: attachmentSchema,
	}
}

// Configure implements sdk.Configurer.
func (h *Hook) Configure(_ context.Context, c *sdk.Config) error {
	var config struct {
		Commands bool `codec:"commands"`
	}
	if err := c.Decode(&config); err != nil {
		return err
	}
	h.commands.Store(config.Commands)
	if h.OwnProcess && !config.Commands { // another configuration means another process
		confine.DenyProcess(confine.Powers()...)
	}
	return nil
}

// SetHost implements sdk.HostSetter.
func (h *Hook) SetHost(host sdk.Host, _ sdk.Node) { h.host = host }

// do runs the action of the attachment for the hook point. It returns an error
// if the action fails, and otherwise emits an event. Before a start the restart
// policy can retry failures, except configuration errors.
func (h *Hook) do(ctx context.Context, meta sdk.RequestMeta, o payload) error {
	var actions map[string]*action
	if err := meta.Config(&actions); err != nil {
		return err
	}
	a := actions[o.HookPoint]
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
	done, output, err := h.act(ctx, a, meta, o)
	switch {
	case errors.As(err, new(permanentError)):
		return fmt.Errorf("%s: %w", done, err)
	case err != nil && ctx.Err() != nil:
		return sdk.Recoverable(fmt.Errorf("%s: %w", done, context.Cause(ctx)))
	case err != nil && output != "":
		return sdk.Recoverable(fmt.Errorf("%s: %w: %s", done, err, output))
	case err != nil:
		return sdk.Recoverable(fmt.Errorf("%s: %w", done, err))
	}
	h.tell(ctx, meta, o, done, output)
	return nil
}

// permanentError is an error that a retry cannot fix.
type permanentError string

func (m permanentError) Error() string { return string(m) }

// act runs the action, and returns its name and its output.
func (h *Hook) act(ctx context.Context, a *action, meta sdk.RequestMeta, o payload) (done, output string, err error) {
	switch {
	case !a.oneThing():
		return o.HookPoint, "", permanentError("say one of command, exec and url")
	case len(a.Command) > 0 && !h.commands.Load():
		return "command", "", permanentError(`commands on the host are not allowed here; whoever runs the agent can allow them: plugin "script" { config { commands = true } }`)
	case len(a.Command) > 0:
		output, err = run(ctx, a.Command, o)
		return a.Command[0], output, err
	case len(a.Exec) > 0:
		output, err = h.exec(ctx, meta, a.Exec)
		return a.Exec[0], output, err
	}
	output, err = call(ctx, a, o)
	return a.method() + " " + a.shown, output, err
}

func (h *Hook) exec(ctx context.Context, meta sdk.RequestMeta, command []string) (output string, err error) {
	result, err := h.host.Exec(ctx, meta.Scope(), command, 0)
	if err != nil {
		return "", err
	}
	var t tail
	_, _ = t.Write(result.Stdout) // a write to memory cannot fail
	_, _ = t.Write(result.Stderr)
	if code := result.Exit.ExitCode; code != 0 {
		return t.String(), fmt.Errorf("exit code %d", code)
	}
	return t.String(), nil
}

// eventTimeout is short, because an agent that shuts down no longer receives
// events.
const eventTimeout = time.Second

// tell emits an event. Errors are only logged.
func (h *Hook) tell(ctx context.Context, meta sdk.RequestMeta, o payload, done, output string) {
	ctx, cancel := context.WithTimeout(ctx, eventTimeout)
	defer cancel()
	message := o.HookPoint + ": " + done
	if output != "" {
		message += ": " + output
	}
	err := h.host.EmitEvent(ctx, meta.Scope(), sdk.Event{
		Message: message,
		Details: map[string]string{"hook": Name, "hook_point": o.HookPoint},
	})
	if err != nil {
		hclog.L().Debug("event not told", "alloc_id", o.AllocID, "task", o.Task, "hook_point", o.HookPoint, "error", err)
	}
}

// Prerun implements sdk.AllocPrerun.
func (h *Hook) Prerun(ctx context.Context, req sdk.AllocPrerunRequest) (sdk.AllocPrerunResponse, error) {
	return sdk.AllocPrerunResponse{}, h.do(ctx, req.RequestMeta, ofAlloc(sdk.PointPrerun, req.Alloc))
}

// UpdateAlloc implements sdk.AllocUpdate.
func (h *Hook) UpdateAlloc(ctx context.Context, req sdk.AllocUpdateRequest) (sdk.AllocUpdateResponse, error) {
	return sdk.AllocUpdateResponse{}, h.do(ctx, req.RequestMeta, ofAlloc(sdk.PointUpdateAlloc, req.Alloc))
}

// PreTaskRestart implements sdk.AllocPreTaskRestart.
func (h *Hook) PreTaskRestart(ctx context.Context, req sdk.AllocPreTaskRestartRequest) (sdk.AllocPreTaskRestartResponse, error) {
	return sdk.AllocPreTaskRestartResponse{}, h.do(ctx, req.RequestMeta, ofAlloc(sdk.PointPreTaskRestart, req.Alloc))
}

// PreKill implements sdk.AllocPreKill.
func (h *Hook) PreKill(ctx context.Context, req sdk.AllocPreKillRequest) (sdk.AllocPreKillResponse, error) {
	return sdk.AllocPreKillResponse{}, h.do(ctx, req.RequestMeta, ofAlloc(sdk.PointPreKill, req.Alloc))
}

// Postrun implements sdk.AllocPostrun.
func (h *Hook) Postrun(ctx context.Context, req sdk.AllocPostrunRequest) (sdk.AllocPostrunResponse, error) {
	return sdk.AllocPostrunResponse{}, h.do(ctx, req.RequestMeta, ofAlloc(sdk.PointPostrun, req.Alloc))
}

// Destroy implements sdk.AllocDestroy.
func (h *Hook) Destroy(ctx context.Context, req sdk.AllocDestroyRequest) (sdk.AllocDestroyResponse, error) {
	return sdk.AllocDestroyResponse{}, h.do(ctx, req.RequestMeta, ofAlloc(sdk.PointDestroy, req.Alloc))
}

// ShutdownAlloc implements sdk.AllocShutdown.
func (h *Hook) ShutdownAlloc(ctx context.Context, req sdk.AllocShutdownRequest) (sdk.AllocShutdownResponse, error) {
	return sdk.AllocShutdownResponse{}, h.do(ctx, req.RequestMeta, ofAlloc(sdk.PointShutdownAlloc, req.Alloc))
}

// Prestart implements sdk.TaskPrestart.
func (h *Hook) Prestart(ctx context.Context, req sdk.TaskPrestartRequest) (sdk.TaskPrestartResponse, error) {
	if req.Running {
		return sdk.TaskPrestartResponse{}, nil // done before the start of the task
	}
	return sdk.TaskPrestartResponse{}, h.do(ctx, req.RequestMeta, ofTask(sdk.PointPrestart, req.Alloc, req.Task))
}

// Poststart implements sdk.TaskPoststart.
func (h *Hook) Poststart(ctx context.Context, req sdk.TaskPoststartRequest) (sdk.TaskPoststartResponse, error) {
	o := ofTask(sdk.PointPoststart, req.Alloc, req.Task)
	o.Repeated = req.Repeated
	return sdk.TaskPoststartResponse{}, h.do(ctx, req.RequestMeta, o)
}

// Update implements sdk.TaskUpdate.
func (h *Hook) Update(ctx context.Context, req sdk.TaskUpdateRequest) (sdk.TaskUpdateResponse, error) {
	return sdk.TaskUpdateResponse{}, h.do(ctx, req.RequestMeta, ofTask(sdk.PointUpdate, req.Alloc, req.Task))
}

// PreKilling implements sdk.TaskPreKilling.
func (h *Hook) PreKilling(ctx context.Context, req sdk.TaskPreKillingRequest) (sdk.TaskPreKillingResponse, error) {
	return sdk.TaskPreKillingResponse{}, h.do(ctx, req.RequestMeta, ofTask(sdk.PointPreKilling, req.Alloc, req.Task))
}

// Exited implements sdk.TaskExited.
func (h *Hook) Exited(ctx context.Context, req sdk.TaskExitedRequest) (sdk.TaskExitedResponse, error) {
	o := ofTask(sdk.PointExited, req.Alloc, req.Task)
	o.Exit = &exit{Code: req.Exit.ExitCode, Signal: req.Exit.Signal, OOMKilled: req.Exit.OOMKilled, WillRestart: req.WillRestart}
	if req.Exit.Err != nil {
		o.Exit.Error = req.Exit.Err.Error()
	}
	return sdk.TaskExitedResponse{}, h.do(ctx, req.RequestMeta, o)
}

// Stop implements sdk.TaskStop.
func (h *Hook) Stop(ctx context.Context, req sdk.TaskStopRequest) (sdk.TaskStopResponse, error) {
	return sdk.TaskStopResponse{}, h.do(ctx, req.RequestMeta, ofTask(sdk.PointStop, req.Alloc, req.Task))
}

// Shutdown implements sdk.TaskShutdown.
func (h *Hook) Shutdown(ctx context.Context, req sdk.TaskShutdownRequest) (sdk.TaskShutdownResponse, error) {
	return sdk.TaskShutdownResponse{}, h.do(ctx, req.RequestMeta, ofTask(sdk.PointShutdown, req.Alloc, req.Task))
}

// payload is the JSON input of commands and HTTP requests.
type payload struct {
	HookPoint string `json:"hook_point"`
	AllocID   string `json:"alloc_id"`
	AllocName string `json:"alloc_name"`
	Namespace string `json:"namespace"`
	JobID     string `json:"job_id"`
	JobName   string `json:"job_name"`
	Group     string `json:"group"`
	NodeID    string `json:"node_id"`
	NodeName  string `json:"node_name"`
	Task      string `json:"task,omitempty"`
	Exit      *exit  `json:"exit,omitempty"`     // at Exited only
	Repeated  bool   `json:"repeated,omitempty"` // at Poststart only
}

type exit struct {
	Code        int    `json:"code"`
	Signal      int    `json:"signal"`
	OOMKilled   bool   `json:"oom_killed"`
	Error       string `json:"error,omitempty"`
	WillRestart bool   `json:"will_restart"`
}

func ofAlloc(point sdk.Point, a sdk.Alloc) payload {
	return payload{
		HookPoint: point.String(), AllocID: a.ID, AllocName: a.Name, Namespace: a.Namespace, JobID: a.JobID, JobName: a.JobName,
		Group: a.TaskGroup, NodeID: a.NodeID, NodeName: a.NodeName,
	}
}

func ofTask(point sdk.Point, a sdk.Alloc, t sdk.AllocTask) payload {
	o := ofAlloc(point, a)
	o.Task = t.Name
	return o
}

// environ returns the payload as environment variables, for commands that do not
// read JSON. It uses Nomad's variable names if Nomad has them.
func (o payload) environ() []string {
	env := []string{
		"HOOK_POINT=" + o.HookPoint,
		"NOMAD_ALLOC_ID=" + o.AllocID,
		"NOMAD_ALLOC_NAME=" + o.AllocName,
		"NOMAD_NAMESPACE=" + o.Namespace,
		"NOMAD_JOB_ID=" + o.JobID,
		"NOMAD_JOB_NAME=" + o.JobName,
		"NOMAD_GROUP_NAME=" + o.Group,
	}
	if o.Task != "" {
		env = append(env, "NOMAD_TASK_NAME="+o.Task)
	}
	if o.Repeated {
		env = append(env, "HOOK_REPEATED=true")
	}
	if o.Exit != nil {
		env = append(env,
			fmt.Sprintf("HOOK_EXIT_CODE=%d", o.Exit.Code),
			fmt.Sprintf("HOOK_EXIT_SIGNAL=%d", o.Exit.Signal),
			fmt.Sprintf("HOOK_OOM_KILLED=%t", o.Exit.OOMKilled),
			fmt.Sprintf("HOOK_WILL_RESTART=%t", o.Exit.WillRestart),
		)
	}
	return env
}

// outputSize is the maximum size of the output in an event, in bytes.
const outputSize = 1 << 10

// tail keeps the end of its input.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-outputSize):]...)
	t.b = append(t.b[:0], t.b[max(0, len(t.b)-outputSize):]...)
	return len(p), nil
}

// String returns the output as valid UTF-8 for an event.
func (t *tail) String() string {
	return strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(t.b), "\x00", ""), ""))
}
