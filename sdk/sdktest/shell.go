package sdktest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// shellCases returns the test cases for drivers whose tasks can be shell scripts, which report what
// is visible only inside of a task.
func shellCases() []testCase {
	return []testCase{
		{"output.streams", Must, "the output of both streams arrives, and ends when the task is destroyed", "Logs are incomplete, or the log collector waits for ever.", linkOutput, testOutputArrivesCompletely},
		{"output.null-device", Must, "a task runs with the null device as output", "Jobs with disabled log collection do not start.", linkOutput, testTaskRunsWithNullDeviceOutput},
		{"output.after-kill", Must, "output arrives after SIGKILL of the plugin", "Logs end with the first crash or update of the plugin.", linkOutput, testOutputArrivesAfterPluginKill},
		{"command.environment", Must, "the environment is exactly the environment of the task config", "Tasks would depend on the plugin, and would get its secrets.", linkCommand, testTaskEnvironmentIsExact},
		{"command.directory", Should, "the command starts in the directory of the task", "Relative paths in jobs fail.", linkCommand, testTaskStartsInTaskDir},
		{"command.descriptors", Must, "the command has only the three standard descriptors", "Tasks can use files and sockets of the plugin; the host cannot detect the end of the plugin.", linkCommand, testTaskInheritsNoDescriptors},
		{"command.session", Must, "the command is in a session of its own", "Signals for the plugin reach its tasks.", linkCommand, testTaskHasOwnSession},
		{"command.children", Must, "remaining child processes are killed when the task is destroyed", "Processes without an owner keep ports, files and memory.", linkCommand, testDestroyKillsChildren},
		{"wait.exit-status", Must, "the exit result has the exit code and the signal", "The restart policy and the user depend on them.", linkWait, testExitStatusIsReported},
		{"stop.signal", Must, "StopTask sends the signal of the job", "Tasks cannot shut down in order.", linkStop, testStopSendsJobSignal},
		{"stop.timeout", Must, "StopTask kills a task that ignores the signal, after the timeout and not earlier", "Tasks lose data, or are never stopped.", linkStop, testKillAfterStopTimeout},
		{"stop.cancelled", Must, "StopTask works after a cancelled StopTask", "A host that restarts while it stops a task cannot stop it.", linkStop, testStopWorksAfterCancelledStop},
		{"crash.during-stop", Must, "StopTask works after SIGKILL of the plugin during StopTask", "The task runs on, although its job was stopped.", linkStop, testStopAfterKillDuringStop},
		{"start.missing-command", Should, "StartTask of a missing command returns an error with its name, which is not recoverable", "The user cannot see the reason, or the task restarts in vain.", linkStart, testMissingCommandFailsStart},
		{"signal.delivery", Should, "SignalTask delivers a signal, and returns an error for an unknown one", "`alloc signal` and change_mode do not work.", linkSignal, testSignalsAreDelivered},
		{"exec.output", Should, "ExecTask returns output and exit code", "Script checks report wrong results.", linkSignal, testExecReturnsOutputAndExitCode},
		{"exec.timeout", Should, "ExecTask returns after its timeout", "A script check that hangs is never reported.", linkSignal, testExecReturnsAfterTimeout},
		{"exec.streaming", Should, "ExecTaskStreaming passes on input, output and exit code", "`alloc exec` loses data.", linkSignal, testExecStreamingPassesStreams},
		{"exec.terminal", Should, "ExecTaskStreaming with TTY has a terminal of the requested size", "Shells and editors do not work in `alloc exec`.", linkSignal, testExecTerminalHasRequestedSize},
		{"exec.cancelled", Should, "a cancelled ExecTaskStreaming ends its command", "Commands remain in the task when a user disconnects.", linkSignal, testCancelledExecEndsCommand},
		{"recover.exit-status", Must, "a recovered task keeps its process, and its exit code is correct or unknown", "A restart policy that acts on a wrong exit code restarts or completes the wrong tasks.", linkRecover, testTaskOutlivesPlugin},
		{"recover.exit-without-plugin", Must, "the exit code of a task that exited without a plugin process is correct or unknown", "A failed task would be complete, or a successful one would run again.", linkRecover, testExitCodeAfterExitWithoutPlugin},
		{"recover.exit-before-kill", Must, "the exit code of a task that exited before SIGKILL of the plugin is correct or unknown", "A failed task would be complete, or a successful one would run again.", linkRecover, testExitCodeAfterLaterPluginKill},
	}
}

