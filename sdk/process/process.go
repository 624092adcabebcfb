package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// Command describes the program of a task. The sdk.StartRequest has what a Command
// does not: user, environment, output, directories.
type Command struct {
	// Path is the program: absolute, or relative to the task's "local" directory
	// or to the task's directory, or a name to be found in the PATH of the task.
	Path string

	Args []string // arguments, without the name of the program

	// Args0 is the name of the program in its list of arguments, argv[0]; empty means the path that was found. With a
	// Launcher it must be empty. A driver that runs its own program again, with the Path "/proc/self/exe", sets a name
	// that users recognize in a list of processes.
	Args0 string

	// Dir is the working directory, an absolute path; empty means the task's
	// directory.
	Dir string

	// OOMScoreAdj is the OOM score adjustment of the process, from 0 to 1000: with a higher
	// value the kernel is likelier to kill the process when memory runs out.
	OOMScoreAdj int

	// Stdin is the standard input; nil means the null device. Start does not close it,
	// and the caller can close it when Start has returned. A pipe that the plugin writes
	// to ends when the plugin exits, also for a task that is recovered afterwards.
	Stdin *os.File

	// ExtraFiles are further open files that the process inherits: entry i becomes file
	// descriptor 3+i, and a descriptor whose entry is nil is closed. Start does not
	// close the files, and the caller can close them when Start has returned. The process
	// inherits no other file that the plugin has opened by package os. Commands that run
	// in the task inherit none of the files.
	ExtraFiles []*os.File

	// MemoryLimitBytes is how many bytes of memory, swap included, the task can use; 0 means
	// the limit of the task's resources. A driver that needs memory of its own beside the
	// memory of the job, such as an emulator, adds it here.
	MemoryLimitBytes int64

	// PidsLimit is how many processes and threads the task can have at a time; 0
	// means no limit.
	PidsLimit int64

	// Rlimits are limits of setrlimit(2) for the process, by the names of the resources in
	// lower case without RLIMIT_, such as "nofile" or "memlock". They are set before the
	// program runs, and for commands that run in the task. A limit that cannot be set
	// fails the start: only a privileged plugin can raise a hard limit. The plugin traces
	// the process until the limits are set; without CAP_SYS_PTRACE, the setuid bit of the
	// program has no effect.
	Rlimits map[string]Rlimit

	// CgroupV1 maps controllers to existing cgroups for the process, and CgroupV2 is a single
	// existing cgroup. The paths are relative to the mount. The cgroups belong to the user: they
	// are neither made nor removed, and of the processes in them only the process group is
	// killed.
	CgroupV1 map[string]string
	CgroupV2 string

	// Launcher starts the program, and the commands that run in the task, in place of the plugin
	// itself; nil means that the plugin executes them. With a Launcher, Path and Dir are looked up
	// by its stage, Dir may be empty, the stage sets the user of the task, and ExtraFiles must be
	// empty.
	Launcher Launcher
}

// Process is a [ProcessWithoutExec] in whose environment other commands can run. It implements the
// interfaces of a ProcessWithoutExec, and sdk.Execer. A driver that does not offer other commands returns
// a ProcessWithoutExec, or does not declare driver.Capabilities.Exec.
// It is large because it has the methods of a ProcessWithoutExec, too.
type Process struct{ *ProcessWithoutExec }

// ProcessWithoutExec is a task that runs as an operating system process, in a session and process group
// of its own. It includes all processes that the process has started. It implements
// sdk.Task, sdk.Signaler, sdk.StatsProvider, sdk.StateProvider, sdk.AttributesProvider and
// sdk.Destroyer. A driver's own task can embed it, and inherits no other method of package
// sdk.
type ProcessWithoutExec struct {
	processID    osprocess.ID
	startRequest *sdk.StartRequest
	workDir      string
	credential   *syscall.Credential
	rlimits      map[string]Rlimit
	launcher     Launcher // nil if the plugin executes programs itself
	cgroup       *cgroup  // nil if the task has no cgroup
	isChild      bool     // the process is a child of this plugin process, which reaps it
	logger       hclog.Logger
	cpuSampler   cpuSampler
	totalSampler totalSampler

	unenforcedLimitMessages []string // unenforcedLimitMessages are event messages about limits that are not enforced

	// userLookupErr is not nil if the user of a recovered process no longer resolves,
	// and so no command can run as that user.
	userLookupErr error

	// pidfd is nil on kernels without pidfds.
	pidfd *osprocess.Pidfd

	// pidReleaseMu is locked while the process is reaped: afterwards its number may
	// belong to another process. A goroutine that sends a signal holds it for
	// reading.
	pidReleaseMu  sync.RWMutex
	isPIDReleased bool // guarded by pidReleaseMu

	// waitSemaphore has an element while a goroutine waits for the process; other callers of
	// Wait block on it. It is a channel, because they return when their context ends.
	waitSemaphore chan struct{}
	hasExited     bool              // guarded by waitSemaphore
	exitResult    driver.ExitResult // guarded by waitSemaphore
}

