package sdktest

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// driverCases returns the test cases for a driver, in the order in which they run.
func driverCases(p Plugin) []testCase {
	shell := shellCases()
	if p.Tasks.Shell == nil {
		shell = []testCase{{
			id: "command", severity: Must, expectation: "the commands of tasks run as the host says",
			run: func(t tb, _ *testHost) {
				t.Skipf("no command to run is known: set Tasks.Shell, or shell in plugin_test.hcl")
			},
		}}
	}
	all := slices.Concat(launchCases("driver", base.TypeDriver, driver.APIVersion,
		"Nomad starts a process for the name, another for the configuration, and another for the tasks."), []testCase{
		{"config.schema", Must, "the schemas of the plugin block and of the task config are valid", "A host rejects a job or the agent's configuration because of an error of the plugin.", linkConfig, testSchemasAreValid},
		{"config.set-twice", Must, "SetConfig succeeds twice, without information about the host", "Hosts check the configuration in a process of its own and set it again; an error prevents the start of the agent.", linkConfig, testSetConfigSucceedsTwice},
		{"config.task-schema", Must, "the configured tasks fit the schema of the task config", "Without a valid schema, no host can read the config block of a task.", linkConfig, testTasksFitConfigSchema},
		{"config.round-trip", Must, "the handle has the task config as it was sent", "A host recovers a task with other settings than it has started.", linkStart, testHandleKeepsTaskConfig},
		{"config.malformed", Should, "StartTask with a malformed task config returns an error", "A task runs with settings that no job requested.", linkConfig, testMalformedTaskConfigFails},
		{"streams.open-twice", Must, "each Fingerprint and TaskEvents call opens a stream", "A host that restarts opens its streams while those of its predecessor are still open.", linkStreams, testStreamsCanBeOpenedTwice},
		{"fingerprint.first", Must, "the first fingerprint arrives at once", "A node is not ready until each driver has sent a fingerprint.", linkStreams, testFirstFingerprintArrivesAtOnce},
		{"start.handle", Must, "StartTask returns a handle with version, state and task config", "A host stores the handle, and recovers the task with it.", linkStart, testStartReturnsCompleteHandle},
		{"start.known-id", Must, "StartTask returns an error for the id of a known task", "A repeated call would run the task twice.", linkStart, testStartWithKnownIDFails},
		{"start.concurrent-id", Must, "of concurrent StartTask calls with the same id, one succeeds", "A repeated call would run the task twice.", linkStart, testOneOfConcurrentStartsSucceeds},
		{"start.cancelled", Must, "after a cancelled StartTask, DestroyTask frees the id", "A user stops a task that is being started, and its processes run on without an owner.", linkStart, testDestroyFreesIDOfCancelledStart},
		{"wait.repeated", Must, "concurrent and later WaitTask calls return the same result", "A host waits from several places, and again after each reconnect.", linkWait, testRepeatedWaitsReturnSameResult},
		{"wait.cancelled", Must, "a cancelled WaitTask does not affect the task", "A host cancels its calls when it shuts down, and the tasks must continue.", linkWait, testCancelledWaitKeepsTaskRunning},
		{"wait.failed-task", Must, "the result of a failed task is not a success", "The restart policy depends on the result; a batch job would be complete although it failed.", linkWait, testFailedTaskIsNoSuccess},
		{"stop.running", Must, "StopTask returns when the task has exited, and WaitTask returns too", "A stopped allocation would keep its tasks, or remain pending.", linkStop, testStopTaskEndsTaskAndWait},
		{"stop.exited", Must, "StopTask of a task that has exited succeeds, and keeps the exit result", "A task can exit at any time; a host retries a StopTask that fails for minutes.", linkStop, testStopOfExitedTaskKeepsResult},
		{"stop.twice", Must, "concurrent and repeated StopTask calls succeed", "A host stops a task for a user while it stops its allocation.", linkStop, testConcurrentStopsSucceed},
		{"stop.unknown-signal", Quirk, "StopTask with an unknown signal stops the task", "Hosts do not check kill_signal; after the error, they retry for minutes.", linkStop, testUnknownStopSignalStopsTask},
		{"destroy.needs-force", Must, "DestroyTask without force returns an error for a running task", "The task would be killed, or would run on without an owner.", linkStop, testDestroyRunningTaskNeedsForce},
		{"destroy.removes-id", Must, "after DestroyTask the id is unknown", "State of destroyed tasks accumulates in the plugin.", linkStop, testDestroyedTaskIsUnknown},
		{"destroy.releases-wait", Must, "WaitTask returns when DestroyTask kills the task", "The task runner of the host waits for ever.", linkStop, testDestroyReleasesWait},
		{"task.unknown-id", Must, "calls for an unknown id return \"task not found for given id\"", "By this text, hosts learn that a task no longer exists; another error is retried.", linkStop, testUnknownIDGivesTaskNotFound},
		{"inspect.exited", Should, "InspectTask returns names, times and the exit result", "nomad-lite shows them.", linkWait, testInspectExitedTask},
		{"stats.samples", Should, "TaskStats sends a sample at once and then one per interval, until the task exits", "Usage of the task is missing in `alloc status -stats`.", linkStats, testStatsArriveUntilTaskExits},
		{"stats.reopened", Should, "TaskStats sends samples again after a cancelled stream", "Statistics end with the first reconnect of the host.", linkStats, testStatsCanBeReopened},
		{"stats.exited-task", Should, "TaskStats of an exited task returns an error, or its stream ends", "A host samples a task that no longer exists.", linkStats, testStatsOfExitedTaskEnd},
		{"events.task", Should, "events have a message and the allocation and the task to which they belong", "A host cannot show an event without its task.", linkStreams, testTaskEventsNameTheirTask},
		{"signal.exited-task", Should, "SignalTask of an exited task returns an error", "`alloc signal` reports a success without effect, and a reused pid could get the signal.", linkSignal, testSignalOfExitedTaskFails},
		{"exec.undeclared", Should, "exec returns an error if the driver does not declare it", "A script check passes although nothing was run.", linkSignal, testUndeclaredExecFails},
		{"exec.exited-task", Should, "ExecTask in an exited task does not succeed", "A command runs outside of the task.", linkSignal, testExecInExitedTaskFails},
		{"leaks.descriptors", Must, "the plugin closes the descriptors of destroyed tasks", "After some thousand tasks, the plugin cannot start another.", linkLaunch, testDriverLeaksNoDescriptors},
		{"leaks.processes", Must, "no child process of the plugin remains after DestroyTask, not even a zombie", "After some thousand tasks, the machine has no free pid.", linkCommand, testDriverLeaksNoProcesses},
		{"limits.cgroup", Quirk, "the processes of a task are not in the cgroups of the plugin", "A task can use all memory and CPU time of the machine, whatever its job says.", linkLimits, testTaskHasOwnCgroup},
		{"limits.memory", Should, "the kernel limits the memory of a task to that in its resources", "A task that grows makes the kernel kill other tasks, or is killed although it has memory left.", linkLimits, testKernelLimitsTaskMemory},
		{"limits.memory-max", Should, "the kernel limits the memory of a task with memory_max to memory_max", "A task cannot use the memory that its job allows, or takes that of other tasks.", linkLimits, testKernelLimitsToMemoryMax},
		{"limits.reservation", Should, "the kernel reserves the memory of a task with memory_max", "When memory runs out, the kernel takes it from tasks that use no more than was promised to them.", linkLimits, testKernelReservesTaskMemory},
		{"concurrency.tasks", Must, "many tasks start, stop and are destroyed concurrently", "A host makes calls for all its tasks at once.", linkStart, testConcurrentTaskLifecycles},
		{"recover.known-task", Must, "RecoverTask of a known task succeeds, and does not affect the task", "A host that restarts recovers the tasks of a plugin process that is still alive.", linkRecover, testRecoverKnownTaskSucceeds},
		{"recover.after-kill", Must, "a task survives SIGKILL of the plugin, and can be recovered and stopped", "A crash of the plugin would end its tasks, or leave them without an owner.", linkRecover, testRecoverAfterPluginKill},
		{"recover.after-shutdown", Must, "Shutdown stops no task", "An update of the agent would stop all tasks of the driver.", linkRecover, testShutdownStopsNoTask},
		{"recover.destroyed-task", Must, "RecoverTask of a destroyed task does not lead to a success", "A host would record a task as successful, although it was killed.", linkRecover, testRecoverOfDestroyedIsNoSuccess},
		{"recover.malformed-state", Must, "RecoverTask with malformed state returns an error, or finds the task", "A task of another version of the driver crashes the plugin, or is recorded with a wrong result.", linkRecover, testRecoverWithMalformedStateFails},
		{"recover.unknown-version", Should, "RecoverTask with a handle of an unknown version returns an error", "After a downgrade, the driver misreads its state.", linkRecover, testRecoverUnknownVersionFails},
		{"crash.during-start", Must, "StartTask succeeds with the same id after SIGKILL of the plugin during StartTask", "A host makes the call again in the next process, and the task fails for good.", linkStart, testRestartAfterKillDuringStart},
		{"crash.before-destroy", Must, "DestroyTask succeeds, or does not find the task, after SIGKILL of the plugin between StopTask and DestroyTask", "A host retries, and the allocation is not removed.", linkRecover, testDestroyAfterPluginKill},
		{"host.old", Must, "a task runs with a host that sends no topology and does not call Init", "The driver does not work with older versions of Nomad.", linkHosts, testWorksWithoutInitAndTopology},
		{"host.init-again", Must, "Init succeeds again after Shutdown", "A host that restarts calls Init in the process of its predecessor.", linkHosts, testInitSucceedsAfterShutdown},
		{"host.sparse-task", Must, "a task runs without resources, namespace and node", "The driver does not work with hosts that do not send these.", linkHosts, testSparseTaskConfigRuns},
	}, shell)
	return append(all,
		testCase{"fingerprint.cadence", Should, "each stream has a fingerprint, and at most two per second", "Each fingerprint can be an update of the node.", linkStreams, testFingerprintRateIsLimited},
		testCase{"streams.stay-open", Must, "the streams remain open until the host closes them", "A host reopens an ended stream in a loop, and the driver is unhealthy meanwhile.", linkStreams, testDriverStreamsStayOpen},
	)
}

