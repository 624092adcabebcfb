// Command sidelog is a hook that watches a task through the host: it runs a
// command in the task after the start, writes the resource usage to a log beside
// the task's own logs, and reports the peak after the exit.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/sdk"
)

func main() { sdk.ServeHook(&usageLogHook{}) }

type usageLogHook struct {
	host hook.Host

	mu            sync.Mutex
	watchesByTask map[string]*taskWatch // key: taskKey
}

// taskWatch is the goroutine that logs the resource usage of one task.
type taskWatch struct {
	cancel            context.CancelFunc
	goroutineReturned chan struct{} // closed when the goroutine has returned
	peakMemoryBytes   uint64        // may be read after goroutineReturned is closed
}

var (
	_ sdk.HostSetter     = (*usageLogHook)(nil)
	_ hook.TaskPoststart = (*usageLogHook)(nil)
	_ hook.TaskExited    = (*usageLogHook)(nil)
	_ hook.TaskStop      = (*usageLogHook)(nil)
)

// attachmentConfig is the configuration of the hook in a job's hook block, which
// attaches the hook to a task or group.
type attachmentConfig struct {
	PoststartCommand []string `codec:"command"`
	Interval         string   `codec:"interval"`
}

func (*usageLogHook) Info() sdk.HookInfo {
	return sdk.HookInfo{
		Name:    "sidelog",
		Version: "0.1.0",
		AttachmentSchema: hclspec.Object(map[string]*hclspec.Spec{
			// The command to run in the task after its start; optional.
			"command": hclspec.Attr("command", "list(string)", false),
			// The interval of log lines.
			"interval": hclspec.Default(hclspec.Attr("interval", "string", false), hclspec.Literal(`"10s"`)),
		}),
	}
}

func (u *usageLogHook) SetHost(host hook.Host, _ hook.Node) { u.host = host }

// Poststart starts the watch of a task. It is called again after a restart of the
// agent or of this program, and then replaces the watch.
func (u *usageLogHook) Poststart(ctx context.Context, req hook.TaskPoststartRequest) (hook.TaskPoststartResponse, error) {
	var a attachmentConfig
	if err := req.DecodeConfig(&a); err != nil {
		return hook.TaskPoststartResponse{}, err
	}
	interval, err := time.ParseDuration(a.Interval)
	if err != nil || interval <= 0 {
		return hook.TaskPoststartResponse{}, fmt.Errorf(`interval: %q is not a time such as "10s"`, a.Interval)
	}
	if len(a.PoststartCommand) > 0 {
		result, err := u.host.Exec(ctx, req.Scope(), hook.ExecRequest{Command: a.PoststartCommand, Timeout: 5 * time.Second})
		if err != nil {
			return hook.TaskPoststartResponse{}, fmt.Errorf("run %s: %w", a.PoststartCommand[0], err)
		}
		message := fmt.Sprintf("%s: exit code %d: %s", a.PoststartCommand[0], result.Exit.ExitCode, strings.TrimSpace(string(result.Stdout)))
		if err := u.host.EmitEvent(ctx, req.Scope(), hook.Event{Message: message}); err != nil {
			return hook.TaskPoststartResponse{}, err
		}
	}
	log, err := os.OpenFile(filepath.Join(req.Dir.LogDir, req.Task.Name+".side.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return hook.TaskPoststartResponse{}, err
	}
	u.startWatch(taskKey(req.Alloc, req.Task), req.Scope(), interval, log)
	return hook.TaskPoststartResponse{}, nil
}

func taskKey(a hook.Alloc, t hook.Task) string { return a.ID + "/" + t.Name }

// startWatch starts a goroutine that logs the resource usage of a task, until cancelAndWait is called or the task exits.
func (u *usageLogHook) startWatch(key string, scope hook.Scope, interval time.Duration, log *os.File) {
	// The context of the call ends when Poststart returns, so the watch has its own
	// context.
	ctx, cancel := context.WithCancel(context.Background())
	w := &taskWatch{cancel: cancel, goroutineReturned: make(chan struct{})}
	u.replaceWatch(key, w).cancelAndWait()
	go func() {
		defer close(w.goroutineReturned)
		defer log.Close()
		defer cancel()
		samples, err := u.host.Stats(ctx, scope, interval)
		if err != nil {
			hclog.L().Warn("a task cannot be watched", "task", key, "error", err)
			return
		}
		for sample := range samples {
			w.peakMemoryBytes = max(w.peakMemoryBytes, sample.MemoryUsage)
			fmt.Fprintf(log, "%s cpu %.1f %% memory %d kB\n", sample.Time.UTC().Format(time.RFC3339), sample.CPUPercent, sample.MemoryUsage>>10)
		}
	}()
}

// replaceWatch sets the watch of a task, or removes it if w is nil, and returns the
// previous one, or nil.
func (u *usageLogHook) replaceWatch(key string, w *taskWatch) (old *taskWatch) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.watchesByTask == nil {
		u.watchesByTask = map[string]*taskWatch{}
	}
	old = u.watchesByTask[key]
	if u.watchesByTask[key] = w; w == nil {
		delete(u.watchesByTask, key)
	}
	return old
}

// cancelAndWait stops the watch, and blocks until its goroutine has returned. A nil watch
// is accepted.
func (w *taskWatch) cancelAndWait() {
	if w != nil {
		w.cancel()
		<-w.goroutineReturned
	}
}

func (u *usageLogHook) Exited(ctx context.Context, req hook.TaskExitedRequest) (hook.TaskExitedResponse, error) {
	w := u.replaceWatch(taskKey(req.Alloc, req.Task), nil)
	if w == nil {
		return hook.TaskExitedResponse{}, nil // an earlier process of this program watched the task
	}
	w.cancelAndWait()
	return hook.TaskExitedResponse{}, u.host.EmitEvent(ctx, req.Scope(), hook.Event{
		Message: fmt.Sprintf("it used %d MB of memory at most", w.peakMemoryBytes>>20),
		Details: map[string]string{"peak_memory": fmt.Sprint(w.peakMemoryBytes)},
	})
}

// Stop ends the watch of a task for which Exited was not called.
func (u *usageLogHook) Stop(_ context.Context, req hook.TaskStopRequest) (hook.TaskStopResponse, error) {
	u.replaceWatch(taskKey(req.Alloc, req.Task), nil).cancelAndWait()
	return hook.TaskStopResponse{}, nil
}