var (
	_ sdk.Task               = (*ProcessWithoutExec)(nil)
	_ sdk.Signaler           = (*ProcessWithoutExec)(nil)
	_ sdk.StatsProvider      = (*ProcessWithoutExec)(nil)
	_ sdk.StateProvider      = (*ProcessWithoutExec)(nil)
	_ sdk.AttributesProvider = (*ProcessWithoutExec)(nil)
	_ sdk.Destroyer          = (*ProcessWithoutExec)(nil)
	_ sdk.Execer             = (*Process)(nil)
)

// State is the data with which another process of the driver recovers a Process,
// besides the sdk.StartRequest. A driver's own state may hold it in a field.
type State struct {
	PID       int    `codec:"pid"`
	StartTime uint64 `codec:"start_time"` // field 22 of /proc/<pid>/stat
	BootID    string `codec:"boot_id"`
	Dir       string `codec:"dir"`
	Cgroup    string `codec:"cgroup"` // empty if the task has no cgroup

	// OOMKills is the number of OOM kills that the kernel had counted in the cgroup before this start.
	OOMKills uint64 `codec:"oom_kills"`

	Rlimits map[string]Rlimit `codec:"rlimits,omitempty"` // limits of the process, which Exec also sets for commands
}

// HasOOMKill reports whether the kernel has killed a process of this start because the memory limit of the task was exceeded.
// It reads the task's cgroup, and returns false after the task was destroyed.
func (s State) HasOOMKill() bool {
	if s.Cgroup == "" {
		return false
	}
	g := openExistingCgroup(s.Cgroup)
	if g == nil {
		return false
	}
	g.initialOOMKills = s.OOMKills
	return g.oomKilled()
}

// Start starts a process and returns when its program has been executed. It
// first kills the processes that an earlier start of the same task has left
// running, and opens the task's output, which blocks until the output has a
// reader or ctx ends, for 30 seconds at most.
//
// The limits of the task's resources are set before the program runs, its CPU
// shares right after it was executed. If cgroups are not available, the task
// starts without limits, and has an event for each limit that is not enforced.
func Start(ctx context.Context, start *sdk.StartRequest, c Command) (*Process, error) {
	p, err := StartWithoutExec(ctx, start, c)
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

// StartWithoutExec is [Start] for a task that runs no other commands.
func StartWithoutExec(ctx context.Context, start *sdk.StartRequest, c Command) (*ProcessWithoutExec, error) {
	p, err := startWithoutExec(ctx, start, c)
	return p, sdk.MarkIfResourceExhausted(err)
}

func startWithoutExec(ctx context.Context, start *sdk.StartRequest, c Command) (*ProcessWithoutExec, error) {
	p := &ProcessWithoutExec{
		startRequest:  start,
		workDir:       c.Dir,
		rlimits:       maps.Clone(c.Rlimits),
		launcher:      c.Launcher,
		isChild:       true,
		logger:        start.Logger(),
		waitSemaphore: make(chan struct{}, 1),
	}
	if c.OOMScoreAdj < 0 || c.OOMScoreAdj > 1000 {
		return nil, fmt.Errorf("oom_score_adj is %d; 0 to 1000 is possible", c.OOMScoreAdj)
	}
	if c.MemoryLimitBytes < 0 {
		return nil, fmt.Errorf("memory limit is %d; it cannot be negative", c.MemoryLimitBytes)
	}
	if c.PidsLimit < 0 {
		return nil, fmt.Errorf("pids limit is %d; it cannot be negative", c.PidsLimit)
	}
	if err := checkRlimits(c.Rlimits); err != nil {
		return nil, err
	}
	if _, err := osprocess.BootID(); err != nil {
		return nil, sdk.Recoverable(err) // a process without a recorded boot ID could not be recovered
	}
	path, err := p.resolveProgramAndUser(c)
	if err != nil {
		return nil, err
	}
	openCtx, cancel := context.WithTimeout(ctx, outputReaderTimeout)
	files, err := openTaskStreams(openCtx, start, c.Stdin)
	cancel()
	if err != nil {
		return nil, err
	}
	defer files.close()
	slots := startSlots()
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return nil, sdk.Recoverable(context.Cause(ctx))
	}

	earlier, err := p.acquireTaskOwnership()
	if err != nil {
		return nil, err
	}
	place, err := p.makeCgroupsForFork(ctx, c)
	if err == nil && p.cgroup == nil {
		err = p.killProcessesOfEarlierStart(ctx, earlier)
	}
	if err == nil {
		err = markAndStartProgram(ctx, p, path, c, files, place)
	}
	if err != nil {
		err = errors.Join(err, removeStartMark(p))
		if p.cgroup != nil {
			err = errors.Join(err, p.cgroup.removeCgroups())
		}
		p.releaseTaskOwnership(earlier)
		return nil, err
	}
	p.logger = p.logger.With("pid", p.processID.PID)
	p.cgroup.applyDelayedCPUShares()
	p.setOOMScore(c.OOMScoreAdj)
	p.emitUnenforcedLimits()
	return p, nil
}