func (h *testHost) startShellTask(t tb, script string) *testTask {
	t.Helper()
	return h.startTask(t, h.testedPlugin.Tasks.Shell(script))
}

func (h *testHost) capabilities(t tb) *driver.Capabilities {
	t.Helper()
	caps, err := h.launchOrGetSharedProcess(t).driverClient.Capabilities(t.Context())
	if err != nil {
		t.Fatalf("Capabilities: %v", err)
	}
	return caps
}

// skipUnlessHostFilesVisible skips the case if the driver's tasks do not see the host's file system.
func (h *testHost) skipUnlessHostFilesVisible(t tb) {
	t.Helper()
	if h.capabilities(t).FSIsolation != driver.FSIsolationNone {
		t.Skipf("the driver isolates the file system of its tasks")
	}
}

func testOutputArrivesCompletely(t tb, h *testHost) {
	s := h.startShellTask(t, "echo out; echo err >&2; i=0; while [ $i -lt 2000 ]; do echo line $i of many; i=$((i+1)); done; exec sleep 0.05")
	s.waitForExit()
	s.destroy()
	s.closeOutputFIFOWriters()
	done := make(chan struct{})
	go func() { s.outputReadGoroutines.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(waitTimeout):
		t.Fatalf("after DestroyTask a process still has the FIFO of the output open")
	}
	if got := s.stdout.String(); !strings.HasPrefix(got, "out\nline 0 ") || !strings.HasSuffix(got, "line 1999 of many\n") {
		t.Errorf("standard output has %d bytes that start with %.20q, want the lines from 0 to 1999", len(got), got)
	}
	if got, want := s.stderr.String(), "err\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
}

func testTaskRunsWithNullDeviceOutput(t tb, h *testHost) {
	config, s := h.prepareTaskDirsAndConfig(t, h.testedPlugin.Tasks.Shell("echo lost; exit 4"))
	config.StdoutPath, config.StderrPath = os.DevNull, os.DevNull
	s.start(config)
	if exit := s.waitForExit(); exit.ExitCode != 4 {
		t.Errorf("the exit result is %+v, want exit code 4", *exit)
	}
}

func testTaskEnvironmentIsExact(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, `cat /proc/$$/environ; exit 0`)
	s.waitForExit()
	s.destroy()
	s.closeOutputFIFOWriters()
	s.outputReadGoroutines.Wait()
	got := map[string]string{}
	for _, entry := range strings.Split(strings.TrimSuffix(s.stdout.String(), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		if _, twice := got[name]; twice {
			t.Errorf("%s is set twice", name)
		}
		got[name] = value
	}
	for name, want := range s.config.Env {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for name := range got {
		if _, ok := s.config.Env[name]; !ok {
			t.Errorf("%s=%q is not in the task config", name, got[name])
		}
	}
}

func testTaskStartsInTaskDir(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, `pwd -P; exec sleep 60`)
	want, err := filepath.EvalSymlinks(filepath.Join(s.config.AllocDir, s.config.Name))
	if err != nil {
		t.Fatalf("%v", err)
	}
	if got := s.waitForLineWithPrefix("/"); "/"+got != want {
		t.Errorf("the directory is /%s, want %s", got, want)
	}
}

