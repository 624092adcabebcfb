package sdktest

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// driverCases returns the suite for a driver, in the order of a driver's
// lifecycle.
func driverCases(p Plugin) []testCase {
	shell := shellCases()
	if p.Tasks.Shell == nil {
		shell = []testCase{{"command: what is only seen from inside of a command", func(t tb, _ *testHost) {
			t.Skipf("it runs no commands, as far as is known")
		}}}
	}
	all := append([]testCase{
		{"says in words what it is when a person starts it", testStartWithoutHost},
		{"names itself as a driver of a known protocol version", testPluginInfo(base.TypeDriver, driver.APIVersion)},
		{"takes its configuration twice, from a host that only checks it", testConfigureTwice},
		{"has a schema that fits its tasks", testTaskSchema},
		{"opens its streams as often as a host asks", testOpenStreams},
		{"sends its first fingerprint at once", testFirstFingerprint},
		{"returns a complete handle", testTaskHandle},
		{"refuses to start an id that it knows", testStartWithKnownID},
		{"tells every waiter the same, also later", testConcurrentWaits},
		{"a waiter that goes away does not end the task", testCancelledWait},
		{"a failed task is no success", testFailedTask},
		{"stops a running task, and says so to waiters", testStopTask},
		{"stopping a task that has ended is no error", testStopExitedTask},
		{"destroys a running task only by force", testDestroyNeedsForce},
		{"forgets a destroyed task", testDestroyedTaskIsUnknown},
		{"does not know an unknown task", testUnknownTask},
		{"inspects a task before and after its end", testInspectTask},
		{"samples statistics at once and once per interval", testTaskStats},
		{"runs many tasks at once", testConcurrentTasks},
		{"recovering a task that it knows changes nothing", testRecoverKnownTask},
		{"a task survives the death of the plugin", testRecoverAfterCrash},
		{"an orderly end of the plugin stops no task", testRecoverAfterShutdown},
		{"does not claim to have recovered what is gone", testRecoverDestroyedTask},
	}, shell...)
	return append(all, testCase{"keeps its streams open until the host ends them", testStreamsStayOpen})
}

func testStartWithoutHost(t tb, h *testHost) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	stdout, stderr, code, err := h.runWithoutHost(ctx)
	switch {
	case ctx.Err() != nil:
		t.Errorf("it does not end when it is started without a host")
	case err != nil:
		t.Errorf("start it by hand: %v", err)
	case code == 0:
		t.Errorf("exit code 0, want a failure")
	}
	if stdout != "" {
		t.Errorf("it writes to standard output, where hosts expect the handshake: %q", stdout)
	}
	if strings.TrimSpace(stderr) == "" {
		t.Errorf("it says nothing on standard error")
	}
}

var versionPattern = regexp.MustCompile(`^v?\d+(\.\d+)*([-+].*)?$`)

func testPluginInfo(kind base.Type, apiVersion string) func(tb, *testHost) {
	return func(t tb, h *testHost) {
		p, err := h.launch()
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer p.client.Kill()
		info, err := p.base.PluginInfo(t.Context())
		if err != nil {
			t.Fatalf("PluginInfo: %v", err)
		}
		if info.Type != kind {
			t.Errorf("its type is %v, want %v", info.Type, kind)
		}
		if !slices.ContainsFunc(info.APIVersions, func(v string) bool { return strings.TrimPrefix(v, "v") == strings.TrimPrefix(apiVersion, "v") }) {
			t.Errorf("its protocol versions are %q, want %q among them", info.APIVersions, apiVersion)
		}
		if info.Name == "" {
			t.Errorf("it has no name")
		}
		if !versionPattern.MatchString(info.Version) {
			t.Errorf("its version %q is not one", info.Version)
		}
		if _, err := p.base.ConfigSchema(t.Context()); err != nil {
			t.Errorf("ConfigSchema: %v", err)
		}
	}
}