const (
	// descriptorsPerStart is an upper bound of the descriptors that a start has open at one time, besides the output of
	// the task.
	descriptorsPerStart = 32

	maxConcurrentStarts = 256 // more starts at one time are not faster
)

// startSlots returns a channel that limits the number of concurrent starts in this process, by its capacity: with a small
// limit of open files, a burst of starts would run out of descriptors. A start that waits for the reader of its output has
// no slot.
var startSlots = sync.OnceValue(func() chan struct{} {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		limit.Cur = 0
	}
	return make(chan struct{}, min(max(limit.Cur/descriptorsPerStart, 1), maxConcurrentStarts))
})

// forkSlots limits by its capacity the number of starts that have a mark without a process, because the exit status of such a
// start may be unknown if this plugin process is killed. More concurrent forks are not faster.
var forkSlots = make(chan struct{}, runtime.NumCPU())

// forkSlotTimeout limits the wait for one of the forkSlots: a fork takes milliseconds, unless the file system of its program
// hangs, which must not prevent the starts of other programs.
const forkSlotTimeout = time.Second

// markAndStartProgram writes the mark of the start, forks the process, and updates the mark.
func markAndStartProgram(ctx context.Context, p *ProcessWithoutExec, path string, c Command, files *taskStreams, place forkPlacement) error {
	if usesStartMark(p.startRequest) && p.launcher == nil { // with a launcher, the mark says that nothing was executed
		timer := time.NewTimer(forkSlotTimeout)
		defer timer.Stop()
		select {
		case forkSlots <- struct{}{}:
			defer func() { <-forkSlots }()
		case <-timer.C:
		case <-ctx.Done():
			return sdk.Recoverable(context.Cause(ctx))
		}
	}
	mark, err := writeNewStartMark(p)
	if err != nil {
		return err
	}
	place.beforeForkOutsideCgroup = mark.recordNoCgroupV2
	return p.startProgram(ctx, path, c, files, place, mark)
}

// resolveProgramAndUser returns the path of the program, and sets the working directory and the credential of the task.
// With a launcher it returns Command.Path, because the stage looks these up.
func (p *ProcessWithoutExec) resolveProgramAndUser(c Command) (path string, err error) {
	if p.launcher != nil {
		if len(c.ExtraFiles) > 0 {
			return "", errors.New("extra files are not possible with a launcher")
		}
		if c.Args0 != "" {
			return "", errors.New("a name of the program, Args0, is not possible with a launcher")
		}
		return c.Path, nil
	}
	if p.workDir == "" {
		p.workDir = p.startRequest.TaskDir()
	}
	if err := checkWorkDir(p.workDir); err != nil {
		return "", err
	}
	if path, err = findProgramOfTask(p.startRequest, c.Path); err != nil {
		return "", err
	}
	p.credential, err = credentialIfDifferent(p.startRequest.User)
	return path, err
}