func testTaskInheritsNoDescriptors(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, `echo pid $$; exec sleep 60`)
	pid := s.waitForLineWithPrefix("pid ")
	// After the start, the shell has its script open for some time, and the dynamic loader its
	// libraries. A leaked descriptor remains open.
	const maxWait = 5 * time.Second
	var openFDs []string
	for deadline := time.Now().Add(maxWait); ; time.Sleep(2 * time.Millisecond) {
		entries, err := os.ReadDir("/proc/" + pid + "/fd")
		if err != nil {
			t.Skipf("read the descriptors of the task: %v", err)
		}
		openFDs = nil
		for _, e := range entries {
			if fd, _ := strconv.Atoi(e.Name()); fd > 2 {
				target, _ := os.Readlink("/proc/" + pid + "/fd/" + e.Name())
				openFDs = append(openFDs, fmt.Sprintf("descriptor %d is open: %s", fd, target))
			}
		}
		if len(openFDs) == 0 || time.Now().After(deadline) {
			break
		}
	}
	for _, leak := range openFDs {
		t.Errorf("%s", leak)
	}
	if target, _ := os.Readlink("/proc/" + pid + "/fd/0"); target != os.DevNull {
		t.Errorf("standard input is %s, want %s", target, os.DevNull)
	}
}

func testTaskHasOwnSession(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, `echo pid $$; exec sleep 60`)
	pid, err := strconv.Atoi(s.waitForLineWithPrefix("pid "))
	if err != nil {
		t.Fatalf("%v", err)
	}
	session, err := unix.Getsid(pid)
	if err != nil {
		t.Skipf("read the session of the task: %v", err)
	}
	if of, err := unix.Getsid(h.launchOrGetSharedProcess(t).pid); err == nil && session == of {
		t.Errorf("the command is in the session of the plugin")
	}
}

func testExitStatusIsReported(t tb, h *testHost) {
	s := h.startShellTask(t, "exit 7")
	if got, want := *s.waitForExit(), (driver.ExitResult{ExitCode: 7}); got != want {
		t.Errorf("exit 7: %+v, want %+v", got, want)
	}
	// A process with pid 1 of a PID namespace ignores signals that it does not handle, so that it
	// cannot end itself by one.
	const isPID1 = 43
	s = h.startShellTask(t, fmt.Sprintf("[ $$ = 1 ] && exit %d; kill -TERM $$", isPID1))
	if got := s.waitForExit(); got.ExitCode == isPID1 {
		return
	} else if got.Signal != int(unix.SIGTERM) || got.Successful() {
		t.Errorf("after SIGTERM: %+v, want signal 15", *got)
	}
}

func testStopSendsJobSignal(t tb, h *testHost) {
	s := h.startShellTask(t, `trap "exit 9" USR1; echo ready; while :; do sleep 0.02; done`)
	s.waitForLineWithPrefix("ready")
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, waitTimeout, "SIGUSR1"); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	if got := s.waitForExit(); got.ExitCode != 9 {
		t.Errorf("the exit result is %+v, want exit code 9 of the signal handler", *got)
	}
}

func testKillAfterStopTimeout(t tb, h *testHost) {
	s := h.startShellTask(t, `trap "" INT TERM; echo ready; while :; do sleep 0.02; done`)
	s.waitForLineWithPrefix("ready")
	const stopTimeout = 900 * time.Millisecond // on a loaded machine, an immediate kill can take 250 ms
	began := time.Now()
	if err := s.currentDriver().StopTask(t.Context(), s.config.ID, stopTimeout, ""); err != nil {
		t.Fatalf("StopTask: %v", err)
	}
	if took := time.Since(began); took < stopTimeout {
		t.Fatalf("StopTask returned after %v, before its timeout of %v", took, stopTimeout)
	}
	if got := s.waitForExit(); got.Signal != int(unix.SIGKILL) {
		t.Errorf("the exit result is %+v, want signal 9", *got)
	}
}

// childKillTimeout limits how long the processes of a task can take to exit after a kill. Tests change it.
var childKillTimeout = waitTimeout