func testConfigureTwice(t tb, h *testHost) {
	p, err := h.launch()
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer p.client.Kill()
	config, err := h.pluginConfig(t.Context(), p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for range 2 {
		if err := p.base.SetConfig(t.Context(), config); err != nil {
			t.Errorf("SetConfig without a word about the host: %v", err)
		}
	}
}

func testTaskSchema(t tb, h *testHost) {
	p := h.ensureSharedProcess(t)
	schema, err := p.driver.TaskConfigSchema(t.Context())
	if err != nil {
		t.Fatalf("TaskConfigSchema: %v", err)
	}
	if schema == nil {
		t.Fatalf("it has no schema: no host can read a config block for it")
	}
	for name, body := range map[string]map[string]any{"runs": h.plugin.Tasks.Runs, "ends": h.plugin.Tasks.Ends, "fails": h.plugin.Tasks.Fails} {
		if body == nil {
			continue
		}
		if _, err := encodeConfig(schema, body); err != nil {
			t.Errorf("the config of the task that %s: %v", name, err)
		}
	}
}

func testFirstFingerprint(t tb, h *testHost) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := h.ensureSharedProcess(t).driver.Fingerprint(ctx)
	if err != nil {
		t.Fatalf("Fingerprint: %v", err)
	}
	select {
	case f, ok := <-c:
		switch {
		case !ok || f.Err != nil:
			t.Fatalf("the stream of fingerprints broke: %v", f.Err)
		case f.Health != driver.HealthHealthy:
			t.Errorf("it is not healthy: %s", f.HealthDescription)
		}
	case <-time.After(waitTimeout):
		t.Fatalf("no fingerprint within %v", waitTimeout)
	}
}

// driverStreams are the streams that a driver must keep open: if they ended, a host
// would reopen them in a loop. The suite watches them during the other cases, in a
// separate plugin process, because a client needs some time to distinguish the end of a
// stream from the end of the process.
type driverStreams struct {
	process  *pluginProcess
	cancel   context.CancelFunc
	openedAt time.Time

	mu           sync.Mutex
	endedStreams []string
}

// streamTestDuration is how long the streams must stay open. It is longer than a client
// needs to distinguish the end of a stream from the end of the process.
var streamTestDuration = 3500 * time.Millisecond

func testOpenStreams(t tb, h *testHost) {
	p, err := h.launch()
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := &driverStreams{process: p, openedAt: time.Now()}
	h.driverStreams = s
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if err := h.configure(t.Context(), p); err != nil {
		t.Fatalf("%v", err)
	}
	for range 2 { // twice: the host restarts while its old streams are open
		fingerprints, err := p.driver.Fingerprint(ctx)
		if err != nil {
			t.Fatalf("Fingerprint: %v", err)
		}
		go watchStream(s, ctx, "fingerprints", fingerprints, func(f driver.Fingerprint) bool { return f.Err == nil })
		events, err := p.driver.TaskEvents(ctx)
		if err != nil {
			t.Fatalf("TaskEvents: %v", err)
		}
		go watchStream(s, ctx, "task events", events, func(*driver.TaskEvent) bool { return true })
	}
}

// watchStream reads c until it is closed or good rejects a value. If ctx has not
// ended by then, it adds the name what to s.endedStreams.
func watchStream[V any](s *driverStreams, ctx context.Context, what string, c <-chan V, good func(V) bool) {
	for v := range c {
		if !good(v) {
			break
		}
	}
	if ctx.Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.endedStreams = append(s.endedStreams, what)
	}
}

func testStreamsStayOpen(t tb, h *testHost) {
	s := h.driverStreams
	if s == nil {
		t.Skipf("there are none")
	}
	time.Sleep(time.Until(s.openedAt.Add(streamTestDuration)))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process.client.Exited() {
		t.Fatalf("%s", s.process.crashReport())
	}
	for _, what := range s.endedStreams {
		t.Errorf("a stream of %s ends by itself", what)
	}
}

func testTaskHandle(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	switch {
	case s.handle == nil:
		t.Fatalf("no handle")
	case s.handle.Config == nil:
		t.Fatalf("the handle carries no task config")
	}
	if s.handle.Version < 1 {
		t.Errorf("its version is %d, want at least 1", s.handle.Version)
	}
	if s.handle.State != driver.TaskRunning {
		t.Errorf("its state is %v, want running", s.handle.State)
	}
	if got, want := s.handle.Config.ID, s.config.ID; got != want {
		t.Errorf("its task has the id %q, want %q", got, want)
	}
	if got, want := s.handle.Config.Env["ODD"], s.config.Env["ODD"]; got != want {
		t.Errorf("the environment in it was changed: %q, want %q", got, want)
	}
}

func testStartWithKnownID(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	if _, _, err := s.driver().StartTask(t.Context(), s.config); err == nil {
		t.Errorf("a second StartTask with the same id succeeds")
	}
	if status, err := s.driver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("the first one does not run any more: %+v, %v", status, err)
	}
}

func testConcurrentWaits(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Ends)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			exit, err := s.driver().WaitTask(t.Context(), s.config.ID)
			if err != nil {
				t.Errorf("WaitTask: %v", err)
			} else if !exit.Successful() {
				t.Errorf("a task that ends well ended with %+v", *exit)
			}
		})
	}
	wg.Wait()
	if exit := s.wait(); !exit.Successful() {
		t.Errorf("asked later, it ended with %+v", *exit)
	}
}

