package sdktest

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// testSchemasAreValid checks that the schemas are valid. The case config.task-schema checks that the configured tasks
// fit.
func testSchemasAreValid(t tb, h *testHost) {
	p := h.launchOrGetSharedProcess(t)
	pluginSchema, err := p.baseClient.ConfigSchema(t.Context())
	if err != nil {
		t.Errorf("ConfigSchema: %v", err)
	} else if err := h.testedPlugin.configEncoder().SchemaFault(pluginSchema); err != nil {
		t.Errorf("the schema of the plugin block: %v", err)
	}
	taskSchema, err := p.driverClient.TaskConfigSchema(t.Context())
	if err != nil {
		t.Errorf("TaskConfigSchema: %v", err)
	} else if err := h.testedPlugin.configEncoder().SchemaFault(taskSchema); err != nil {
		t.Errorf("the schema of the task config: %v", err)
	}
}

func testHandleKeepsTaskConfig(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if s.handle == nil || s.handle.Config == nil {
		t.Skipf("the handle has no task config")
	}
	got, want := collectNonEmptyFields(t, s.handle.Config), collectNonEmptyFields(t, s.config)
	for name := range want {
		if !reflect.DeepEqual(got[name], want[name]) {
			t.Errorf("%s in the handle is %v, want %v as sent", name, got[name], want[name])
		}
		delete(got, name)
	}
	for name, value := range got {
		t.Errorf("%s in the handle is %v, and was not sent", name, value)
	}
}

// collectNonEmptyFields returns the fields of a task config that are not empty, because the protocol does not
// distinguish an empty field from a missing one.
func collectNonEmptyFields(t tb, config *driver.TaskConfig) map[string]any {
	t.Helper()
	var fields map[string]any
	text, err := json.Marshal(config)
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		t.Fatalf("%v", err)
	}
	var prune func(any) any
	prune = func(v any) any {
		if object, ok := v.(map[string]any); ok {
			for key, value := range object {
				if value = prune(value); value == nil {
					delete(object, key)
				}
			}
		}
		if value := reflect.ValueOf(v); !value.IsValid() || value.IsZero() || value.Kind() != reflect.Bool && value.Kind() != reflect.Float64 && value.Len() == 0 {
			return nil
		}
		return v
	}
	prune(fields)
	return fields
}

func testMalformedTaskConfigFails(t tb, h *testHost) {
	if len(h.testedPlugin.Tasks.LongRunning) == 0 {
		t.Skipf("the task config is empty, so that the driver need not decode it")
	}
	config, s := h.prepareTaskDirsAndConfig(t, h.testedPlugin.Tasks.LongRunning)
	config.DriverConfig = []byte{0xc1, 0xff} // 0xc1 is not used in msgpack
	s.config = config
	t.Cleanup(s.cleanUp)
	handle, _, err := s.currentDriver().StartTask(t.Context(), config)
	s.handle = handle
	if err == nil {
		t.Errorf("StartTask with a task config that is not msgpack succeeded")
	}
}

