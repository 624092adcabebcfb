// Command stamp is a hook that implements every hook point and writes a line for
// each call to a ledger, whose path the job configures. Its state counts the
// visits of a task, across restarts of the task, of this program and of the
// agent.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() { sdk.ServeHook(stamp{}) }

type stamp struct{}

var (
	_ hook.AllocPrerun         = stamp{}
	_ hook.AllocUpdate         = stamp{}
	_ hook.AllocPreTaskRestart = stamp{}
	_ hook.AllocPreKill        = stamp{}
	_ hook.AllocPostrun        = stamp{}
	_ hook.AllocDestroy        = stamp{}
	_ hook.AllocShutdown       = stamp{}
	_ hook.TaskPrestart        = stamp{}
	_ hook.TaskPoststart       = stamp{}
	_ hook.TaskUpdate          = stamp{}
	_ hook.TaskPreKilling      = stamp{}
	_ hook.TaskExited          = stamp{}
	_ hook.TaskStop            = stamp{}
	_ hook.TaskShutdown        = stamp{}
)

// attachmentConfig is the configuration of the hook in a job's hook block, which
// attaches the hook to a task or group.
type attachmentConfig struct {
	LedgerPath   string `codec:"ledger"`
	PrestartOnce bool   `codec:"done"`
}

func (stamp) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    "stamp",
		Version: "0.1.0",
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
			// The file to which a line is added for each call.
			"ledger": hclspec.Attr("ledger", "string", true),
			// If true, Prestart is not repeated for the life of the task.
			"done": hclspec.Default(hclspec.Attr("done", "bool", false), hclspec.Literal("false")),
		}),
	}
}

// appendToLedger appends a line to the ledger, in a single write call, so that the lines
// of several tasks do not mix.
func appendToLedger(meta hook.RequestMeta, format string, values ...any) error {
	var a attachmentConfig
	if err := meta.Config(&a); err != nil {
		return err
	}
	f, err := os.OpenFile(a.LedgerPath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, format+"\n", values...)
	return err
}

func (stamp) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	var a attachmentConfig
	if err := req.Config(&a); err != nil {
		return hook.TaskPrestartResponse{State: req.PreviousState}, err
	}
	visits, _ := strconv.Atoi(req.PreviousState["visits"])
	visits++
	answer := hook.TaskPrestartResponse{
		State: map[string]string{"visits": strconv.Itoa(visits)},
		Env:   map[string]string{"STAMP": strconv.Itoa(visits)},
		Done:  a.PrestartOnce,
	}
	running := ""
	if req.Running {
		running = " running"
	}
	return answer, appendToLedger(req.RequestMeta, "prestart %s visit=%d%s", req.Task.Name, visits, running)
}

func (stamp) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, appendToLedger(req.RequestMeta, "poststart %s STAMP=%s", req.Task.Name, req.Env["STAMP"])
}

func (stamp) Update(_ context.Context, req hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, appendToLedger(req.RequestMeta, "update %s", req.Task.Name)
}

func (stamp) PreKilling(_ context.Context, req hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, appendToLedger(req.RequestMeta, "pre_killing %s", req.Task.Name)
}

func (stamp) Exited(_ context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, appendToLedger(req.RequestMeta, "exited %s code=%d signal=%d restart=%t", req.Task.Name, req.Exit.ExitCode, req.Exit.Signal, req.WillRestart)
}

func (stamp) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, appendToLedger(req.RequestMeta, "stop %s visits=%s", req.Task.Name, req.PreviousState["visits"])
}

func (stamp) Shutdown(_ context.Context, req hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, appendToLedger(req.RequestMeta, "shutdown %s", req.Task.Name)
}

func (stamp) Prerun(_ context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, appendToLedger(req.RequestMeta, "prerun %s", req.Alloc.Name)
}

func (stamp) UpdateAlloc(_ context.Context, req hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, appendToLedger(req.RequestMeta, "update_alloc %s", req.Alloc.Name)
}

func (stamp) PreTaskRestart(_ context.Context, req hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, appendToLedger(req.RequestMeta, "pre_task_restart %s", req.Alloc.Name)
}

func (stamp) PreKill(_ context.Context, req hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, appendToLedger(req.RequestMeta, "pre_kill %s", req.Alloc.Name)
}

func (stamp) Postrun(_ context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, appendToLedger(req.RequestMeta, "postrun %s", req.Alloc.Name)
}

func (stamp) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, appendToLedger(req.RequestMeta, "destroy %s", req.Alloc.Name)
}

func (stamp) ShutdownAlloc(_ context.Context, req hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, appendToLedger(req.RequestMeta, "shutdown_alloc %s", req.Alloc.Name)
}