func testCancelledWait(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	for _, timeout := range []time.Duration{50 * time.Millisecond, 100 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		exit, err := s.driver().WaitTask(ctx, s.config.ID)
		cancel()
		if err == nil {
			t.Fatalf("it does not run any more, it ended with %+v", *exit)
		}
	}
	if status, err := s.driver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("the task does not run any more: %+v, %v", status, err)
	}
}

func testFailedTask(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Fails)
	if exit := s.wait(); exit.Successful() {
		t.Errorf("a task that fails ended with %+v", *exit)
	}
}

func testStopTask(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	waited := make(chan error, 1)
	go func() {
		_, err := s.driver().WaitTask(t.Context(), s.config.ID)
		waited <- err
	}()
	if err := s.driver().StopTask(t.Context(), s.config.ID, 5*time.Second, ""); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	select {
	case err := <-waited:
		if err != nil {
			t.Errorf("WaitTask: %v", err)
		}
	case <-time.After(waitTimeout):
		t.Fatalf("StopTask has returned, and WaitTask still waits")
	}
	if status, err := s.driver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskExited {
		t.Errorf("a stopped task is %+v, %v", status, err)
	}
}

func testStopExitedTask(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Ends)
	s.wait()
	if err := s.driver().StopTask(t.Context(), s.config.ID, time.Second, ""); err != nil {
		t.Errorf("StopTask: %v", err)
	}
	if exit := s.wait(); !exit.Successful() {
		t.Errorf("it changed how the task ended: %+v", *exit)
	}
}

func testDestroyNeedsForce(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	if err := s.driver().DestroyTask(t.Context(), s.config.ID, false); err == nil {
		t.Fatalf("DestroyTask without force destroys a running task")
	}
	if status, err := s.driver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Fatalf("the refusal has harmed the task: %+v, %v", status, err)
	}
	if err := s.driver().DestroyTask(t.Context(), s.config.ID, true); err != nil {
		t.Errorf("DestroyTask with force: %v", err)
	}
}

func testDestroyedTaskIsUnknown(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Ends)
	s.wait()
	if err := s.driver().DestroyTask(t.Context(), s.config.ID, false); err != nil {
		t.Errorf("DestroyTask of a task that has ended: %v", err)
	}
	if _, err := s.driver().WaitTask(t.Context(), s.config.ID); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("WaitTask of a destroyed task: %v, want %v", err, driver.ErrTaskNotFound)
	}
	if err := s.driver().DestroyTask(t.Context(), s.config.ID, true); err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("a second DestroyTask: %v, want %v", err, driver.ErrTaskNotFound)
	}
}

func testUnknownTask(t tb, h *testHost) {
	d := h.ensureSharedProcess(t).driver
	id := newID() + "/task/00000000"
	for name, call := range map[string]func() error{
		"WaitTask":    func() error { _, err := d.WaitTask(t.Context(), id); return err },
		"StopTask":    func() error { return d.StopTask(t.Context(), id, time.Second, "") },
		"DestroyTask": func() error { return d.DestroyTask(t.Context(), id, true) },
		"InspectTask": func() error { _, err := d.InspectTask(t.Context(), id); return err },
		"SignalTask":  func() error { return d.SignalTask(t.Context(), id, "SIGHUP") },
		"ExecTask":    func() error { _, err := d.ExecTask(t.Context(), id, []string{"true"}, time.Second); return err },
	} {
		err := call()
		if err == nil {
			t.Errorf("%s of an unknown id succeeds", name)
		} else if !errors.Is(err, driver.ErrTaskNotFound) && !strings.Contains(err.Error(), "not supported") {
			t.Errorf("%s of an unknown id: %v, want %v", name, err, driver.ErrTaskNotFound)
		}
	}
}

func testInspectTask(t tb, h *testHost) {
	before := time.Now().Add(-time.Second)
	body := h.plugin.Tasks.Fails
	if body == nil {
		body = h.plugin.Tasks.Ends
	}
	s := h.startTask(t, body)
	exit := s.wait()
	status, err := s.driver().InspectTask(t.Context(), s.config.ID)
	if err != nil {
		t.Fatalf("InspectTask: %v", err)
	}
	if status.ID != s.config.ID || status.Name != s.config.Name {
		t.Errorf("it is about task %q with id %q, want %q and %q", status.Name, status.ID, s.config.Name, s.config.ID)
	}
	if status.State != driver.TaskExited {
		t.Errorf("a task that has ended has the state %v", status.State)
	}
	if status.StartedAt.Before(before) || status.CompletedAt.Before(status.StartedAt) {
		t.Errorf("it started at %v and ended at %v", status.StartedAt, status.CompletedAt)
	}
	if status.ExitResult == nil || status.ExitResult.ExitCode != exit.ExitCode || status.ExitResult.Signal != exit.Signal {
		t.Errorf("it ended with %+v, and WaitTask says %+v", status.ExitResult, exit)
	}
}