// These links are paths of the repository with a heading. A test checks that the headings exist.
const (
	linkLaunch  = "docs/reference/drivers.md#launch"
	linkConfig  = "docs/reference/drivers.md#configuration"
	linkStreams = "docs/reference/drivers.md#fingerprints-and-events"
	linkStart   = "docs/reference/drivers.md#starttask"
	linkWait    = "docs/reference/drivers.md#waittask-and-inspecttask"
	linkStop    = "docs/reference/drivers.md#stoptask-and-destroytask"
	linkSignal  = "docs/reference/drivers.md#signals-and-exec"
	linkStats   = "docs/reference/drivers.md#taskstats"
	linkRecover = "docs/reference/drivers.md#recovertask"
	linkOutput  = "docs/reference/drivers.md#output-of-tasks"
	linkCommand = "docs/reference/drivers.md#processes-of-tasks"
	linkLimits  = "docs/reference/drivers.md#memory-limits"
	linkHosts   = "docs/reference/drivers.md#hosts-of-other-versions"

	linkDeviceConfig      = "docs/reference/devices.md#configuration"
	linkDeviceFingerprint = "docs/reference/devices.md#fingerprint"
	linkDeviceReserve     = "docs/reference/devices.md#reserve"
	linkDeviceStats       = "docs/reference/devices.md#stats"

	linkHookLife      = "docs/reference/hooks.md#the-life-of-a-task"
	linkHookPoststart = "docs/reference/hooks.md#poststart-is-repeated"
	linkHookPrestart  = "docs/reference/hooks.md#what-prestart-returns"
	linkHookHost      = "docs/reference/hooks.md#what-a-hook-can-ask-for"
	linkHookAttach    = "docs/reference/hooks.md#attach-it"
	linkHookRules     = "docs/reference/hooks.md#what-to-know"
)

