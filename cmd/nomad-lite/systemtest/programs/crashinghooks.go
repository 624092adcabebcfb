package programs

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/failpoint"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// runAgentKilledBeforeStartTask runs nomad-lite, and kills the process when the agent is about to start a task.
func runAgentKilledBeforeStartTask() {
	failpoint.OnHit = func(s failpoint.Step, p failpoint.Phase) {
		if s == failpoint.StepStartTask && p == failpoint.PhaseBefore {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	runNomadLite()
}

// serveCrashingHook serves a hook that appends each call to a ledger file, and kills its own process at the hook points
// that its attachment names. Its first argument is its name; with a second argument it takes part in every allocation.
func serveCrashingHook() { sdk.ServeHook(crashingHook{}) }

type crashingHook struct{}

func (crashingHook) Info() sdk.HookInfo {
	name := "dying"
	if len(os.Args) > 1 {
		name = os.Args[1]
	}
	ledger, every := hclspec.Attr("ledger", "string", true), len(os.Args) > 2
	if every { // a hook of every allocation has no attachment that sets the ledger
		ledger = hclspec.Default(hclspec.Attr("ledger", "string", false), hclspec.Literal(`"ledger.JOB"`))
	}
	return sdk.HookInfo{
		Name: name, Version: "1.0.0", AllAllocs: every,
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
			"ledger": ledger,
			"name":   hclspec.Attr("name", "string", false),      // prefix of each line
			"die":    hclspec.Attr("die", "list(string)", false), // hook points at which the plugin kills itself
			"often":  hclspec.Default(hclspec.Attr("often", "number", false), hclspec.Literal("1")),
			"refuse": hclspec.Attr("refuse", "list(string)", false),
			"until":  hclspec.Attr("until", "string", false), // the hook returns an error until this file exists
			"done":   hclspec.Attr("done", "bool", false),
			"lie":    hclspec.Attr("lie", "bool", false), // whether the response of Prestart is too large
		}),
	}
}

type crashingHookConfig struct {
	CallLogFile               string   `codec:"ledger"`
	LinePrefix                string   `codec:"name"`
	CrashPoints               []string `codec:"die"`
	MaxCrashes                int      `codec:"often"`
	ErrorPoints               []string `codec:"refuse"`
	ErrorUntilFileExists      string   `codec:"until"`
	ReturnDone                bool     `codec:"done"`
	OversizedPrestartResponse bool     `codec:"lie"`
}

// recordCallThenCrashOrFail appends a call to the ledger. Then it kills the plugin or returns an error, if the
// attachment requests that for this hook point.
func (crashingHook) recordCallThenCrashOrFail(g hook.RequestMeta, alloc hook.Alloc, hookPoint, lineSuffix string) (o crashingHookConfig, err error) {
	if err := g.DecodeConfig(&o); err != nil {
		return o, err
	}
	o.CallLogFile = strings.ReplaceAll(o.CallLogFile, "JOB", alloc.JobID)
	before, _ := os.ReadFile(o.CallLogFile)
	line := hookPoint + lineSuffix
	dies := slices.Contains(o.CrashPoints, hookPoint) && strings.Count(string(before), hookPoint+" dies\n") < o.MaxCrashes
	_, missing := os.Stat(o.ErrorUntilFileExists)
	refuses := slices.Contains(o.ErrorPoints, hookPoint) && missing != nil
	switch {
	case dies:
		line = hookPoint + " dies"
	case refuses:
		line = hookPoint + " refused"
	}
	f, err := os.OpenFile(o.CallLogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return o, err
	}
	fmt.Fprintln(f, o.LinePrefix+line)
	f.Close()
	switch {
	case dies:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		time.Sleep(time.Minute) // so that no response is sent before the signal arrives
	case refuses:
		return o, fmt.Errorf("no %s here", hookPoint)
	}
	return o, nil
}

// serveHangingHook serves a hook whose calls never return. It subscribes to two hook points only, so that its timeout
// can be short.
func serveHangingHook() { sdk.ServeHook(hangingHook{}) }

type hangingHook struct{}

func (hangingHook) Info() sdk.HookInfo { return sdk.HookInfo{Name: "hanging", Version: "1.0.0"} }

func (hangingHook) Poststart(context.Context, hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, hangForever()
}

func (hangingHook) Exited(context.Context, hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, hangForever()
}

func hangForever() error {
	<-make(chan struct{}) // ignores the context
	return nil
}

func (c crashingHook) Prerun(_ context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "prerun", " "+req.Env["NOMAD_JOB_NAME"])
	return hook.AllocPrerunResponse{}, err
}

func (c crashingHook) UpdateAlloc(_ context.Context, req hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "update_alloc", "")
	return hook.AllocUpdateResponse{}, err
}

func (c crashingHook) PreTaskRestart(_ context.Context, req hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "pre_task_restart", "")
	return hook.AllocPreTaskRestartResponse{}, err
}

func (c crashingHook) PreKill(_ context.Context, req hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "pre_kill", "")
	return hook.AllocPreKillResponse{}, err
}

func (c crashingHook) Postrun(_ context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "postrun", "")
	return hook.AllocPostrunResponse{}, err
}

func (c crashingHook) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "destroy", "")
	return hook.AllocDestroyResponse{}, err
}

func (c crashingHook) ShutdownAlloc(_ context.Context, req hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "shutdown_alloc", "")
	return hook.AllocShutdownResponse{}, err
}

func (c crashingHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	visits := req.PreviousState["visits"] + "x"
	answer := hook.TaskPrestartResponse{State: map[string]string{"visits": visits}, Env: map[string]string{"VISITS": visits}}
	o, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "prestart", " "+visits)
	answer.Done = o.ReturnDone
	if o.OversizedPrestartResponse {
		answer.Env["LIE"] = strings.Repeat("x", 2<<20)
	}
	return answer, err
}

func (c crashingHook) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "poststart", " "+req.Env["VISITS"])
	return hook.TaskPoststartResponse{}, err
}

func (c crashingHook) Update(_ context.Context, req hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "update", "")
	return hook.TaskUpdateResponse{}, err
}

func (c crashingHook) PreKilling(_ context.Context, req hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "pre_killing", "")
	return hook.TaskPreKillingResponse{}, err
}

func (c crashingHook) Exited(_ context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "exited", fmt.Sprintf(" code=%d restarts=%v", req.Exit.ExitCode, req.WillRestart))
	return hook.TaskExitedResponse{}, err
}

func (c crashingHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "stop", " "+req.PreviousState["visits"])
	return hook.TaskStopResponse{}, err
}

func (c crashingHook) Shutdown(_ context.Context, req hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	_, err := c.recordCallThenCrashOrFail(req.RequestMeta, req.Alloc, "shutdown", "")
	return hook.TaskShutdownResponse{}, err
}