// startProgram forks the process, by the launcher if there is one, and updates the mark of the start.
func (p *ProcessWithoutExec) startProgram(ctx context.Context, path string, c Command, files *taskStreams, place forkPlacement, mark *startMark) error {
	argv := append([]string{cmp.Or(c.Args0, path)}, c.Args...)
	attr := &syscall.ProcAttr{
		Dir:   p.workDir,
		Env:   sortedEnvList(p.startRequest.Env),
		Files: append(files.fds(), fdsForFork(c.ExtraFiles)...),
		Sys:   &syscall.SysProcAttr{Setsid: true, Credential: p.credential},
	}
	if p.launcher == nil {
		err := p.forkProcess(ctx, path, argv, attr, place)
		runtime.KeepAlive(c.ExtraFiles) // a finalizer would close the descriptors before the fork
		if err != nil {
			return err
		}
		if err := mark.recordFork(); err != nil {
			p.logger.Warn("mark of the start not updated", "error", err) // no error of the start, because the process runs
		}
		return nil
	}
	program := newProgram(p.startRequest, p.workDir, path, c.Args)
	markFile, err := mark.openMarkForStage()
	if err != nil {
		return err
	}
	if markFile != nil {
		defer markFile.Close()
		program.StartMarkFile = markFile
	}
	launch, err := p.launcher.PrepareLaunch(program)
	if err != nil {
		return err
	}
	defer launch.Close()
	if launch.ReleaseStage == nil {
		if err := mark.recordStageDoesNotWait(); err != nil {
			return err
		}
	}
	attr.Dir, attr.Env, attr.Files = "/", launch.Env, append(attr.Files, fdsForFork(launch.Files)...)
	place.setAttributesOfLaunch(launch, attr.Sys)
	if err := p.forkProcess(ctx, launch.Path, launch.Args, attr, place); err != nil {
		return fmt.Errorf("start the stage: %w", err)
	}
	err = mark.recordFork()
	if launch.ReleaseStage != nil {
		launch.ReleaseStage() // if the mark was not updated, the stage exits
	}
	if waitErr := waitForExecByStage(ctx, launch, p.processID.PID); waitErr != nil {
		err = errors.Join(err, waitErr)
	}
	if err != nil {
		unix.Kill(-p.processID.PID, unix.SIGKILL)
		unix.Wait4(p.processID.PID, nil, 0, nil)
		if p.pidfd != nil {
			p.pidfd.Close()
		}
		return err
	}
	return nil
}

// forkProcess starts the process. It retries after ETXTBSY, which is temporary: a concurrently
// forked child of this process still has the program file open for writing.
func (p *ProcessWithoutExec) forkProcess(ctx context.Context, path string, argv []string, attr *syscall.ProcAttr, place forkPlacement) error {
	for delay := time.Millisecond; ; delay *= 2 {
		fd := -1
		attr.Sys.PidFD = &fd
		var pid int
		err := place.forkIntoPlacement(attr.Sys, func() (_ int, err error) {
			opcount.Count(opcount.Fork)
			pid, err = syscall.ForkExec(path, argv, attr)
			return pid, err
		})
		if errors.Is(err, unix.ETXTBSY) && delay < 200*time.Millisecond {
			time.Sleep(delay)
			continue
		}
		if err != nil {
			if pid > 0 {
				unix.Wait4(pid, nil, 0, nil) // forkIntoPlacement has killed the child
				unix.Close(fd)
			}
			return p.explainExecError(path, err)
		}
		if fd >= 0 {
			p.pidfd, err = osprocess.NewPidfd(fd)
		}
		if err == nil {
			p.processID, err = lookupChildID(ctx, pid)
		}
		if err != nil {
			// The process is a child that was not reaped, so its pid was not reused.
			unix.Kill(-pid, unix.SIGKILL)
			unix.Wait4(pid, nil, 0, nil)
			// %v hides err, which could mark the start as repeatable, although the program was executed.
			return fmt.Errorf("take hold of process %d: %v", pid, err)
		}
		return nil
	}
}

// lookupChildID returns the ID of a child that was not reaped. While there are no free descriptors, it tries again until ctx is
// done: the program was executed, so the start must neither fail nor be repeated because of them.
func lookupChildID(ctx context.Context, pid int) (osprocess.ID, error) {
	for delay := time.Millisecond; ; delay = min(2*delay, time.Second) {
		id, err := osprocess.LookupID(pid)
		if !osprocess.IsTableFull(err) {
			return id, err
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return id, err
		}
	}
}