func testDestroyKillsChildren(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	// The task exits after both children have written their pids, because its
	// exit may kill them.
	s := h.startShellTask(t, `trap "" HUP; trap a=1 USR1; trap b=1 USR2; `+
		`(trap "" INT TERM HUP; echo child $(exec sh -c 'echo $PPID'); kill -USR1 $$; exec sleep 3600) & `+
		`setsid sh -c 'echo own $$; kill -USR2 $1; exec sleep 3600' sh $$ & `+
		`until [ "$a$b" = 11 ]; do sleep 0.02; done; exit 0`)
	child, err := strconv.Atoi(s.waitForLineWithPrefix("child "))
	if err != nil {
		t.Fatalf("%v", err)
	}
	own, err := strconv.Atoi(s.waitForLineWithPrefix("own "))
	if err != nil {
		t.Fatalf("%v", err)
	}
	if exit := s.waitForExit(); !exit.Successful() {
		t.Errorf("the exit result is %+v, want success", *exit)
	}
	s.destroy()
	waitUntilWithin(t, childKillTimeout, "a child in the task's process group has exited", func() bool { return !isProcessAlive(child) })
	waitUntilWithin(t, childKillTimeout, "a child in a session of its own has exited", func() bool { return !isProcessAlive(own) })
}

func testMissingCommandFailsStart(t tb, h *testHost) {
	body := h.testedPlugin.Tasks.Shell("true")
	if _, ok := body["command"]; !ok {
		t.Skipf("the task config has no command")
	}
	body["command"] = "/no/such/command"
	config, s := h.prepareTaskDirsAndConfig(t, body)
	s.config = config
	t.Cleanup(s.cleanUp)
	handle, _, err := s.currentDriver().StartTask(t.Context(), config)
	s.handle = handle
	switch {
	case err == nil:
		t.Fatalf("StartTask succeeded")
	case !strings.Contains(err.Error(), "/no/such/command"):
		t.Errorf("the error does not name the command: %v", err)
	case driver.IsRecoverable(err):
		t.Errorf("the error is recoverable: %v", err)
	}
}

func testSignalsAreDelivered(t tb, h *testHost) {
	if !h.capabilities(t).SendSignals {
		t.Skipf("the driver does not declare signals")
	}
	s := h.startShellTask(t, `trap "echo got hup" HUP; echo ready; while :; do sleep 0.02; done`)
	s.waitForLineWithPrefix("ready")
	if err := s.currentDriver().SignalTask(t.Context(), s.config.ID, "SIGHUP"); err != nil {
		t.Fatalf("SignalTask: %v", err)
	}
	s.waitForLineWithPrefix("got hup")
	if err := s.currentDriver().SignalTask(t.Context(), s.config.ID, "SIGFOO"); err == nil {
		t.Errorf("SignalTask with SIGFOO succeeded")
	}
	if status, err := s.currentDriver().InspectTask(t.Context(), s.config.ID); err != nil || status.State != driver.TaskRunning {
		t.Errorf("the task is no longer running: %+v, %v", status, err)
	}
}

// startSleepTaskForExecOrSkip starts a task in which exec calls run commands. It skips the case if the driver has no
// exec.
func (h *testHost) startSleepTaskForExecOrSkip(t tb) *testTask {
	t.Helper()
	if !h.capabilities(t).Exec {
		t.Skipf("the driver does not declare exec")
	}
	return h.startShellTask(t, "exec sleep 3600")
}

