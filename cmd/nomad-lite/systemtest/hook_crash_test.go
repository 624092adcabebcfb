package systemtest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/failpoint"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// doomedAgent is an agent that is killed when it is about to start a task.
func doomedAgent() {
	failpoint.OnHit = func(s failpoint.Step, p failpoint.Phase) {
		if s == failpoint.StartTask && p == failpoint.Before {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	nomadLite()
}

// dyingHook is a plugin that writes each hook point into a ledger, and dies at some. Its
// arguments are its name, and any word to take part in every allocation.
func dyingHook() { sdk.ServeHook(dyingPlugin{}) }

type dyingPlugin struct{}

func (dyingPlugin) Info() sdk.HookInfo {
	name := "dying"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	ledger, every := hclspec.Attr("ledger", "string", true), len(os.Args) > 2
	if every { // jobs attach no configuration to this hook
		ledger = hclspec.Default(hclspec.Attr("ledger", "string", false), hclspec.Literal(`"ledger.JOB"`))
	}
	return sdk.HookInfo{
		Name: name, Version: "1.0.0", AllAllocs: every,
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
			"ledger": ledger,
			"name":   hclspec.Attr("name", "string", false),      // prefix of each line
			"die":    hclspec.Attr("die", "list(string)", false), // hook points at which the hook dies
			"often":  hclspec.Default(hclspec.Attr("often", "number", false), hclspec.Literal("1")),
			"refuse": hclspec.Attr("refuse", "list(string)", false),
			"until":  hclspec.Attr("until", "string", false), // the hook returns an error until this file exists
			"done":   hclspec.Attr("done", "bool", false),
			"lie":    hclspec.Attr("lie", "bool", false), // the answer is too large
		}),
	}
}

type dyingConfig struct {
	Ledger string   `codec:"ledger"`
	Name   string   `codec:"name"`
	Die    []string `codec:"die"`
	Often  int      `codec:"often"`
	Refuse []string `codec:"refuse"`
	Until  string   `codec:"until"`
	Done   bool     `codec:"done"`
	Lie    bool     `codec:"lie"`
}

// obey executes the orders of the attachment for a hook point.
func (dyingPlugin) obey(g hook.RequestMeta, alloc hook.Alloc, point, text string) (o dyingConfig, err error) {
	if err := g.Config(&o); err != nil {
		return o, err
	}
	o.Ledger = strings.ReplaceAll(o.Ledger, "JOB", alloc.JobID)
	before, _ := os.ReadFile(o.Ledger)
	line := point + text
	dies := slices.Contains(o.Die, point) && strings.Count(string(before), point+" dies\n") < o.Often
	_, missing := os.Stat(o.Until)
	refuses := slices.Contains(o.Refuse, point) && missing != nil
	switch {
	case dies:
		line = point + " dies"
	case refuses:
		line = point + " refused"
	}
	f, err := os.OpenFile(o.Ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return o, err
	}
	fmt.Fprintln(f, o.Name+line)
	f.Close()
	switch {
	case dies:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Minute) // the answer must not overtake the signal
	case refuses:
		return o, fmt.Errorf("no %s here", point)
	}
	return o, nil
}

// hangingHook is a plugin that never answers. It takes part in two hook points only, so
// that its timeout can be short.
func hangingHook() { sdk.ServeHook(hangingPlugin{}) }

type hangingPlugin struct{}

func (hangingPlugin) Info() sdk.HookInfo { return sdk.HookInfo{Name: "hanging", Version: "1.0.0"} }

func (hangingPlugin) Poststart(context.Context, hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, hang()
}

func (hangingPlugin) Exited(context.Context, hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, hang()
}

func hang() error {
	<-make(chan struct{}) // ignores the context
	return nil
}

func (d dyingPlugin) Prerun(_ context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "prerun", " "+req.Env["NOMAD_JOB_NAME"])
	return hook.AllocPrerunResponse{}, err
}

func (d dyingPlugin) UpdateAlloc(_ context.Context, req hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "update_alloc", "")
	return hook.AllocUpdateResponse{}, err
}

func (d dyingPlugin) PreTaskRestart(_ context.Context, req hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "pre_task_restart", "")
	return hook.AllocPreTaskRestartResponse{}, err
}

func (d dyingPlugin) PreKill(_ context.Context, req hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "pre_kill", "")
	return hook.AllocPreKillResponse{}, err
}

func (d dyingPlugin) Postrun(_ context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "postrun", "")
	return hook.AllocPostrunResponse{}, err
}

func (d dyingPlugin) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "destroy", "")
	return hook.AllocDestroyResponse{}, err
}

func (d dyingPlugin) ShutdownAlloc(_ context.Context, req hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "shutdown_alloc", "")
	return hook.AllocShutdownResponse{}, err
}

func (d dyingPlugin) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	visits := req.PreviousState["visits"] + "x"
	answer := hook.TaskPrestartResponse{State: map[string]string{"visits": visits}, Env: map[string]string{"VISITS": visits}}
	o, err := d.obey(req.RequestMeta, req.Alloc, "prestart", " "+visits)
	answer.Done = o.Done
	if o.Lie {
		answer.Env["LIE"] = strings.Repeat("x", 2<<20)
	}
	return answer, err
}

func (d dyingPlugin) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "poststart", " "+req.Env["VISITS"])
	return hook.TaskPoststartResponse{}, err
}

func (d dyingPlugin) Update(_ context.Context, req hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "update", "")
	return hook.TaskUpdateResponse{}, err
}

func (d dyingPlugin) PreKilling(_ context.Context, req hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "pre_killing", "")
	return hook.TaskPreKillingResponse{}, err
}

func (d dyingPlugin) Exited(_ context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "exited", fmt.Sprintf(" code=%d restarts=%v", req.Exit.ExitCode, req.WillRestart))
	return hook.TaskExitedResponse{}, err
}

func (d dyingPlugin) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "stop", " "+req.PreviousState["visits"])
	return hook.TaskStopResponse{}, err
}

func (d dyingPlugin) Shutdown(_ context.Context, req hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	_, err := d.obey(req.RequestMeta, req.Alloc, "shutdown", "")
	return hook.TaskShutdownResponse{}, err
}