func testFingerprintRateIsLimited(t tb, h *testHost) {
	if h.watchedStreams == nil {
		testStreamsCanBeOpenedTwice(t, h)
	}
	s := h.watchedStreams
	if err := wait.Sleep(t.Context(), time.Until(s.firstOpenedAt.Add(minFingerprintCountTime))); err != nil {
		t.Fatalf("%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	open := time.Since(s.firstOpenedAt)
	const maxPerSecond = 2 // several times the rate of a driver that fingerprints at each change
	for i, count := range s.fingerprintCountsByStream {
		switch {
		case count == 0:
			t.Errorf("stream %d had no fingerprint in %v, want one at once", i+1, open.Round(time.Millisecond))
		case float64(count) > 2+maxPerSecond*open.Seconds():
			t.Errorf("stream %d had %d fingerprints in %v, want at most %d per second", i+1, count, open.Round(time.Millisecond), maxPerSecond)
		}
	}
}

func testTaskEventsNameTheirTask(t tb, h *testHost) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := h.launchOrGetSharedProcess(t).driverClient.TaskEvents(ctx)
	if err != nil {
		t.Fatalf("TaskEvents: %v", err)
	}
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	const eventDelay = 100 * time.Millisecond
	deadline := time.After(eventDelay)
	for count := 0; ; count++ {
		select {
		case event, ok := <-events:
			if !ok {
				t.Fatalf("the stream of events ended")
			}
			// The stream can start with events of earlier tasks that no stream has received.
			if !h.isAllocOfSuite(event.AllocID) || event.TaskName != s.config.Name || event.Message == "" {
				t.Errorf("an event has the allocation %q, the task %q and the message %q; want an allocation that was started, such as %s, the task %q and a message",
					event.AllocID, event.TaskName, event.Message, s.config.AllocID, s.config.Name)
				return
			}
		case <-deadline:
			if count == 0 {
				t.Skipf("the driver sent no event for a task that was started and stopped")
			}
			return
		}
	}
}

func testOneOfConcurrentStartsSucceeds(t tb, h *testHost) {
	config, s := h.prepareTaskWithoutOutput(t)
	s.config = config
	t.Cleanup(s.cleanUp)
	d := s.currentDriver()
	var wg sync.WaitGroup
	var successes atomic.Int32
	var mu sync.Mutex
	for range 4 {
		wg.Go(func() {
			if handle, _, err := d.StartTask(t.Context(), config); err == nil {
				successes.Add(1)
				mu.Lock()
				defer mu.Unlock()
				s.handle = handle
			}
		})
	}
	wg.Wait()
	if n := successes.Load(); n != 1 {
		t.Errorf("%d of 4 concurrent StartTask calls with the same id succeeded, want 1", n)
	}
}

func testDestroyReleasesWait(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	d := s.currentDriver()
	returned := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(returned)
		_, _ = d.WaitTask(ctx, s.config.ID) // returns a result or ErrTaskNotFound
	}()
	time.Sleep(20 * time.Millisecond) // time for the call to reach the plugin
	s.destroy()
	select {
	case <-returned:
	case <-time.After(waitReleaseTimeout):
		t.Errorf("WaitTask did not return within %v after DestroyTask", waitReleaseTimeout)
	}
}

// waitReleaseTimeout limits how long a call that waits for a task can take to return after the end of the task. Tests
// change it.
var waitReleaseTimeout = 5 * time.Second

func testConcurrentStopsSucceed(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	d := s.currentDriver()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := d.StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
				t.Errorf("StopTask beside another StopTask: %v", err)
			}
		})
	}
	wg.Wait()
	if err := d.StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
		t.Errorf("StopTask of a stopped task: %v", err)
	}
}

func testStatsCanBeReopened(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	for i := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := s.currentDriver().TaskStats(ctx, s.config.ID, 20*time.Millisecond)
		if err == nil {
			_, ok := receiveWithin(waitReleaseTimeout, c)
			if !ok && i == 0 {
				cancel()
				t.Skipf("the driver has no statistics")
			}
			if !ok {
				t.Errorf("no sample in a stream that was opened after the first one was cancelled")
			}
		} else if i == 0 {
			cancel()
			t.Skipf("the driver has no statistics: %v", err)
		} else {
			t.Errorf("TaskStats after the first stream was cancelled: %v", err)
		}
		cancel()
	}
}

func testStatsOfExitedTaskEnd(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.Succeeds)
	s.waitForExit()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := s.currentDriver().TaskStats(ctx, s.config.ID, 20*time.Millisecond)
	if err != nil {
		return
	}
	for deadline := time.Now().Add(statsEndTimeout); time.Now().Before(deadline); {
		if _, ok := receiveWithin(time.Until(deadline), c); !ok && time.Now().Before(deadline) {
			return
		}
	}
	t.Errorf("the stream of samples of an exited task is open after %v", statsEndTimeout)
}

// statsEndTimeout limits how long a stream of samples can stay open after the exit of its task. Tests change it.
var statsEndTimeout = 2 * time.Second

// receiveWithin receives a value from c. ok is false if c was closed, or no value arrived within the limit.
func receiveWithin[V any](limit time.Duration, c <-chan V) (v V, ok bool) {
	select {
	case v, ok = <-c:
	case <-time.After(limit):
	}
	return v, ok
}

