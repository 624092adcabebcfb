package programs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// serveHostAPITestHook serves a hook that makes all calls of the host API, and records the results in the file
// "answers".
func serveHostAPITestHook() { sdk.ServeHook(&hostAPITestHook{}) }

type hostAPITestHook struct {
	host             hook.Host
	statsStreamCount atomic.Int32 // number of streams of samples that were requested
}

func (*hostAPITestHook) Info() sdk.HookInfo {
	return sdk.HookInfo{Name: "asking", Version: "1.0.0", ReportsHealth: true}
}

func (a *hostAPITestHook) SetHost(host hook.Host, _ hook.Node) { a.host = host }

func appendToAnswersFile(format string, values ...any) { appendLine("answers", format, values...) }

func appendLine(path, format string, values ...any) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, format+"\n", values...)
}

// watchVariableAndReportHealth watches the Nomad variable "word" until the task has exited, and reports the health that
// the variable names. Then it records the error that ended the watch.
func (a *hostAPITestHook) watchVariableAndReportHealth(s hook.Scope) {
	ctx := context.Background()
	for after := uint64(0); ; {
		v, err := a.host.Variable(ctx, s, hook.VariableRequest{Path: "word", AfterIndex: after})
		if err != nil {
			appendToAnswersFile("variable: denied=%v", errors.Is(err, hook.ErrPermissionDenied))
			return
		}
		appendToAnswersFile("variable: %q", v.Items["is"])
		if word := v.Items["is"]; word != "" {
			if err := a.host.SetHealth(ctx, s, hook.SetHealthRequest{Healthy: word != "bad", Reason: "the word is " + word}); err != nil {
				appendToAnswersFile("health: %v", err)
			}
		}
		after = v.Index
	}
}

// recordStatsSamples records each sample of the task's resource usage until the process of the task has exited.
func (a *hostAPITestHook) recordStatsSamples(s hook.Scope) {
	stream := a.statsStreamCount.Add(1)
	samples, err := a.host.Stats(context.Background(), s, 100*time.Millisecond)
	if err != nil {
		appendToAnswersFile("stats: %v", err)
		return
	}
	for range samples {
		appendLine("samples", "sample of stream %d", stream)
	}
	appendLine("samples", "end of stream %d", stream)
}

func (a *hostAPITestHook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	s := req.Scope()
	if result, err := a.host.Exec(ctx, s, hook.ExecRequest{Command: []string{"sh", "-c", "echo here; exit 7"}, Timeout: time.Minute}); err != nil {
		appendToAnswersFile("exec: %v", err)
	} else {
		appendToAnswersFile("exec: %q %d", result.Stdout, result.Exit.ExitCode)
	}
	if text, err := a.host.Interpolate(ctx, s, "${NOMAD_TASK_NAME} ${NOMAD_META_word} ${attr.kernel.name}"); err != nil {
		appendToAnswersFile("interpolate: %v", err)
	} else {
		appendToAnswersFile("interpolate: %s", text)
	}
	if state, err := a.host.State(ctx, s); err != nil {
		appendToAnswersFile("state: %v", err)
	} else {
		appendToAnswersFile("state: %s, wanted: %s, main: %s", state.ClientStatus, state.DesiredStatus, state.Tasks["main"].State)
	}
	sampling, cancel := context.WithCancel(ctx)
	if samples, err := a.host.Stats(sampling, s, 100*time.Millisecond); err != nil {
		appendToAnswersFile("stats: %v", err)
	} else {
		appendToAnswersFile("stats: memory %v", (<-samples).MemoryRSS > 0)
	}
	cancel()
	appendToAnswersFile("event: %v", a.host.EmitEvent(ctx, s, hook.Event{Message: "the hook was here"}))
	appendToAnswersFile("forged: %v", a.host.EmitEvent(ctx, s, hook.Event{Type: "Killed"}) != nil)
	other := s
	other.Task = "other"
	_, err := a.host.Exec(ctx, other, hook.ExecRequest{Command: []string{"true"}, Timeout: time.Second})
	appendToAnswersFile("other: denied=%v", errors.Is(err, hook.ErrPermissionDenied))
	forged := s
	forged.Token = strings.ToUpper(s.Token)
	_, err = a.host.State(ctx, forged)
	appendToAnswersFile("capability: denied=%v", errors.Is(err, hook.ErrPermissionDenied))
	if web, err := a.host.Services(ctx, s, hook.ServicesRequest{Name: "web"}); err != nil || len(web.Services) > 1 {
		appendToAnswersFile("services: %v %v", web.Services, err)
	}
	appendToAnswersFile("stored in an earlier call for this start: %v", req.PreviousState["start"] == req.StartID)
	appendToAnswersFile("store state: %v", a.host.StoreState(ctx, s, map[string]string{"start": req.StartID}))
	go a.watchVariableAndReportHealth(s)
	go a.recordStatsSamples(s)
	return hook.TaskPoststartResponse{}, nil
}

// PreKill tests the token of an allocation hook, which is valid for all tasks, so that each call must name its task.
func (a *hostAPITestHook) PreKill(ctx context.Context, req hook.AllocPreKillRequest) (hook.AllocPreKillResponse, error) {
	for _, task := range []string{"", "main", "nobody"} {
		s := req.Scope()
		s.Task = task
		result, err := a.host.Exec(ctx, s, hook.ExecRequest{Command: []string{"sh", "-c", "echo $NOMAD_TASK_NAME"}, Timeout: time.Minute})
		if err != nil {
			appendToAnswersFile("exec in task %q of an allocation: no task=%v", task, errors.Is(err, hook.ErrTaskNotRunning))
			continue
		}
		appendToAnswersFile("exec in task %q of an allocation: %q", task, result.Stdout)
	}
	return hook.AllocPreKillResponse{}, nil
}

func (a *hostAPITestHook) Exited(ctx context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	appendToAnswersFile("exited: restart=%v", req.WillRestart)
	return hook.TaskExitedResponse{}, nil
}
