// Command stamp is a hook that implements every hook point and writes a line for
// each call to a log file, whose path the job configures. Its state counts the
// Prestart calls of a task, across restarts of the task, of this program and of
// the agent.
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

func main() { sdk.ServeHook(lifecycleLogHook{}) }

type lifecycleLogHook struct{}

var (
	_ hook.AllocPrerun         = lifecycleLogHook{}
	_ hook.AllocUpdate         = lifecycleLogHook{}
	_ hook.AllocPreTaskRestart = lifecycleLogHook{}
	_ hook.AllocPreKill        = lifecycleLogHook{}
	_ hook.AllocPostrun        = lifecycleLogHook{}
	_ hook.AllocDestroy        = lifecycleLogHook{}
	_ hook.AllocShutdown       = lifecycleLogHook{}
	_ hook.TaskPrestart        = lifecycleLogHook{}
	_ hook.TaskPoststart       = lifecycleLogHook{}
	_ hook.TaskUpdate          = lifecycleLogHook{}
	_ hook.TaskPreKilling      = lifecycleLogHook{}
	_ hook.TaskExited          = lifecycleLogHook{}
	_ hook.TaskStop            = lifecycleLogHook{}
	_ hook.TaskShutdown        = lifecycleLogHook{}
)

// attachmentConfig is the configuration of the hook in a job's hook block, which
// attaches the hook to a task or group.
type attachmentConfig struct {
	LogFilePath  string `codec:"ledger"`
	PrestartOnce bool   `codec:"done"`
}

func (lifecycleLogHook) Info() sdk.HookInfo {
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

// appendLineToLogFile appends a line to the file that the job has configured, in a single write call, so that
// lines of concurrent calls do not mix.
func appendLineToLogFile(meta hook.RequestMeta, format string, values ...any) error {
	var a attachmentConfig
	if err := meta.DecodeConfig(&a); err != nil {
		return err
	}
	f, err := os.OpenFile(a.LogFilePath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, format+"\n", values...)
	return err
}

func (lifecycleLogHook) Prestart(_ context.Context, req hook.TaskPrestartRequest) (hook.TaskPrestartResponse, error) {
	var a attachmentConfig
	if err := req.DecodeConfig(&a); err != nil {
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
	return answer, appendLineToLogFile(req.RequestMeta, "prestart %s visit=%d%s", req.Task.Name, visits, running)
}

func (lifecycleLogHook) Poststart(_ context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	return hook.TaskPoststartResponse{}, appendLineToLogFile(req.RequestMeta, "poststart %s STAMP=%s", req.Task.Name, req.Env["STAMP"])
}

func (lifecycleLogHook) Update(_ context.Context, req hook.TaskUpdateRequest) (hook.TaskUpdateResponse, error) {
	return hook.TaskUpdateResponse{}, appendLineToLogFile(req.RequestMeta, "update %s", req.Task.Name)
}

func (lifecycleLogHook) PreKilling(_ context.Context, req hook.TaskPreKillingRequest) (hook.TaskPreKillingResponse, error) {
	return hook.TaskPreKillingResponse{}, appendLineToLogFile(req.RequestMeta, "pre_killing %s", req.Task.Name)
}

func (lifecycleLogHook) Exited(_ context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	return hook.TaskExitedResponse{}, appendLineToLogFile(req.RequestMeta, "exited %s code=%d signal=%d restart=%t", req.Task.Name, req.Exit.ExitCode, req.Exit.Signal, req.WillRestart)
}

func (lifecycleLogHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	return hook.TaskStopResponse{}, appendLineToLogFile(req.RequestMeta, "stop %s visits=%s", req.Task.Name, req.PreviousState["visits"])
}

func (lifecycleLogHook) Shutdown(_ context.Context, req hook.TaskShutdownRequest) (hook.TaskShutdownResponse, error) {
	return hook.TaskShutdownResponse{}, appendLineToLogFile(req.RequestMeta, "shutdown %s", req.Task.Name)
}

func (lifecycleLogHook) Prerun(_ context.Context, req hook.AllocPrerunRequest) (hook.AllocPrerunResponse, error) {
	return hook.AllocPrerunResponse{}, appendLineToLogFile(req.RequestMeta, "prerun %s", req.Alloc.Name)
}

func (lifecycleLogHook) UpdateAlloc(_ context.Context, req hook.AllocUpdateRequest) (hook.AllocUpdateResponse, error) {
	return hook.AllocUpdateResponse{}, appendLineToLogFile(req.RequestMeta, "update_alloc %s", req.Alloc.Name)
}

func (lifecycleLogHook) PreTaskRestart(_ context.Context, req hook.AllocPreTaskRestartRequest) (hook.AllocPreTaskRestartResponse, error) {
	return hook.AllocPreTaskRestartResponse{}, appendLineToLogFile(req.RequestMeta, "pre_task_restart %s", req.Alloc.Name)
}

func (lifecycleLogHook) PreKill(_ context.Context, req hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	return hook.AllocPreKillResponse{}, appendLineToLogFile(req.RequestMeta, "pre_kill %s", req.Alloc.Name)
}

func (lifecycleLogHook) Postrun(_ context.Context, req hook.AllocPostrunRequest) (hook.AllocPostrunResponse, error) {
	return hook.AllocPostrunResponse{}, appendLineToLogFile(req.RequestMeta, "postrun %s", req.Alloc.Name)
}

func (lifecycleLogHook) Destroy(_ context.Context, req hook.AllocDestroyRequest) (hook.AllocDestroyResponse, error) {
	return hook.AllocDestroyResponse{}, appendLineToLogFile(req.RequestMeta, "destroy %s", req.Alloc.Name)
}

func (lifecycleLogHook) ShutdownAlloc(_ context.Context, req hook.AllocShutdownRequest) (hook.AllocShutdownResponse, error) {
	return hook.AllocShutdownResponse{}, appendLineToLogFile(req.RequestMeta, "shutdown_alloc %s", req.Alloc.Name)
}