func (p *ProcessWithoutExec) explainExecError(path string, err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return sdk.Recoverable(fmt.Errorf("execute %s: %w: %w", path, osprocess.ErrNoFreeProcess, err))
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ETXTBSY), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return sdk.Recoverable(fmt.Errorf("execute %s: %w", path, err))
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("execute %s: the interpreter or loader that it names does not exist", path)
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("execute %s: not a program for this machine, and no #! line names an interpreter", path)
	case errors.Is(err, unix.EPERM) && p.credential != nil && os.Geteuid() != 0:
		return fmt.Errorf("execute %s as user %q: only root may run tasks as another user", path, p.startRequest.User)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("execute %s in %s: %w for user %q", path, p.workDir, err, p.startRequest.User)
	}
	return fmt.Errorf("execute %s: %w", path, err)
}

// setOOMScore sets the OOM score adjustment of the process. For 0 it resets a negative adjustment that the
// process has inherited from the plugin: a service manager can protect the plugin from the OOM killer, but a
// task must not have this protection.
func (p *ProcessWithoutExec) setOOMScore(score int) {
	if score == 0 {
		p.resetOOMScore(p.processID.PID)
		return
	}
	file := fmt.Sprintf("/proc/%d/oom_score_adj", p.processID.PID)
	if err := os.WriteFile(file, fmt.Appendf(nil, "%d", score), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		p.logger.Warn("out-of-memory score not set", "score", score, "error", err)
	}
}

func (p *ProcessWithoutExec) resetOOMScore(pid int) {
	if err := osprocess.ResetOOMScore(pid); err != nil {
		p.logger.Warn("process is protected from the lack of memory as the driver is", "protected_pid", pid, "error", err)
	}
}

// PID returns the process id, which is also the id of the session and of the
// process group.
func (p *ProcessWithoutExec) PID() int { return p.processID.PID }

// State returns the data with which Recover finds the process. The data is valid until the next boot.
func (p *ProcessWithoutExec) State() any { return p.Snapshot() }

// Snapshot returns the same data as State, as a typed value. A driver whose
// tasks have further state stores both.
func (p *ProcessWithoutExec) Snapshot() State {
	boot, _ := osprocess.BootID() // no error: Start and Recover have read the boot ID successfully
	s := State{PID: p.processID.PID, StartTime: p.processID.StartTime, BootID: boot, Dir: p.workDir, Rlimits: p.rlimits}
	if p.cgroup != nil {
		s.Cgroup, s.OOMKills = p.cgroup.path, p.cgroup.initialOOMKills
	}
	return s
}

// Attributes returns the pid.
func (p *ProcessWithoutExec) Attributes() map[string]string {
	return map[string]string{"pid": fmt.Sprint(p.processID.PID)}
}

// Wait blocks until the process has ended. It returns an error, for users, if the task failed after the kernel had killed a
// process of it for memory, or if the exit status is unknown. It does not reap the process, so that the exit
// status remains available to another plugin process until Destroy.
// Wait may be called more than once, and concurrently.
func (p *ProcessWithoutExec) Wait(ctx context.Context) (driver.ExitResult, error) {
	result, err := waitForResult(ctx, p)
	if err == nil {
		err, result.Err = result.Err, nil
	}
	return result, err
}

// waitForResult is Wait. It returns a problem of the task in the field Err of the result, and only the error of ctx as an error.
func waitForResult(ctx context.Context, p *ProcessWithoutExec) (driver.ExitResult, error) {
	select {
	case p.waitSemaphore <- struct{}{}:
		defer func() { <-p.waitSemaphore }()
	case <-ctx.Done():
		return driver.ExitResult{}, ctx.Err()
	}
	if p.hasExited {
		return p.exitResult, nil
	}
	var status osprocess.ExitStatus
	var err error
	if p.isChild {
		status, err = p.waitChild(ctx)
	} else {
		status, err = p.waitNonChild(ctx)
	}
	if ctx.Err() != nil {
		return driver.ExitResult{}, ctx.Err()
	}
	p.recordExit(status, err)
	return p.exitResult, nil
}

// recordExit sets the result of Wait; its caller must hold p.waitSemaphore. OOMKilled is also set
// if only a child of the process was killed, because the process may have failed
// because of that. If the process has succeeded, recordExit emits an event instead of
// setting Err, which would make the task fail.
func (p *ProcessWithoutExec) recordExit(status osprocess.ExitStatus, err error) {
	p.hasExited = true
	p.exitResult = toExitResult(status, err)
	if p.cgroup == nil || !p.cgroup.oomKilled() {
		return
	}
	p.exitResult.OOMKilled = true
	if p.exitResult.Err != nil {
		return
	}
	if p.exitResult.Err = status.OOMError(); p.exitResult.Err == nil {
		p.startRequest.Event(osprocess.ErrOOMKilled.Error() + ": a process that the task had started exceeded the memory limit")
	}
}

