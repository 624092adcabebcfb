package sdktest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	proc "github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// launchConfiguredPlugin launches and configures a plugin process for this case only.
func (h *testHost) launchConfiguredPlugin(t tb) *pluginProcess {
	t.Helper()
	p, err := h.launchUnconfiguredPlugin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(p.shutDownOrKill)
	if err := h.configurePlugin(t.Context(), p); err != nil {
		t.Fatalf("%v", err)
	}
	return p
}

func testTwoPluginProcessesCanRun(t tb, h *testHost) {
	first, second := h.launchConfiguredPlugin(t), h.launchConfiguredPlugin(t)
	for _, p := range []*pluginProcess{first, second} {
		if _, err := p.baseClient.PluginInfo(t.Context()); err != nil {
			t.Errorf("PluginInfo while two processes run: %v", err)
		}
	}
}

func testPluginExitsOnShutdown(t tb, h *testHost) {
	p := h.launchConfiguredPlugin(t)
	p.shutDownOrKill() // kills the process if it has not exited after some seconds
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && status.Signal() == unix.SIGKILL {
		t.Errorf("the process did not exit within 2s, and was killed")
	}
}

func testPluginSurvivesSIGINT(t tb, h *testHost) {
	p := h.launchConfiguredPlugin(t)
	if err := unix.Kill(p.pid, unix.SIGINT); err != nil {
		t.Fatalf("send SIGINT: %v", err)
	}
	const exitDelay = 100 * time.Millisecond // a program that does not handle the signal has exited by then
	time.Sleep(exitDelay)
	if p.hasExitedOrDisconnected() {
		t.Errorf("after SIGINT: %s", p.crashReport())
	}
}

// leakCycles is how often checkLeaks repeats an operation: a leak of one descriptor or process each time then adds
// at least as many.
const leakCycles = 5

// checkLeaks runs the operation leakCycles times, and fails the case if countObjects, which returns the number of
// objects in use, has increased by at least one per operation.
func checkLeaks(t tb, objectNames string, countObjects func() (int, error), operation func()) {
	t.Helper()
	operation() // the plugin may allocate on first use
	before, err := countObjects()
	if err != nil {
		t.Skipf("count %s: %v", objectNames, err)
	}
	for range leakCycles {
		operation()
	}
	const releaseTimeout = 3 * time.Second
	var after int
	for deadline := time.Now().Add(releaseTimeout); ; time.Sleep(10 * time.Millisecond) {
		after, err = countObjects()
		if err != nil {
			t.Fatalf("count %s: %v", objectNames, err)
		}
		if after < before+leakCycles {
			return
		}
		if time.Now().After(deadline) {
			break
		}
	}
	t.Errorf("%d %s after the first cycle, %d after %d more", before, objectNames, after, leakCycles)
}

// countDescriptorsOfPlugin returns the number of descriptors of the shared plugin process.
func (h *testHost) countDescriptorsOfPlugin(t tb) (int, error) {
	entries, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(h.launchOrGetSharedProcess(t).pid), "fd"))
	return len(entries), err
}

// countChildrenOfPlugin returns the number of child processes of the shared plugin process, zombies included.
func (h *testHost) countChildrenOfPlugin(t tb) (count int, err error) {
	parent := h.launchOrGetSharedProcess(t).pid
	paths, err := filepath.Glob("/proc/[0-9]*")
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if stat, err := proc.ReadStat(pid); err == nil && stat.PPID == parent {
			count++
		}
	}
	return count, err
}

// startStopDestroyTask starts a task, stops the task, and destroys it.
func (h *testHost) startStopDestroyTask(t tb) {
	t.Helper()
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	s.waitForExit()
	s.destroy()
}

func testDriverLeaksNoDescriptors(t tb, h *testHost) {
	checkLeaks(t, "descriptors", func() (int, error) { return h.countDescriptorsOfPlugin(t) }, func() { h.startStopDestroyTask(t) })
}

func testDriverLeaksNoProcesses(t tb, h *testHost) {
	checkLeaks(t, "child processes", func() (int, error) { return h.countChildrenOfPlugin(t) }, func() { h.startStopDestroyTask(t) })
}

func testHookLeaksNoDescriptors(t tb, h *testHost) {
	checkLeaks(t, "descriptors", func() (int, error) { return h.countDescriptorsOfPlugin(t) }, func() {
		l := h.newScenario(t)
		for _, m := range lifecyclePoints {
			l.callHookIfSubscribed(t, m)
		}
	})
}

// checkRunStopDestroy starts, stops and destroys a task by the plugin process p instead of the shared one.
func (h *testHost) checkRunStopDestroy(t tb, p *pluginProcess, config *driver.TaskConfig, s *testTask) {
	t.Helper()
	s.config = config
	t.Cleanup(func() { killProcessesByEnv("NOMAD_ALLOC_ID=" + config.AllocID) })
	if _, _, err := p.driverClient.StartTask(t.Context(), config); err != nil {
		t.Fatalf("StartTask: %v", err)
	}
	if err := p.driverClient.StopTask(t.Context(), config.ID, stopKillTimeout, ""); err != nil {
		t.Errorf("StopTask: %v", err)
	}
	if err := p.driverClient.DestroyTask(t.Context(), config.ID, true); err != nil {
		t.Errorf("DestroyTask: %v", err)
	}
}