func testExecReturnsOutputAndExitCode(t tb, h *testHost) {
	s := h.startSleepTaskForExecOrSkip(t)
	result, err := s.currentDriver().ExecTask(t.Context(), s.config.ID, []string{"/bin/sh", "-c", `echo "$NOMAD_ALLOC_ID"; exit 7`}, waitTimeout)
	if err != nil {
		t.Fatalf("ExecTask: %v", err)
	}
	if got, want := string(result.Stdout), s.config.AllocID+"\n"; got != want {
		t.Errorf("the output is %q, want %q", got, want)
	}
	if got := result.Exit; got.ExitCode != 7 {
		t.Errorf("the exit result is %+v, want exit code 7", got)
	}
	// A driver may cut long output to fit into a gRPC message, but must return the
	// end of it.
	result, err = s.currentDriver().ExecTask(t.Context(), s.config.ID, []string{"/bin/sh", "-c", `head -c 6000000 /dev/zero | tr '\0' x; echo end`}, waitTimeout)
	if err != nil {
		t.Fatalf("ExecTask with much output: %v", err)
	}
	if n := len(result.Stdout); n > 4<<20 || !bytes.HasSuffix(result.Stdout, []byte("xend\n")) {
		t.Errorf("6 MB of output are cut to %d bytes that end in %q, want less than 4 MiB that end in \"xend\\n\"", n, result.Stdout[max(0, n-10):])
	}
	// A driver reports a missing command as a shell does, with exit code 127, or
	// as an error.
	result, err = s.currentDriver().ExecTask(t.Context(), s.config.ID, []string{"/no/such/command"}, waitTimeout)
	if err == nil && result.Exit.Successful() {
		t.Errorf("ExecTask of a missing command succeeded")
	}
}

func testExecReturnsAfterTimeout(t tb, h *testHost) {
	s := h.startSleepTaskForExecOrSkip(t)
	began := time.Now()
	result, err := s.currentDriver().ExecTask(t.Context(), s.config.ID, []string{"/bin/sh", "-c", "sleep 60"}, 100*time.Millisecond)
	if err == nil && result.Exit.Successful() {
		t.Errorf("the command succeeded, want a failure after the timeout")
	}
	if took := time.Since(began); took > waitTimeout {
		t.Errorf("ExecTask with a timeout of 100ms returned after %v", took)
	}
}

func testExecStreamingPassesStreams(t tb, h *testHost) {
	s := h.startSleepTaskForExecOrSkip(t)
	var stdout, stderr lockedBuffer
	exit, err := s.currentDriver().ExecTaskStreaming(t.Context(), s.config.ID, driver.Exec{
		Command: []string{"/bin/sh", "-c", "cat; echo oops >&2; exit 7"},
		Stdin:   strings.NewReader(strings.Repeat("0123456789\n", 20000)),
		Stdout:  &stdout,
		Stderr:  &stderr,
	})
	if err != nil {
		t.Fatalf("ExecTaskStreaming: %v", err)
	}
	if got := stdout.String(); got != strings.Repeat("0123456789\n", 20000) {
		t.Errorf("the output has %d bytes, want the 220000 bytes of the input", len(got))
	}
	if got, want := stderr.String(), "oops\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
	if exit.ExitCode != 7 {
		t.Errorf("the exit result is %+v, want exit code 7", *exit)
	}
	exit, err = s.currentDriver().ExecTaskStreaming(t.Context(), s.config.ID, driver.Exec{Command: []string{"/no/such/command"}})
	if err == nil && exit.Successful() {
		t.Errorf("ExecTaskStreaming of a missing command succeeded")
	}
}

func testExecTerminalHasRequestedSize(t tb, h *testHost) {
	s := h.startSleepTaskForExecOrSkip(t)
	resize := make(chan driver.TerminalSize, 1)
	resize <- driver.TerminalSize{Height: 33, Width: 77}
	var stdout lockedBuffer
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	exit, err := s.currentDriver().ExecTaskStreaming(ctx, s.config.ID, driver.Exec{
		Command: []string{"/bin/sh", "-c", `until [ "$(stty size 2>&1)" = "33 77" ]; do sleep 0.01; done; stty size; test -t 0 && test -t 1 && test -t 2 && echo terminal >&2; exit 5`},
		TTY:     true,
		Stdout:  &stdout,
		Resize:  resize,
	})
	if err != nil {
		t.Fatalf("ExecTaskStreaming: %v; the output is %q", err, stdout.String())
	}
	if got, want := stdout.String(), "33 77\r\nterminal\r\n"; got != want {
		t.Errorf("the output is %q, want %q", got, want)
	}
	if exit.ExitCode != 5 {
		t.Errorf("the exit result is %+v, want exit code 5", *exit)
	}
}

