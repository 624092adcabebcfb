package builtinhooks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/internal/idrange"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
	"github.com/nomad-lite/nomad-lite/runtime/core/hooks"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
)

func TestMaxRunDuration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		deadline := begin.Add(10 * time.Second)
		var exceededTimes []time.Duration
		h := hooks.NewMaxRunDurationHook(func() time.Time { return deadline }, func() { exceededTimes = append(exceededTimes, time.Since(begin)) })
		ctx := t.Context()
		if _, err := h.Prerun(ctx, hook.AllocPrerunRequest{}); err != nil {
			t.Fatal(err)
		}
		deadline = begin.Add(15 * time.Second)
		if _, err := h.UpdateAlloc(ctx, hook.AllocUpdateRequest{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(exceededTimes) != 1 || exceededTimes[0] != 15*time.Second {
			t.Errorf("exceeded at %v, want once at 15s", exceededTimes)
		}
		for name, end := range map[string]func() error{
			"postrun":  func() error { return discardResult(h.Postrun(ctx, hook.AllocPostrunRequest{})) },
			"shutdown": func() error { return discardResult(h.ShutdownAlloc(ctx, hook.AllocShutdownRequest{})) },
			"no deadline any more": func() error {
				deadline = time.Time{}
				return discardResult(h.UpdateAlloc(ctx, hook.AllocUpdateRequest{}))
			},
		} {
			deadline = time.Now().Add(time.Second)
			if err := errors.Join(discardResult(h.Prerun(ctx, hook.AllocPrerunRequest{})), end()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			synctest.Wait()
			if len(exceededTimes) != 1 {
				t.Errorf("exceeded after %s", name)
			}
		}
	})
}

func TestValidate(t *testing.T) {
	ofDownloads := func(id int) string {
		return fmt.Sprintf("user id %d is one of those that only downloads have on this node: let the task have another, or the node's client.artifact.download_uids", id)
	}
	for _, c := range []struct {
		user, driver string
		services     error
		err          string
		admitted     []string
	}{
		{"root", "exec", nil, `running as user "root" is disallowed`, nil},
		{"00", "exec", nil, `running as user "00" is disallowed: it is user id 0, as "root" is`, nil},
		{"nobody:0", "exec", nil, `running as user "nobody:0" is disallowed: its group id 0 is that of "root"`, nil},
		{"root", "docker", nil, "", nil},
		{"", "exec", nil, "", nil},
		{"nobody", "exec", nil, "", nil},
		{"", "exec", errors.New("bad name"), "bad name", nil},
		{"89999", "docker", nil, "", nil},
		{"90000", "docker", nil, ofDownloads(90000), nil},
		{"90005:nogroup", "raw_exec", nil, ofDownloads(90005), nil},
		{"nomad-90009", "raw_exec", nil, ofDownloads(90009), nil},
		{"nogroup:90005", "raw_exec", nil, "", nil},
		{"", "raw_exec", nil, "", []string{"www-data", "89999"}},
		{"", "raw_exec", nil, strings.Replace(ofDownloads(90003), "90003", "90003 in lite_users", 1), []string{"www-data", "90003"}},
		{"nobody", "docker", nil, strings.Replace(ofDownloads(90009), "90009", "90009 in lite_users", 1), []string{"nomad-90009"}},
	} {
		h := NewTaskValidationHook([]string{"root"}, []string{"exec"}, idrange.Set{{First: 90000, Last: 90009}}, c.admitted, func() error { return c.services })
		r, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{Task: hook.Task{User: c.user, Driver: c.driver}})
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.err || r.Done != (err == nil) || driver.IsRecoverable(err) {
			t.Errorf("user %q, driver %q: %v, %v; want %q", c.user, c.driver, r, err, c.err)
		}
	}
}

func TestTaskDirEmitsOneEvent(t *testing.T) {
	dir, err := allocdir.New(t.TempDir(), "alloc-id")
	if err != nil {
		t.Fatal(err)
	}
	allocDirHook := NewAllocDirHook(dir, func() *api.Allocation { return &api.Allocation{ID: "alloc-id"} }, hclog.NewNullLogger())
	if _, err := allocDirHook.Prerun(t.Context(), hook.AllocPrerunRequest{}); err != nil {
		t.Fatal(err)
	}
	var eventTypes []string
	h := NewTaskDirHook(dir, api.NewTask("web", "exec"), func() allocdir.TaskDirOptions { return allocdir.TaskDirOptions{} },
		func(e *api.TaskEvent) { eventTypes = append(eventTypes, e.Type+": "+e.Message) }, hclog.NewNullLogger())
	state := map[string]string(nil)
	for range 2 {
		r, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{Task: hook.Task{Name: "web"}, PreviousState: state})
		if err != nil {
			t.Fatal(err)
		}
		if r.Done {
			t.Error("the hook is done, and secrets would be gone after a reboot")
		}
		state = r.State
	}
	if len(eventTypes) != 1 || eventTypes[0] != "Task Setup: Building Task Directory" {
		t.Errorf("events %q", eventTypes)
	}
	if _, err := h.Stop(t.Context(), hook.TaskStopRequest{Task: hook.Task{Name: "web"}}); err != nil {
		t.Error(err)
	}
	for range 2 { // Stop may be called again
		if _, err := allocDirHook.Destroy(t.Context(), hook.AllocDestroyRequest{}); err != nil {
			t.Error(err)
		}
	}
}