// Signal sends a signal to the process only, not to its descendants. An empty
// name is SIGINT.
func (p *ProcessWithoutExec) Signal(_ context.Context, name string) error {
	sig, err := ParseSignal(name)
	if err != nil {
		return err
	}
	p.pidReleaseMu.RLock()
	defer p.pidReleaseMu.RUnlock()
	switch {
	case p.isPIDReleased:
		return nil
	case p.pidfd != nil:
		err = p.pidfd.Signal(sig)
	default:
		err = p.processID.Signal(sig)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to process %d: %w", unix.SignalName(sig), p.processID.PID, err)
	}
	return nil
}

// ParseSignal returns the number of a signal, named with or without SIG. An
// empty name is SIGINT, the default stop signal of Nomad's process drivers.
func ParseSignal(name string) (syscall.Signal, error) {
	if name == "" {
		return unix.SIGINT, nil
	}
	full := strings.ToUpper(name)
	if !strings.HasPrefix(full, "SIG") {
		full = "SIG" + full
	}
	sig := unix.SignalNum(full)
	if sig == 0 {
		return 0, fmt.Errorf("there is no signal %q", name)
	}
	return sig, nil
}

// Kill kills the process and everything that it has started: its process group,
// and all processes in its cgroup.
func (p *ProcessWithoutExec) Kill(ctx context.Context) error {
	p.pidReleaseMu.RLock()
	defer p.pidReleaseMu.RUnlock()
	if p.isPIDReleased {
		return nil
	}
	return p.killAllProcesses(ctx)
}

// killProcessGroup kills the process group. It never kills a process that has the same pid as a process
// that was reaped.
func (p *ProcessWithoutExec) killProcessGroup() error {
	err := unix.ENOSYS
	if p.pidfd != nil {
		if err := p.pidfd.SignalGroup(unix.SIGKILL); err == nil || errors.Is(err, os.ErrProcessDone) {
			return nil
		}
	}
	// Older kernels cannot signal a group through a pidfd. The pid of a child is
	// not reused before this process reaps the child. An orphan is reaped by another
	// process, so its start time is compared.
	if now, statErr := osprocess.LookupID(p.processID.PID); p.isChild || errors.Is(statErr, os.ErrProcessDone) || statErr == nil && now == p.processID {
		if killErr := unix.Kill(-p.processID.PID, unix.SIGKILL); killErr != nil && killErr != unix.ESRCH {
			err = killErr.(syscall.Errno)
			return fmt.Errorf("kill process group %d: %w", p.processID.PID, err)
		}
	}
	return nil
}

// Destroy kills the processes that the process has left running, reaps the process, and
// removes its cgroup. The process itself must have ended. After an
// error, processes or the cgroup may remain, and the caller must call Destroy
// again; after a success a second Destroy does nothing.
func (p *ProcessWithoutExec) Destroy(ctx context.Context) error {
	p.pidReleaseMu.Lock()
	defer p.pidReleaseMu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	if !p.isPIDReleased {
		// killAllProcesses comes first: until a child is reaped, the id of its process group
		// cannot be reused.
		if err := p.killAllProcesses(ctx); err != nil {
			return err
		}
		p.isPIDReleased = true
		if p.isChild {
			errs = append(errs, p.reapEndedChild())
		}
		if p.pidfd != nil {
			p.pidfd.Close()
		}
	}
	errs = append(errs, removeStartMark(p))
	if p.cgroup != nil && p.isTaskOwner() {
		errs = append(errs, p.cgroup.removeCgroups())
	}
	err := errors.Join(errs...)
	if err == nil {
		p.releaseTaskOwnership(nil) // the next start then does not search for leftover processes
	}
	return err
}

// fdsForFork returns the descriptors of the files, for syscall.ProcAttr.Files. For a nil file it returns the largest
// number, for which the fork closes the descriptor in the child.
func fdsForFork(files []*os.File) []uintptr {
	fds := make([]uintptr, len(files))
	for i, f := range files {
		fds[i] = ^uintptr(0)
		if f != nil {
			fds[i] = f.Fd()
		}
	}
	return fds
}

// sortedEnvList returns the environment as KEY=VALUE strings, in a stable order.
func sortedEnvList(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	sort.Strings(list)
	return list
}

func checkWorkDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("work_dir %q is not an absolute path", dir)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("working directory %s is not a directory", dir)
	}
	return nil
}