func testTaskStats(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	const statsInterval = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := s.driver().TaskStats(ctx, s.config.ID, statsInterval)
	if err != nil {
		t.Skipf("it has no statistics: %v", err)
	}
	var lastTimestamp time.Time
	for i := range 3 {
		select {
		case sample, ok := <-c:
			if !ok && i == 0 {
				t.Skipf("it has no statistics")
			}
			if !ok {
				t.Fatalf("the stream of statistics ends while the task runs")
			}
			if sample == nil || !sample.Timestamp.After(lastTimestamp) {
				t.Fatalf("sample %d is %+v, after one at %v", i, sample, lastTimestamp)
			}
			lastTimestamp = sample.Timestamp
		case <-time.After(waitTimeout):
			t.Fatalf("no sample within %v", waitTimeout)
		}
	}
	if err := s.driver().StopTask(t.Context(), s.config.ID, time.Second, ""); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	waitUntil(t, "the stream of statistics ends with the task", func() bool {
		select {
		case _, ok := <-c:
			return !ok
		default:
			return false
		}
	})
}

func testConcurrentTasks(t tb, h *testHost) {
	const taskCount = 12
	var tasks []*startedTask
	for i := range taskCount {
		body := h.plugin.Tasks.Runs
		if i%2 == 0 && h.plugin.Tasks.Ends != nil {
			body = h.plugin.Tasks.Ends
		}
		config, s := h.newConfig(t, body)
		t.Cleanup(s.cleanUp)
		s.config = config
		tasks = append(tasks, s)
	}
	d := h.ensureSharedProcess(t).driver
	var wg sync.WaitGroup
	for _, s := range tasks {
		wg.Go(func() {
			handle, _, err := d.StartTask(t.Context(), s.config)
			if err != nil {
				t.Errorf("StartTask: %v", err)
				return
			}
			s.handle = handle
			var taskCalls sync.WaitGroup
			for range 2 {
				taskCalls.Go(func() {
					if _, err := d.WaitTask(t.Context(), s.config.ID); err != nil {
						t.Errorf("WaitTask: %v", err)
					}
				})
			}
			if c, err := d.TaskStats(t.Context(), s.config.ID, 10*time.Millisecond); err == nil {
				taskCalls.Go(func() {
					for range c {
					}
				})
			}
			if err := d.StopTask(t.Context(), s.config.ID, 5*time.Second, ""); err != nil {
				t.Errorf("StopTask: %v", err)
			}
			taskCalls.Wait()
			if err := d.DestroyTask(t.Context(), s.config.ID, true); err != nil {
				t.Errorf("DestroyTask: %v", err)
			}
		})
	}
	wg.Wait()
}

func testRecoverKnownTask(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	if err := s.recover(); err != nil {
		t.Errorf("RecoverTask: %v", err)
	}
	if status, err := s.driver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("the task does not run any more: %+v, %v", status, err)
	}
}

func testRecoverAfterCrash(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	h.crashPlugin(t)
	if err := s.recover(); err != nil {
		t.Skipf("its tasks cannot be recovered, hosts start them again: %v", err)
	}
	status, err := s.driver().InspectTask(t.Context(), s.config.ID)
	if err != nil || status.State != driver.TaskRunning {
		t.Fatalf("the recovered task is %+v, %v", status, err)
	}
	if err := s.driver().StopTask(t.Context(), s.config.ID, 5*time.Second, ""); err != nil {
		t.Errorf("StopTask of a recovered task: %v", err)
	}
	s.wait()
	s.destroy()
}

func testRecoverAfterShutdown(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := s.driver().Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if status, err := s.driver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Fatalf("after Shutdown the task is %+v, %v", status, err)
	}
	h.stopSharedProcess()
	if err := s.recover(); err != nil {
		t.Skipf("its tasks cannot be recovered, hosts start them again: %v", err)
	}
	if status, err := s.driver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Fatalf("the recovered task is %+v, %v", status, err)
	}
}

func testRecoverDestroyedTask(t tb, h *testHost) {
	s := h.startTask(t, h.plugin.Tasks.Runs)
	s.destroy()
	h.crashPlugin(t)
	if err := s.recover(); err != nil {
		return
	}
	if exit := s.wait(); exit.Successful() {
		t.Errorf("a task that was killed is recovered, and ended well")
	}
}