// A template or an artifact must not be written to a directory that the driver covers with a host directory.
func TestTaskDirRejectsHiddenDestinations(t *testing.T) {
	dir := &allocdir.TaskDir{TaskDir: hook.TaskDir{AllocDir: "/d/alloc/id"}, MountsForDriver: []driver.Mount{
		{TaskPath: "/etc", HostPath: "/etc", Readonly: true}, {TaskPath: "/alloc", HostPath: "/d/alloc/id/alloc"},
	}}
	for destination, want := range map[string]string{
		"etc": "etc", "etc/app.conf": "etc/app.conf", "/etc/app.conf": "/etc/app.conf", "local/../etc/x": "local/../etc/x",
		"local/etc/x": "", "etcetera": "", "alloc/x": "", "${NOMAD_TASK_DIR}/etc/x": "",
	} {
		for kind, task := range map[string]*api.Task{
			"template": {Templates: []*api.Template{{DestPath: &destination}}},
			"artifact": {Artifacts: []*api.TaskArtifact{{RelativeDest: &destination}}},
		} {
			err := checkDestinations(task, dir)
			if want == "" && err == nil || want != "" && err != nil && strings.Contains(err.Error(), fmt.Sprintf("%s destination %q: the task has /etc of the machine there", kind, want)) {
				continue
			}
			t.Errorf("%s %q: error %v", kind, destination, err)
		}
	}
}

// fakeCollector returns an error from Start, if it has one.
type fakeCollector struct {
	err       error
	stopCalls []string
}

func (c *fakeCollector) Start(_ context.Context, t logs.Task) (string, string, error) {
	return t.Name + ".out", t.Name + ".err", c.err
}

func (c *fakeCollector) Stop(_ context.Context, alloc, task string, ended bool) error {
	c.stopCalls = append(c.stopCalls, fmt.Sprint(alloc, "/", task, " ", ended))
	return nil
}

func (c *fakeCollector) StopCollectionOfEarlierAgent(_ context.Context, t logs.Task, ended bool) error {
	c.stopCalls = append(c.stopCalls, fmt.Sprint(t.Name, " of an earlier agent ", ended))
	return nil
}

func (c *fakeCollector) StopUnlessStopped(_ context.Context, alloc, task string) error {
	c.stopCalls = append(c.stopCalls, fmt.Sprint(alloc, "/", task, " unless stopped"))
	return c.err
}

// Destroy ends the collections that Stop could not end. If it cannot end them either, it fails, so that it is repeated.
func TestAllocLogs(t *testing.T) {
	c := &fakeCollector{}
	h := NewAllocLogsHook(c, []string{"web", "db"})
	destroy := func() error {
		_, err := h.Destroy(t.Context(), hook.AllocDestroyRequest{Alloc: hook.Alloc{ID: "a"}})
		return err
	}
	if err := destroy(); err != nil || !slices.Equal(c.stopCalls, []string{"a/web unless stopped", "a/db unless stopped"}) {
		t.Errorf("%v, calls %q", err, c.stopCalls)
	}
	c.err = errors.New("no collector")
	if err := destroy(); !errors.Is(err, c.err) {
		t.Error(err)
	}
}