// testWorksWithoutInitAndTopology acts as a host that calls neither Init nor Shutdown, and sends no topology.
func testWorksWithoutInitAndTopology(t tb, h *testHost) {
	config, s := h.prepareTaskDirsAndConfig(t, h.testedPlugin.Tasks.LongRunning)
	p, err := h.launchUnconfiguredPlugin()
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(p.goPluginClient.Kill)
	pluginConfig, err := h.encodePluginConfig(t.Context(), p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	pluginConfig.Driver = newDriverHostConfig()
	pluginConfig.Driver.Topology = nil
	if err := p.baseClient.SetConfig(t.Context(), pluginConfig); err != nil {
		t.Fatalf("SetConfig without topology: %v", err)
	}
	h.checkRunStopDestroy(t, p, config, s)
}

func testSparseTaskConfigRuns(t tb, h *testHost) {
	config, s := h.prepareTaskDirsAndConfig(t, h.testedPlugin.Tasks.LongRunning)
	config.Resources, config.JobID, config.Namespace, config.NodeName, config.NodeID = nil, "", "", "", ""
	h.checkRunStopDestroy(t, h.launchConfiguredPlugin(t), config, s)
}

// testInitSucceedsAfterShutdown acts as a host that reattaches to the process of its predecessor.
func testInitSucceedsAfterShutdown(t tb, h *testHost) {
	config, s := h.prepareTaskDirsAndConfig(t, h.testedPlugin.Tasks.LongRunning)
	p := h.launchConfiguredPlugin(t)
	if err := p.driverClient.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := p.driverClient.Init(t.Context()); err != nil {
		t.Fatalf("Init after Shutdown: %v", err)
	}
	h.checkRunStopDestroy(t, p, config, s)
}

// testRestartAfterKillDuringStart kills the plugin during StartTask, and starts the task with the same
// id in another process, as a host does.
func testRestartAfterKillDuringStart(t tb, h *testHost) {
	for _, delay := range []time.Duration{0, 5 * time.Millisecond, 50 * time.Millisecond} {
		config, s := h.prepareTaskWithoutOutput(t)
		s.config = config
		t.Cleanup(s.cleanUp)
		d := h.launchOrGetSharedProcess(t).driverClient
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			_, _, _ = d.StartTask(t.Context(), config) // succeeds or not, depending on timing
		}()
		time.Sleep(delay)
		h.killSharedProcess(t)
		<-returned
		killProcessesByEnv("NOMAD_ALLOC_ID=" + config.AllocID) // nomad-lite also does this before the second call
		handle, _, err := s.currentDriver().StartTask(t.Context(), config)
		if err != nil {
			t.Fatalf("StartTask in another process, after SIGKILL of the first: %v", err)
		}
		s.handle = handle
		if err := s.currentDriver().StopTask(t.Context(), config.ID, stopKillTimeout, ""); err != nil {
			t.Errorf("StopTask: %v", err)
		}
		s.destroy()
	}
}

func testDestroyAfterPluginKill(t tb, h *testHost) {
	s := h.startTask(t, h.testedPlugin.Tasks.LongRunning)
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, stopKillTimeout, ""); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	h.killSharedProcess(t)
	recoverErr := s.callRecoverTask()
	if err := s.currentDriver().DestroyTask(t.Context(), s.config.ID, true); err != nil && !errors.Is(err, driver.ErrTaskNotFound) {
		t.Errorf("RecoverTask in another process: %v; DestroyTask: %v, want success or %v", recoverErr, err, driver.ErrTaskNotFound)
	}
	s.isDestroyed = true
}

// testStopAfterKillDuringStop kills the plugin while StopTask waits for the task.
func testStopAfterKillDuringStop(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, `trap "" INT TERM; echo pid $$; while :; do sleep 0.02; done`)
	pid, err := strconv.Atoi(s.waitForLineWithPrefix("pid "))
	if err != nil {
		t.Fatalf("%v", err)
	}
	d := s.currentDriver()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		_ = d.StopTask(t.Context(), s.config.ID, time.Minute, "") // fails when the plugin is killed
	}()
	time.Sleep(50 * time.Millisecond) // time for the call to reach the plugin
	h.killSharedProcess(t)
	<-returned
	if err := s.callRecoverTask(); err != nil {
		t.Skipf("the driver cannot recover tasks, so that hosts start them again: %v", err)
	}
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, 100*time.Millisecond, ""); err != nil {
		t.Errorf("StopTask in another process: %v", err)
	}
	s.waitForExit()
	s.destroy()
	waitUntil(t, "the process of the task has exited", func() bool { return !isProcessAlive(pid) })
}