func testStartWithoutHostPrintsAndFails(t tb, h *testHost) {
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	stdout, stderr, code, err := h.runPluginWithoutHost(ctx)
	switch {
	case ctx.Err() != nil:
		t.Errorf("the program does not exit")
	case err != nil:
		t.Errorf("start: %v", err)
	case code == 0:
		t.Errorf("exit code 0, want another")
	}
	if stdout != "" {
		t.Errorf("standard output, where hosts expect the handshake, has %q", stdout)
	}
	if strings.TrimSpace(stderr) == "" {
		t.Errorf("standard error is empty, want a message")
	}
}

var versionPattern = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^v?\d+(\.\d+)*([-+].*)?$`) })

// launchCases returns the first cases of each plugin type. whyTwoProcesses is the reason why two processes of such a plugin run at
// once.
func launchCases(typeName string, kind base.Type, apiVersion, whyTwoProcesses string) []testCase {
	return []testCase{
		{"launch.without-host", Should, "a start without a host prints what the program is on standard error, and fails", "A user who starts the program gets no explanation, or a process that never exits.", linkLaunch, testStartWithoutHostPrintsAndFails},
		{"launch.info", Must, "the handshake succeeds, and the plugin is a " + typeName + " of a known protocol version", "A host cannot use a plugin whose handshake line or version it does not know.", linkLaunch, newPluginInfoCase(kind, apiVersion)},
		{"launch.two-processes", Must, "two processes of the plugin run at once", whyTwoProcesses, linkLaunch, testTwoPluginProcessesCanRun},
		{"launch.exit", Should, "the process exits when the host shuts it down", "A host waits 2s for each plugin and then kills it, without the end of its work.", linkLaunch, testPluginExitsOnShutdown},
		{"launch.interrupt", Should, "the process survives SIGINT", "Ctrl-C in the terminal of an agent ends the plugin before the agent.", linkLaunch, testPluginSurvivesSIGINT},
	}
}

func newPluginInfoCase(kind base.Type, apiVersion string) func(tb, *testHost) {
	return func(t tb, h *testHost) {
		p, err := h.launchUnconfiguredPlugin()
		if err != nil {
			t.Fatalf("%v", err)
		}
		defer p.shutDownOrKill()
		info, err := p.baseClient.PluginInfo(t.Context())
		if err != nil {
			t.Fatalf("PluginInfo: %v", err)
		}
		if info.Type != kind {
			t.Errorf("the type is %v, want %v", info.Type, kind)
		}
		if !slices.ContainsFunc(info.APIVersions, func(v string) bool { return strings.TrimPrefix(v, "v") == strings.TrimPrefix(apiVersion, "v") }) {
			t.Errorf("the protocol versions are %q, want %q among them", info.APIVersions, apiVersion)
		}
		if info.Name == "" {
			t.Errorf("it has no name")
		}
		if !versionPattern().MatchString(info.Version) {
			t.Errorf("the version is %q, want numbers such as 1.0.0", info.Version)
		}
		if _, err := p.baseClient.ConfigSchema(t.Context()); err != nil {
			t.Errorf("ConfigSchema: %v", err)
		}
	}
}

func testSetConfigSucceedsTwice(t tb, h *testHost) {
	p, err := h.launchUnconfiguredPlugin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer p.shutDownOrKill()
	config, err := h.encodePluginConfig(t.Context(), p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	for range 2 {
		if err := p.baseClient.SetConfig(t.Context(), config); err != nil {
			t.Errorf("SetConfig: %v", err)
		}
	}
}

func testTasksFitConfigSchema(t tb, h *testHost) {
	p := h.launchOrGetSharedProcess(t)
	schema, err := p.driverClient.TaskConfigSchema(t.Context())
	if err != nil {
		t.Fatalf("TaskConfigSchema: %v", err)
	}
	if schema == nil {
		t.Fatalf("TaskConfigSchema returns no schema")
	}
	for name, body := range map[string]map[string]any{"runs": h.testedPlugin.Tasks.LongRunning, "ends": h.testedPlugin.Tasks.Succeeds, "fails": h.testedPlugin.Tasks.Fails} {
		if body == nil {
			continue
		}
		if _, err := h.testedPlugin.configEncoder().Msgpack(schema, body); err != nil {
			t.Errorf("the config of the task %q does not fit the schema: %v", name, err)
		}
	}
}

func testFirstFingerprintArrivesAtOnce(t tb, h *testHost) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := h.launchOrGetSharedProcess(t).driverClient.Fingerprint(ctx)
	if err != nil {
		t.Fatalf("Fingerprint: %v", err)
	}
	select {
	case f, ok := <-c:
		switch {
		case !ok || f.Err != nil:
			t.Fatalf("the stream of fingerprints ended: %v", f.Err)
		case f.Health != driver.HealthHealthy:
			t.Errorf("the driver is not healthy: %s", f.HealthDescription)
		}
	case <-time.After(waitTimeout):
		t.Fatalf("no fingerprint within %v", waitTimeout)
	}
}

// watchedStreams are the streams that a plugin must keep open: if they ended, a host
// would reopen them in a loop, or stop the plugin. The suite watches them during the
// other cases, in a separate plugin process, because a client needs some time to
// distinguish the end of a stream from the end of the process.
type watchedStreams struct {
	pluginProcess *pluginProcess
	cancel        context.CancelFunc
	firstOpenedAt time.Time // before the first stream was opened
	allOpenedAt   time.Time // after the last stream was opened; zero until then

	mu                        sync.Mutex
	namesOfEndedStreams       []string
	fingerprintCountsByStream []int
}

// minStreamOpenTime is how long the streams must stay open to pass. It is longer than a client
// needs to distinguish the end of a stream from the end of the process. Tests change it.
var minStreamOpenTime = 3500 * time.Millisecond

// minFingerprintCountTime is the minimum time for which fingerprints are counted.
var minFingerprintCountTime = time.Second

// launchPluginForWatchedStreams launches the plugin process whose streams must stay open, and sets h.watchedStreams.
// The caller opens the streams with the returned context, which ends when h is closed.
func launchPluginForWatchedStreams(t tb, h *testHost) (*watchedStreams, context.Context) {
	t.Helper()
	p, err := h.launchUnconfiguredPlugin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	s := &watchedStreams{pluginProcess: p, firstOpenedAt: time.Now()}
	h.watchedStreams = s
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if err := h.configurePlugin(t.Context(), p); err != nil {
		t.Fatalf("%v", err)
	}
	return s, ctx
}

func testStreamsCanBeOpenedTwice(t tb, h *testHost) {
	s, ctx := launchPluginForWatchedStreams(t, h)
	p := s.pluginProcess
	s.fingerprintCountsByStream = make([]int, 2)
	for i := range s.fingerprintCountsByStream { // two streams, as for a host that restarts while its old streams are open
		fingerprints, err := p.driverClient.Fingerprint(ctx)
		if err != nil {
			t.Fatalf("Fingerprint: %v", err)
		}
		go watchStream(s, ctx, "fingerprints", fingerprints, func(f driver.Fingerprint) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.fingerprintCountsByStream[i]++
			return f.Err == nil
		})
		events, err := p.driverClient.TaskEvents(ctx)
		if err != nil {
			t.Fatalf("TaskEvents: %v", err)
		}
		go watchStream(s, ctx, "task events", events, func(*driver.TaskEvent) bool { return true })
	}
	s.allOpenedAt = time.Now()
}

// watchStream reads a stream until it is closed or isValid returns false for a value. If ctx has not
// ended by then, it adds streamName to s.namesOfEndedStreams.
func watchStream[V any](s *watchedStreams, ctx context.Context, streamName string, c <-chan V, isValid func(V) bool) {
	for v := range c {
		if !isValid(v) {
			break
		}
	}
	if ctx.Err() == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.namesOfEndedStreams = append(s.namesOfEndedStreams, streamName)
	}
}

func testDriverStreamsStayOpen(t tb, h *testHost) {
	if h.watchedStreams == nil {
		testStreamsCanBeOpenedTwice(t, h)
	}
	checkStreamsStayOpen(t, h.watchedStreams)
}

// checkStreamsStayOpen waits until all streams have been open for minStreamOpenTime, and fails the case for each stream
// that has ended.
func checkStreamsStayOpen(t tb, s *watchedStreams) {
	t.Helper()
	if err := wait.Sleep(t.Context(), time.Until(s.allOpenedAt.Add(minStreamOpenTime))); err != nil {
		t.Fatalf("%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pluginProcess.isKilledBySuite.Load() {
		t.Skipf("the streams ended when another case exceeded its timeout")
	}
	if s.pluginProcess.goPluginClient.Exited() {
		t.Fatalf("%s", s.pluginProcess.crashReport())
	}
	for _, what := range s.namesOfEndedStreams {
		t.Errorf("the plugin closed a stream of %s", what)
	}
}

func testStartReturnsCompleteHandle(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	switch {
	case s.handle == nil:
		t.Fatalf("StartTask returned no handle")
	case s.handle.Config == nil:
		t.Fatalf("the handle has no task config")
	}
	if s.handle.Version < 1 {
		t.Errorf("the handle has version %d, want at least 1", s.handle.Version)
	}
	if s.handle.State != driver.TaskRunning {
		t.Errorf("the handle has the state %v, want running", s.handle.State)
	}
}

func testStartWithKnownIDFails(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if _, _, err := s.currentDriver().StartTask(t.Context(), s.config); err == nil {
		t.Errorf("a second StartTask with the same id succeeded")
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("the first task is no longer running: %+v, %v", status, err)
	}
}

func testRepeatedWaitsReturnSameResult(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.Succeeds)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			exit, err := s.currentDriver().WaitTask(t.Context(), s.config.ID)
			if err != nil {
				t.Errorf("WaitTask: %v", err)
			} else if !exit.Successful() {
				t.Errorf("the exit result is %+v, want success", *exit)
			}
		})
	}
	wg.Wait()
	if exit := s.waitForExit(); !exit.Successful() {
		t.Errorf("the exit result of a later WaitTask is %+v, want success", *exit)
	}
}

// testDestroyFreesIDOfCancelledStart cancels StartTask before or after the task has started. A plugin can complete the
// start afterwards, so DestroyTask is repeated until StartTask accepts the id again.
func testDestroyFreesIDOfCancelledStart(t tb, h *testHost) {
	for _, timeout := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond} {
		config, s := h.prepareTaskWithoutOutput(t)
		s.config = config
		t.Cleanup(s.cleanUp)
		d := h.launchOrGetSharedProcess(t).driverClient
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		_, _, _ = d.StartTask(ctx, config) // succeeds or not, depending on timing
		cancel()
		var lastErr error
		for deadline := time.Now().Add(cancelledStartTimeout); ; time.Sleep(20 * time.Millisecond) {
			if lastErr = d.DestroyTask(t.Context(), config.ID, true); lastErr == nil || errors.Is(lastErr, driver.ErrTaskNotFound) {
				if s.handle, _, lastErr = d.StartTask(t.Context(), config); lastErr == nil {
					break
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("StartTask with the id of a StartTask that was cancelled after %v, and then destroyed: %v", timeout, lastErr)
			}
		}
		if err := d.StopTask(t.Context(), config.ID, stopKillTimeout, ""); err != nil {
			t.Errorf("StopTask: %v", err)
		}
		s.destroy()
	}
}

// cancelledStartTimeout is how long a plugin can take to end a cancelled StartTask.
var cancelledStartTimeout = 10 * time.Second

func testCancelledWaitKeepsTaskRunning(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	// If the cancelled first call ends the task, the second call returns its exit.
	for _, timeout := range []time.Duration{50 * time.Millisecond, 500 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		exit, err := s.currentDriver().WaitTask(ctx, s.config.ID)
		cancel()
		if err == nil {
			t.Fatalf("the task is no longer running, its exit result is %+v", *exit)
		}
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("the task is no longer running: %+v, %v", status, err)
	}
}

func testFailedTaskIsNoSuccess(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.Fails)
	if exit := s.waitForExit(); exit.Successful() {
		t.Errorf("the exit result is %+v, want a failure", *exit)
	}
}

// stopKillTimeout is the kill timeout in cases that do not examine how a task ends. It is short, because a task that has
// just started has no signal handler and can ignore the signal, so that StopTask waits for the timeout.
const stopKillTimeout = 200 * time.Millisecond

func testStopTaskEndsTaskAndWait(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	waited := make(chan error, 1)
	go func() {
		_, err := s.currentDriver().WaitTask(t.Context(), s.config.ID)
		waited <- err
	}()
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskExited {
		t.Errorf("InspectTask of the stopped task: %+v, %v, want state exited", status, err)
	}
	select {
	case err := <-waited:
		if err != nil {
			t.Errorf("WaitTask: %v", err)
		}
	case <-time.After(waitTimeout):
		t.Fatalf("WaitTask did not return within %v after StopTask", waitTimeout)
	}
}

func testStopOfExitedTaskKeepsResult(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.Succeeds)
	s.waitForExit()
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, time.Second, ""); err != nil {
		t.Errorf("StopTask: %v", err)
	}
	if exit := s.waitForExit(); !exit.Successful() {
		t.Errorf("after StopTask the exit result is %+v, want success as before", *exit)
	}
}

func testDestroyRunningTaskNeedsForce(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if err := s.currentDriver().DestroyTask(t.Context(), s.config.ID, false); err == nil {
		t.Fatalf("DestroyTask without force succeeded")
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Fatalf("the task is no longer running: %+v, %v", status, err)
	}
	if err := s.currentDriver().DestroyTask(t.Context(), s.config.ID, true); err != nil {
		t.Errorf("DestroyTask with force: %v", err)
	}
}

func testDestroyedTaskIsUnknown(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.Succeeds)
	s.waitForExit()
	if err := s.currentDriver().DestroyTask(t.Context(), s.config.ID, false); err != nil {
		t.Errorf("DestroyTask of an exited task: %v", err)
	}
	if _, err := s.currentDriver().WaitTask(t.Context(), s.config.ID); !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("WaitTask of a destroyed task: %v, want %v", err, driver.ErrTaskNotFound)
	}
	if err := s.currentDriver().DestroyTask(t.Context(), s.config.ID, true); err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("a second DestroyTask: %v, want %v", err, driver.ErrTaskNotFound)
	}
}

func testUnknownIDGivesTaskNotFound(t tb, h *testHost) {
	d := h.launchOrGetSharedProcess(t).driverClient
	id := newUUID() + "/task/00000000"
	for name, call := range map[string]func() error{
		"WaitTask":    func() error { _, err := d.WaitTask(t.Context(), id); return err },
		"StopTask":    func() error { return d.StopTask(t.Context(), id, time.Second, "") },
		"DestroyTask": func() error { return d.DestroyTask(t.Context(), id, true) },
		"InspectTask": func() error { _, err := d.InspectTask(t.Context(), id); return err },
		"SignalTask":  func() error { return d.SignalTask(t.Context(), id, "SIGHUP") },
		"ExecTask":    func() error { _, err := d.ExecTask(t.Context(), id, []string{"true"}, time.Second); return err },
		"ExecTaskStreaming": func() error {
			_, err := d.ExecTaskStreaming(t.Context(), id, driver.Exec{Command: []string{"true"}})
			return err
		},
	} {
		err := call()
		if err == nil {
			t.Errorf("%s of an unknown id succeeded", name)
		} else if !errors.Is(err, driver.ErrTaskNotFound) && !strings.Contains(err.Error(), "not support") {
			t.Errorf("%s of an unknown id: %v, want %v", name, err, driver.ErrTaskNotFound)
		}
	}
}

func testInspectExitedTask(t tb, h *testHost) {
	before := time.Now().Add(-time.Second)
	body := h.testedPlugin.Tasks.Fails
	if body == nil {
		body = h.testedPlugin.Tasks.Succeeds
	}
	s := h.startTask(t, body)
	exit := s.waitForExit()
	status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID)
	if err != nil {
		t.Fatalf("InspectTask: %v", err)
	}
	if status.ID != s.config.ID || status.Name != s.config.Name {
		t.Errorf("the status has name %q and id %q, want %q and %q", status.Name, status.ID, s.config.Name, s.config.ID)
	}
	if status.State != driver.TaskExited {
		t.Errorf("the state of an exited task is %v, want exited", status.State)
	}
	if status.StartedAt.Before(before) || status.CompletedAt.Before(status.StartedAt) {
		t.Errorf("the task started at %v and exited at %v, want times after %v in this order", status.StartedAt, status.CompletedAt, before)
	}
	if status.ExitResult == nil || status.ExitResult.ExitCode != exit.ExitCode || status.ExitResult.Signal != exit.Signal {
		t.Errorf("the exit result is %+v, want %+v as WaitTask returned", status.ExitResult, exit)
	}
}

func testStatsArriveUntilTaskExits(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	const statsInterval = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, err := s.currentDriver().TaskStats(ctx, s.config.ID, statsInterval)
	if err != nil {
		t.Skipf("the driver has no statistics: %v", err)
	}
	var lastTimestamp time.Time
	for i := range 3 {
		select {
		case sample, ok := <-c:
			if !ok && i == 0 {
				t.Skipf("the driver has no statistics")
			}
			if !ok {
				t.Fatalf("the stream of samples ended while the task ran, after %d samples", i)
			}
			if sample == nil || !sample.Timestamp.After(lastTimestamp) {
				t.Fatalf("sample %d is %+v, want a time after %v", i, sample, lastTimestamp)
			}
			lastTimestamp = sample.Timestamp
		case <-time.After(waitTimeout):
			t.Fatalf("no sample within %v", waitTimeout)
		}
	}
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
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

func testConcurrentTaskLifecycles(t tb, h *testHost) {
	const taskCount = 12
	var tasks []*testTask
	for i := range taskCount {
		body := h.testedPlugin.Tasks.LongRunning
		if i%2 == 0 && h.testedPlugin.Tasks.Succeeds != nil {
			body = h.testedPlugin.Tasks.Succeeds
		}
		config, s := h.prepareTaskDirsAndConfig(t, body)
		t.Cleanup(s.cleanUp)
		s.config = config
		tasks = append(tasks, s)
	}
	d := h.launchOrGetSharedProcess(t).driverClient
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
			statsContext, cancelStats := context.WithCancel(t.Context())
			defer cancelStats()
			if c, err := d.TaskStats(statsContext, s.config.ID, 10*time.Millisecond); err == nil {
				taskCalls.Go(func() {
					for range c {
					}
				})
			}
			if err := d.StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
				t.Errorf("StopTask: %v", err)
			}
			cancelStats() // TaskStats may follow the exit of the task; the case stats.exited-task checks that the stream then ends
			taskCalls.Wait()
			if err := d.DestroyTask(t.Context(), s.config.ID, true); err != nil {
				t.Errorf("DestroyTask: %v", err)
			}
		})
	}
	wg.Wait()
}

func testRecoverKnownTaskSucceeds(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if err := s.callRecoverTask(); err != nil {
		t.Errorf("RecoverTask: %v", err)
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("the task is no longer running: %+v, %v", status, err)
	}
}

func testRecoverAfterPluginKill(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	h.killSharedProcess(t)
	if err := s.callRecoverTask(); err != nil {
		t.Skipf("the driver cannot recover tasks, so that hosts start them again: %v", err)
	}
	status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID)
	if err != nil || status.State != driver.TaskRunning {
		t.Fatalf("the recovered task is not running: %+v, %v", status, err)
	}
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
		t.Errorf("StopTask of a recovered task: %v", err)
	}
	s.waitForExit()
	s.destroy()
}

func testShutdownStopsNoTask(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if err := s.currentDriver().Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Fatalf("after Shutdown the task is not running: %+v, %v", status, err)
	}
	h.stopSharedProcess()
	if err := s.callRecoverTask(); err != nil {
		t.Skipf("the driver cannot recover tasks, so that hosts start them again: %v", err)
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Fatalf("the recovered task is not running: %+v, %v", status, err)
	}
}

func testRecoverOfDestroyedIsNoSuccess(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	s.destroy()
	h.killSharedProcess(t)
	if err := s.callRecoverTask(); err != nil {
		return
	}
	if exit := s.waitForExit(); exit.Successful() {
		t.Errorf("RecoverTask succeeded, and the exit result is %+v, want an error or a failure", *exit)
	}
}