func TestLogs(t *testing.T) {
	c, paths, mode, ended := &fakeCollector{}, "", OutputCollected, true
	h := NewLogsHook(c, func() (logs.Task, OutputMode) { return logs.Task{Name: "web"}, mode },
		func(stdout, stderr string) { paths = stdout + " " + stderr }, func() bool { return ended }, nil)
	stop := hook.TaskStopRequest{Alloc: hook.Alloc{ID: "a"}, Task: hook.Task{Name: "web"}}

	r, err := h.Prestart(t.Context(), hook.TaskPrestartRequest{})
	if err != nil || r.Done || paths != "web.out web.err" {
		t.Errorf("prestart: %v, %v, paths %q", r, err, paths)
	}
	if _, err := h.Stop(t.Context(), stop); err != nil || len(c.stopCalls) != 1 || c.stopCalls[0] != "a/web true" {
		t.Errorf("stop: %v, %q", err, c.stopCalls)
	}

	// Stop also works for a task that an earlier agent may have started.
	later := &fakeCollector{}
	again := NewLogsHook(later, func() (logs.Task, OutputMode) { return logs.Task{Name: "web"}, OutputCollected }, nil, func() bool { return false }, nil)
	if _, err := again.Stop(t.Context(), stop); err != nil || len(later.stopCalls) != 1 || later.stopCalls[0] != "web of an earlier agent false" {
		t.Errorf("stop under another agent: %v, %q", err, later.stopCalls)
	}

	ended = false
	if _, err := h.Stop(t.Context(), stop); err != nil || c.stopCalls[1] != "a/web false" {
		t.Errorf("stop of a task that may still run: %v, %q", err, c.stopCalls)
	}

	c.err = errors.New("no pipe")
	if _, err = h.Prestart(t.Context(), hook.TaskPrestartRequest{}); !driver.IsRecoverable(err) {
		t.Errorf("an error that another try may heal is %v", err)
	}

	for _, test := range []struct {
		mode OutputMode
		want string
	}{{OutputDiscarded, ""}, {OutputReadByDriver, ".web.stdout.fifo .web.stderr.fifo"}} {
		mode, paths = test.mode, ""
		if _, err = h.Prestart(t.Context(), hook.TaskPrestartRequest{}); err != nil || paths != test.want {
			t.Errorf("mode %d: %v, paths %q, want %q", mode, err, paths, test.want)
		}
	}
	if _, err := h.Stop(t.Context(), stop); err != nil || len(c.stopCalls) != 2 {
		t.Errorf("without logs: %v, %q", err, c.stopCalls)
	}
}

// fullCollector has no room for a task until freed is closed.
type fullCollector struct {
	fakeCollector
	descriptorsFreed chan struct{}
}

func (c *fullCollector) Start(ctx context.Context, t logs.Task) (string, string, error) {
	select {
	case <-c.descriptorsFreed:
		return c.fakeCollector.Start(ctx, t)
	default:
		return "", "", fmt.Errorf("collect: %w", &logs.TooManyTasksError{CollectedTasks: 3, DescriptorLimit: 100, DescriptorsFreed: c.descriptorsFreed})
	}
}

// A task waits until file descriptors are free or it is killed. One event has the reason.
func TestLogsWaitForDescriptors(t *testing.T) {
	for _, killed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c := &fullCollector{descriptorsFreed: make(chan struct{})}
			var events []*api.TaskEvent
			paths := ""
			h := NewLogsHook(c, func() (logs.Task, OutputMode) { return logs.Task{Name: "web"}, OutputCollected },
				func(stdout, stderr string) { paths = stdout + " " + stderr }, nil, func(e *api.TaskEvent) { events = append(events, e) })
			ctx, kill := context.WithCancel(t.Context())
			done := make(chan error)
			go func() {
				_, err := h.Prestart(ctx, hook.TaskPrestartRequest{})
				done <- err
			}()
			synctest.Wait()
			if len(events) != 1 || !strings.Contains(events[0].Message, "waiting for file descriptors: 3 tasks run, and the limit of 100 open files") {
				t.Errorf("events %v", events)
			}
			if killed {
				kill()
			} else {
				close(c.descriptorsFreed)
			}
			if err := <-done; (err != nil) != killed || (paths == "web.out web.err") == killed {
				t.Errorf("killed %v: %v, paths %q", killed, err, paths)
			}
			kill()
		})
	}
}

// The wait for file descriptors is longer than the hook deadline.
func TestWaitForDescriptorsHasNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fullCollector{descriptorsFreed: make(chan struct{})}
		h := NewLogsHook(c, func() (logs.Task, OutputMode) { return logs.Task{Name: "web"}, OutputCollected }, func(string, string) {}, nil, func(*api.TaskEvent) {})
		chain := hooks.NewChain(hooks.ChainConfig{
			Limits: hooks.CallLimits{StartHookPointTimeout: time.Minute, OtherHookPointTimeout: time.Second}, EmitEvent: func(*api.TaskEvent) {}, Logger: hclog.NewNullLogger(),
		}, []hooks.OrderedHook{{Order: hooks.OrderLogs, Hook: h}})
		time.AfterFunc(time.Hour, func() { close(c.descriptorsFreed) })
		err := hooks.CallStartHooksUntilError(t.Context(), chain, hook.Prestart, func(ctx context.Context, _ hooks.Hook, h hook.TaskPrestart) (hook.TaskPrestartResponse, error) {
			return h.Prestart(ctx, hook.TaskPrestartRequest{})
		}, func(error) bool { return false })
		if err != nil {
			t.Error(err)
		}
	})
}

// discardResult returns a hook point's error.
func discardResult[R any](_ R, err error) error { return err }