func testUndeclaredExecFails(t tb, h *testHost) {
	if h.capabilities(t).Exec {
		t.Skipf("the driver declares exec")
	}
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if _, err := s.currentDriver().ExecTask(t.Context(), s.config.ID, []string{"true"}, time.Second); err == nil {
		t.Errorf("ExecTask succeeded, and the driver does not declare it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitReleaseTimeout)
	defer cancel()
	if _, err := s.currentDriver().ExecTaskStreaming(ctx, s.config.ID, driver.Exec{Command: []string{"true"}}); err == nil || ctx.Err() != nil {
		t.Errorf("ExecTaskStreaming: %v, want an error at once, because the driver does not declare exec", err)
	}
}

func testSignalOfExitedTaskFails(t tb, h *testHost) {
	if !h.capabilities(t).SendSignals {
		t.Skipf("the driver does not declare signals")
	}
	s := h.startTask(t, h.testedPlugin.Tasks.Succeeds)
	s.waitForExit()
	if err := s.currentDriver().SignalTask(t.Context(), s.config.ID, "SIGHUP"); err == nil {
		t.Errorf("SignalTask of an exited task succeeded")
	}
}

func testExecInExitedTaskFails(t tb, h *testHost) {
	if !h.capabilities(t).Exec {
		t.Skipf("the driver does not declare exec")
	}
	s := h.startTask(t, h.testedPlugin.Tasks.Succeeds)
	s.waitForExit()
	result, err := s.currentDriver().ExecTask(t.Context(), s.config.ID, []string{"/bin/sh", "-c", "exit 0"}, time.Second)
	if err == nil && result.Exit.Successful() {
		t.Errorf("ExecTask in an exited task succeeded")
	}
}

func testRecoverWithMalformedStateFails(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if s.handle == nil || len(s.handle.DriverState) == 0 {
		t.Skipf("the handle has no driver state")
	}
	h.killSharedProcess(t)
	malformed := *s.handle
	malformed.DriverState = []byte{0xc1, 0xff} // 0xc1 is not used in msgpack
	if err := s.currentDriver().RecoverTask(t.Context(), &malformed); err != nil {
		return
	}
	// A driver can find the task without its state, and then the task is running.
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("RecoverTask with malformed state succeeded, and the running task is %+v, %v", status, err)
	}
}

func testRecoverUnknownVersionFails(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	h.killSharedProcess(t)
	unknown := *s.handle
	unknown.Version = 1000
	if err := s.currentDriver().RecoverTask(t.Context(), &unknown); err == nil {
		t.Errorf("RecoverTask with a handle of version 1000 succeeded, and StartTask returns version %d", s.handle.Version)
	}
}

func testStopWorksAfterCancelledStop(t tb, h *testHost) {
	s := h.startShellTask(t, `trap "" INT TERM; echo ready; while :; do sleep 0.02; done`)
	s.waitForLineWithPrefix("ready")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.currentDriver().StopTask(ctx, s.config.ID, time.Minute, ""); err == nil {
		t.Errorf("StopTask succeeded before the task had exited")
	}
	ctx, cancel = context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	if err := s.currentDriver().StopTask(ctx, s.config.ID, 100*time.Millisecond, ""); err != nil {
		t.Fatalf("StopTask with a timeout of 100ms, after a cancelled one: %v", err)
	}
	if exit := s.waitForExit(); exit.Signal != int(unix.SIGKILL) {
		t.Errorf("the exit result is %+v, want signal 9", *exit)
	}
}

func testUnknownStopSignalStopsTask(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, 200*time.Millisecond, "SIGFOO"); err != nil {
		t.Errorf("StopTask with the signal SIGFOO: %v", err)
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskExited {
		t.Errorf("after StopTask with the signal SIGFOO the task is %+v, %v, want state exited", status, err)
	}
}

func testOutputArrivesAfterPluginKill(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, `echo first; until [ -s local/code ]; do sleep 0.01; done; echo second; exec sleep 60`)
	s.waitForLineWithPrefix("first")
	h.killSharedProcess(t)
	if err := s.callRecoverTask(); err != nil {
		t.Skipf("the driver cannot recover tasks, so that hosts start them again: %v", err)
	}
	s.writeExitCodeForScript(0)
	deadline := time.Now().Add(waitReleaseTimeout)
	for !strings.Contains(s.stdout.String(), "second\n") {
		if time.Now().After(deadline) {
			t.Fatalf("output after SIGKILL of the plugin did not arrive; all output is %q", s.stdout.String())
		}
		time.Sleep(2 * time.Millisecond)
	}
}