func testCancelledExecEndsCommand(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startSleepTaskForExecOrSkip(t)
	var stdout lockedBuffer
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := s.currentDriver().ExecTaskStreaming(ctx, s.config.ID, driver.Exec{
			Command: []string{"/bin/sh", "-c", `echo $$; exec sleep 3600`},
			Stdout:  &stdout,
		})
		done <- err
	}()
	waitUntil(t, "the command writes its pid", func() bool { return strings.HasSuffix(stdout.String(), "\n") })
	pid, err := strconv.Atoi(strings.TrimSpace(stdout.String()))
	if err != nil {
		t.Fatalf("%v", err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Errorf("a cancelled ExecTaskStreaming succeeded")
	}
	waitUntilWithin(t, childKillTimeout, "the command has exited", func() bool { return !isProcessAlive(pid) })
}

// exitScript is a script that writes its pid, and exits with the code that it
// reads from the file "code" in its directory.
const exitScript = `echo pid $$; until [ -s local/code ]; do sleep 0.01; done; exit $(cat local/code)`

func (s *testTask) writeExitCodeForScript(exitCode int) {
	s.t.Helper()
	path := filepath.Join(s.config.AllocDir, s.config.Name, "local", "code")
	if err := os.WriteFile(path+".new", fmt.Appendf(nil, "%d\n", exitCode), 0o644); err != nil {
		s.t.Fatalf("%v", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		s.t.Fatalf("%v", err)
	}
}

func testTaskOutlivesPlugin(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, exitScript)
	pid, err := strconv.Atoi(s.waitForLineWithPrefix("pid "))
	if err != nil {
		t.Fatalf("%v", err)
	}
	h.killSharedProcess(t)
	err = s.callRecoverTask()
	// A task that depends on its plugin process may exit some time after that process.
	for wait := time.Now().Add(time.Second); err != nil && isProcessAlive(pid) && time.Now().Before(wait); {
		time.Sleep(2 * time.Millisecond)
	}
	if !isProcessAlive(pid) {
		t.Fatalf("the task exited with the plugin")
	}
	if err != nil {
		t.Skipf("the driver cannot recover tasks, so that hosts start them again: %v", err)
	}
	s.writeExitCodeForScript(7)
	exit := s.waitForExit()
	switch {
	case exit.Err != nil && strings.Contains(exit.Err.Error(), "unknown"):
		t.Logf("the exit code of a recovered task is unknown: %v", exit.Err)
	case exit.ExitCode != 7 || exit.Signal != 0:
		t.Errorf("the exit result is %+v, want exit code 7", *exit)
	}
	s.destroy()
}

func testExitCodeAfterExitWithoutPlugin(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, exitScript)
	pid, err := strconv.Atoi(s.waitForLineWithPrefix("pid "))
	if err != nil {
		t.Fatalf("%v", err)
	}
	h.killSharedProcess(t)
	s.writeExitCodeForScript(7)
	waitUntil(t, "the task has exited", func() bool { return !isProcessAlive(pid) })
	s.checkRecoveredExitCode()
}

func testExitCodeAfterLaterPluginKill(t tb, h *testHost) {
	h.skipUnlessHostFilesVisible(t)
	s := h.startShellTask(t, exitScript)
	s.waitForLineWithPrefix("pid ")
	s.writeExitCodeForScript(7)
	s.waitForExit()
	h.killSharedProcess(t)
	s.checkRecoveredExitCode()
}

// checkRecoveredExitCode recovers a task that has exited with code 7, and fails if the
// driver reports another exit status. An error of the recovery is accepted.
func (s *testTask) checkRecoveredExitCode() {
	s.t.Helper()
	if err := s.callRecoverTask(); err != nil {
		return // accepted: a host then starts the task again, and emits an event
	}
	if exit := s.waitForExit(); exit.Err == nil && (exit.ExitCode != 7 || exit.Signal != 0) {
		s.t.Errorf("the exit result is %+v, want exit code 7 or an error", *exit)
	}
	s.destroy()
}
