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

	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() { sdk.ServeHook(stamp{}) }

type stamp struct{}

var (
	_ sdk.AllocPrerun         = stamp{}
	_ sdk.AllocUpdate         = stamp{}
	_ sdk.AllocPreTaskRestart = stamp{}
	_ sdk.AllocPreKill        = stamp{}
	_ sdk.AllocPostrun        = stamp{}
	_ sdk.AllocDestroy        = stamp{}
	_ sdk.AllocShutdown       = stamp{}
	_ sdk.TaskPrestart        = stamp{}
	_ sdk.TaskPoststart       = stamp{}
	_ sdk.TaskUpdate          = stamp{}
	_ sdk.TaskPreKilling      = stamp{}
	_ sdk.TaskExited          = stamp{}
	_ sdk.TaskStop            = stamp{}
	_ sdk.TaskShutdown        = stamp{}
)

// attachment is the configuration in a job.
type attachment struct {
	Ledger string `codec:"ledger"`
	Done   bool   `codec:"done"`
}

func (stamp) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    "stamp",
		Version: "0.1.0",
		AttachmentSchema: sdk.Object(map[string]*sdk.Spec{
			// The file to which a line is added for each call.
			"ledger": sdk.Attr("ledger", "string", true),
			// If true, Prestart is not repeated for the life of the task.
			"done": sdk.Default(sdk.Attr("done", "bool", false), sdk.Literal("false")),
		}),
	}
}

// write appends a line to the ledger, in a single write call, so that the lines
// of several tasks do not mix.
func write(meta sdk.RequestMeta, format string, values ...any) error {
	var a attachment
	if err := meta.Config(&a); err != nil {
		return err
	}
	f, err := os.OpenFile(a.Ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, format+"\n", values...)
	return err
}

func (stamp) Prestart(_ context.Context, req sdk.TaskPrestartRequest) (sdk.TaskPrestartResponse, error) {
	var a attachment
	if err := req.Config(&a); err != nil {
		return sdk.TaskPrestartResponse{State: req.PreviousState}, err
	}
	visits, _ := strconv.Atoi(req.PreviousState["visits"])
	visits++
	answer := sdk.TaskPrestartResponse{
		State: map[string]string{"visits": strconv.Itoa(visits)},
		Env:   map[string]string{"STAMP": strconv.Itoa(visits)},
		Done:  a.Done,
	}
	running := ""
	if req.Running {
		running = " running"
	}
	return answer, write(req.RequestMeta, "prestart %s visit=%d%s", req.Task.Name, visits, running)
}

func (stamp) Poststart(_ context.Context, req sdk.TaskPoststartRequest) (sdk.TaskPoststartResponse, error) {
	return sdk.TaskPoststartResponse{}, write(req.RequestMeta, "poststart %s STAMP=%s", req.Task.Name, req.Env["STAMP"])
}

func (stamp) Update(_ context.Context, req sdk.TaskUpdateRequest) (sdk.TaskUpdateResponse, error) {
	return sdk.TaskUpdateResponse{}, write(req.RequestMeta, "update %s", req.Task.Name)
}

func (stamp) PreKilling(_ context.Context, req sdk.TaskPreKillingRequest) (sdk.TaskPreKillingResponse, error) {
	return sdk.TaskPreKillingResponse{}, write(req.RequestMeta, "pre_killing %s", req.Task.Name)
}

func (stamp) Exited(_ context.Context, req sdk.TaskExitedRequest) (sdk.TaskExitedResponse, error) {
	return sdk.TaskExitedResponse{}, write(req.RequestMeta, "exited %s code=%d signal=%d restart=%t", req.Task.Name, req.Exit.ExitCode, req.Exit.Signal, req.WillRestart)
}

func (stamp) Stop(_ context.Context, req sdk.TaskStopRequest) (sdk.TaskStopResponse, error) {
	return sdk.TaskStopResponse{}, write(req.RequestMeta, "stop %s visits=%s", req.Task.Name, req.PreviousState["visits"])
}

func (stamp) Shutdown(_ context.Context, req sdk.TaskShutdownRequest) (sdk.TaskShutdownResponse, error) {
	return sdk.TaskShutdownResponse{}, write(req.RequestMeta, "shutdown %s", req.Task.Name)
}

func (stamp) Prerun(_ context.Context, req sdk.AllocPrerunRequest) (sdk.AllocPrerunResponse, error) {
	return sdk.AllocPrerunResponse{}, write(req.RequestMeta, "prerun %s", req.Alloc.Name)
}

func (stamp) UpdateAlloc(_ context.Context, req sdk.AllocUpdateRequest) (sdk.AllocUpdateResponse, error) {
	return sdk.AllocUpdateResponse{}, write(req.RequestMeta, "update_alloc %s", req.Alloc.Name)
}

func (stamp) PreTaskRestart(_ context.Context, req sdk.AllocPreTaskRestartRequest) (sdk.AllocPreTaskRestartResponse, error) {
	return sdk.AllocPreTaskRestartResponse{}, write(req.RequestMeta, "pre_task_restart %s", req.Alloc.Name)
}

func (stamp) PreKill(_ context.Context, req sdk.AllocPreKillRequest) (sdk.AllocPreKillResponse, error) {
	return sdk.AllocPreKillResponse{}, write(req.RequestMeta, "pre_kill %s", req.Alloc.Name)
}

func (stamp) Postrun(_ context.Context, req sdk.AllocPostrunRequest) (sdk.AllocPostrunResponse, error) {
	return sdk.AllocPostrunResponse{}, write(req.RequestMeta, "postrun %s", req.Alloc.Name)
}

func (stamp) Destroy(_ context.Context, req sdk.AllocDestroyRequest) (sdk.AllocDestroyResponse, error) {
	return sdk.AllocDestroyResponse{}, write(req.RequestMeta, "destroy %s", req.Alloc.Name)
}

func (stamp) ShutdownAlloc(_ context.Context, req sdk.AllocShutdownRequest) (sdk.AllocShutdownResponse, error) {
	return sdk.AllocShutdownResponse{}, write(req.RequestMeta, "shutdown_alloc %s", req.Alloc.Name)
}
