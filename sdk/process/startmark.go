package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/startmark"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// startMarkData is the data of the mark that a start writes before it forks. If the driver exits during the start, the next
// process of the driver finds the start's process by the mark: see [Adopt]. The mark is an attribute of the task's cgroup
// or, if that fails, a file.
type startMarkData struct {
	StartID string `codec:"start_id"`
	State   State  `codec:"process"` // State.PID is 0 in a mark that is not Forked

	// OldestStartTimeTicks is the time of the mark, as a process start time: the process of the start is not older.
	OldestStartTimeTicks uint64 `codec:"oldest_start_time"`

	// LastPID is the latest pid that the kernel had given to a process at the time of the mark; 0 if it is unknown.
	LastPID int `codec:"last_pid"`

	// CgroupV2 is the name of the task's own cgroup of version 2, into which the process is forked; "" if it is forked into
	// none. Of a process that has ended, no other property tells to which task it belonged.
	CgroupV2 string `codec:"cgroup_v2"`

	// ParentPID is the parent of the plugin process that has written the mark.
	ParentPID int `codec:"parent_pid"`

	// StageWaitsForMark means that a stage executes the program, and only after the mark is Forked.
	StageWaitsForMark bool `codec:"staged"`
}

// usesStartMark reports whether a start leaves a mark: only under nomad-lite, because Nomad requests no Adopt.
func usesStartMark(start *sdk.StartRequest) bool {
	return os.Getenv(keeper.EnvSocket) != "" && start.ID != "" && start.AllocDir != ""
}

// startMark is the mark of a start in progress; nil if the start leaves no mark.
type startMark struct {
	startedProcess *ProcessWithoutExec
	data           startMarkData
}

// writeNewStartMark writes the mark of a start before the fork. Without the mark, the next process of the driver would
// start the task a second time.
func writeNewStartMark(p *ProcessWithoutExec) (*startMark, error) {
	if !usesStartMark(p.startRequest) {
		return nil, nil
	}
	m := &startMark{startedProcess: p, data: startMarkData{
		StartID:              p.startRequest.ID,
		OldestStartTimeTicks: osprocess.StartTimeNow(),
		LastPID:              osprocess.LastPID(),
		ParentPID:            os.Getppid(),
		StageWaitsForMark:    p.launcher != nil, // the plugin process can die before there is a stage
	}}
	if p.cgroup != nil && p.cgroup.v2Dir != "" {
		m.data.CgroupV2 = path.Base(p.cgroup.v2Dir)
	}
	return m, m.writeBeforeFork()
}

// recordNoCgroupV2 clears CgroupV2 in the mark. It must be called before the process is forked outside of the cgroup.
func (m *startMark) recordNoCgroupV2() error {
	if m == nil || m.data.CgroupV2 == "" {
		return nil
	}
	m.data.CgroupV2 = ""
	return m.writeBeforeFork()
}

// recordStageDoesNotWait clears StageWaitsForMark in the mark. It must be called before the fork of the stage.
func (m *startMark) recordStageDoesNotWait() error {
	if m == nil {
		return nil
	}
	m.data.StageWaitsForMark = false
	return m.writeBeforeFork()
}

func (m *startMark) writeBeforeFork() error {
	if err := m.writeMark(); err != nil {
		return sdk.Recoverable(fmt.Errorf("mark the start of task %q: %w", m.startedProcess.startRequest.Name, err))
	}
	return nil
}

// recordFork marks the start as Forked, and adds the process to the mark. A stage executes the program only afterwards.
func (m *startMark) recordFork() error {
	if m == nil {
		return nil
	}
	if err := m.writeMark(); err != nil {
		return fmt.Errorf("mark the process %d: %w", m.startedProcess.processID.PID, err)
	}
	return nil
}

func (m *startMark) writeMark() error {
	m.data.State = m.startedProcess.Snapshot()
	data, err := hclspec.MarshalState(m.data)
	if err != nil {
		return err
	}
	mark := startmark.Mark{Forked: m.startedProcess.processID.PID != 0, Data: data}
	if m.startedProcess.cgroup != nil && mark.WriteToCgroup(m.startedProcess.cgroup.path) == nil {
		return nil
	}
	f, err := openStartMarkFile(m.startedProcess.startRequest, os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return err
	}
	return errors.Join(mark.WriteToFile(f), f.Close())
}

// openMarkForStage opens the cgroup or the file that has the mark, for Program.StartMarkFile. It returns nil if the
// start leaves no mark.
func (m *startMark) openMarkForStage() (*os.File, error) {
	if m == nil {
		return nil, nil
	}
	f, err := openStartMarkFile(m.startedProcess.startRequest, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) && m.startedProcess.cgroup != nil {
		f, err = os.Open(m.startedProcess.cgroup.path)
	}
	if err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("open the mark of the start: %w", err))
	}
	return f, nil
}

// removeStartMark removes the mark of a start whose processes have all ended. The mark on a cgroup is removed with the cgroup, or
// here if the host owns the cgroup. It is not removed there if p is not the owner of the task: a later start has replaced it.
func removeStartMark(p *ProcessWithoutExec) error {
	if !usesStartMark(p.startRequest) {
		return nil
	}
	if p.cgroup != nil && p.cgroup.isManagedByHost && p.isTaskOwner() {
		if err := startmark.Remove(p.cgroup.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return removeStartMarkFile(p.startRequest)
}

// startMarkFilePath returns the path of the file with the mark of a start, relative to dir, the directory of the task. The task
// cannot change the file, unless it runs as the user of the agent.
func startMarkFilePath(dir *os.Root, start *sdk.StartRequest) string {
	name := "start-" + path.Base(start.ID)
	if info, err := dir.Stat("private"); err == nil && info.IsDir() {
		return "private/" + name
	}
	return "." + name
}

func openStartMarkFile(start *sdk.StartRequest, flags int) (*os.File, error) {
	dir, err := os.OpenRoot(start.TaskDir())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.OpenFile(startMarkFilePath(dir, start), flags, 0o600)
}

func removeStartMarkFile(start *sdk.StartRequest) error {
	dir, err := os.OpenRoot(start.TaskDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := dir.Remove(startMarkFilePath(dir, start)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// findStartMark returns the mark of a start, from a cgroup of the task or from the file, or nil if the start has left none.
func findStartMark(start *sdk.StartRequest) (*startMarkData, error) {
	// The result of possibleTaskCgroupPaths is not sufficient: without root, it depends on the cgroup of this process,
	// and the process that wrote the mark may have been in another one.
	cgroups, err := osprocess.TaskCgroups(start.AllocID, start.Name)
	if err != nil {
		return nil, err
	}
	if dir := (&ProcessWithoutExec{startRequest: start}).hostMadeCgroupDir(); dir != "" {
		cgroups = append(cgroups, osprocess.Cgroup(dir))
	}
	for _, cgroup := range cgroups {
		f, err := os.Open(string(cgroup))
		if err == nil {
			var mark *startMarkData
			if mark, err = readAndCloseStartMark(f, start.ID); mark != nil {
				return mark, nil
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	f, err := openStartMarkFile(start, os.O_RDONLY)
	if err == nil {
		var mark *startMarkData
		if mark, err = readAndCloseStartMark(f, start.ID); mark != nil {
			return mark, nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return nil, err
}

const (
	markReadAttempts = 5
	markReadDelay    = 200 * time.Millisecond
)

// findStartMarkWithRetry returns the mark of a start, or nil if the start has left none. The error is marked by
// [sdk.Recoverable] if this process had no resources to read the mark, or if ctx is done. Any other error is permanent:
// there is a mark that cannot be read, so the start counts as executed.
func findStartMarkWithRetry(ctx context.Context, start *sdk.StartRequest) (*startMarkData, error) {
	for attempt := 1; ; attempt++ {
		mark, err := findStartMark(start)
		switch {
		case err == nil:
			return mark, nil
		case osprocess.IsResourceExhausted(err):
			return nil, sdk.Recoverable(fmt.Errorf("read the mark of the start: %w", err))
		case errors.Is(err, startmark.ErrDamaged) || attempt == markReadAttempts:
			return nil, fmt.Errorf("exit status unknown: read the mark of the start of task %q: %w", start.Name, err)
		}
		select {
		case <-time.After(markReadDelay):
		case <-ctx.Done():
			return nil, sdk.Recoverable(fmt.Errorf("read the mark of the start: %w", errors.Join(context.Cause(ctx), err)))
		}
	}
}

// readAndCloseStartMark reads the mark of a cgroup or a file, which it closes. It returns nil for the mark of another
// start.
func readAndCloseStartMark(f *os.File, startID string) (*startMarkData, error) {
	defer f.Close()
	mark, err := startmark.Read(f)
	if err != nil {
		return nil, err
	}
	data := &startMarkData{}
	if err := hclspec.UnmarshalState(mark.Data, data); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", f.Name(), startmark.ErrDamaged, err)
	}
	if data.StartID != startID {
		return nil, nil
	}
	if !mark.Forked {
		data.State.PID, data.State.StartTime = 0, 0
	}
	return data, nil
}

// Adopt finds the process of a start during which the plugin process died. It implements the
// contract of [sdk.Adopter]: the process that [Start] has forked is found by the mark that Start writes before the fork.
func Adopt(ctx context.Context, start *sdk.StartRequest) (*Process, error) {
	p, err := AdoptWithoutExec(ctx, start)
	if err != nil {
		return nil, err
	}
	return NewProcess(p, nil), nil
}

// AdoptTask is [AdoptWithoutExec] for a driver that makes its task from the ProcessWithoutExec, by newTask. If newTask returns an error,
// AdoptTask leaves the process unchanged, and returns the error marked by [sdk.Recoverable]: the host calls
// again, and loses neither a running task nor its exit status.
func AdoptTask[T any](ctx context.Context, start *sdk.StartRequest, newTask func(*ProcessWithoutExec) (T, error)) (T, error) {
	var none T
	p, err := AdoptWithoutExec(ctx, start)
	if err != nil {
		return none, err
	}
	task, err := newTask(p)
	if err != nil {
		abandonAdoption(p)
		return none, sdk.Recoverable(fmt.Errorf("adopt process %d of task %q, which this driver has started: %w", p.processID.PID, start.Name, err))
	}
	return task, nil
}

// abandonAdoption releases p without a change to its process, so that a later call can adopt the process.
func abandonAdoption(p *ProcessWithoutExec) {
	p.pidReleaseMu.Lock()
	defer p.pidReleaseMu.Unlock()
	p.isPIDReleased = true
	if p.pidfd != nil {
		p.pidfd.Close()
	}
	p.releaseTaskOwnership(nil)
}

// NewProcess returns a Process for an adopted task, whose Exec starts commands by the launcher. l is nil if the task was
// started without a Command.Launcher.
func NewProcess(p *ProcessWithoutExec, l Launcher) *Process {
	p.launcher = l
	return &Process{p}
}

// AdoptWithoutExec is [Adopt] for a task that runs no other commands.
func AdoptWithoutExec(ctx context.Context, start *sdk.StartRequest) (*ProcessWithoutExec, error) {
	mark, err := findStartMarkWithRetry(ctx, start)
	if err != nil {
		return nil, err
	}
	if mark == nil {
		return nil, sdk.ErrNotExecuted
	}
	var main osprocess.ID
	nothingExecuted := mark.State.PID == 0 && mark.StageWaitsForMark
	if mark.State.PID == 0 && !mark.StageWaitsForMark {
		if main, nothingExecuted, err = findUnrecordedProcess(ctx, start, mark); err != nil {
			return nil, sdk.Recoverable(err)
		}
	}
	if nothingExecuted {
		// A stage that is still running exits by itself, because the pipe of its plugin process is closed, and executes
		// nothing.
		if _, err := osprocess.EndLeftovers(ctx, start.AllocID, start.Name); err != nil {
			return nil, sdk.Recoverable(err)
		}
		if err := removeStartMarkFile(start); err != nil {
			return nil, sdk.Recoverable(err)
		}
		return nil, sdk.ErrNotExecuted
	}
	if mark.State.PID == 0 {
		if main.PID == 0 {
			return nil, fmt.Errorf("%w: the driver exited while it started task %q", ErrExitStatusUnknown, start.Name)
		}
		mark.State.PID, mark.State.StartTime = main.PID, main.StartTime
	}
	p, err := findProcessAndBecomeOwner(ctx, start, mark.State)
	if errors.Is(err, ErrExitStatusUnknown) {
		if p != nil {
			p.releaseTaskOwnership(nil)
		}
		return nil, err // the host destroys the start after it has stored that its exit status is unknown
	}
	return p, err
}

// findUnrecordedProcess returns the process of a start whose mark does not name it, or the zero value if that cannot be
// determined. The process was forked after the mark was written, before every other process of the task, and with a
// session of its own. So it is the oldest of the session leaders of the task, of which the keeper knows those that have
// ended. If the oldest one has ended and may belong to another task, the process cannot be determined. nothingExecuted
// means that no program of the task was executed.
func findUnrecordedProcess(ctx context.Context, start *sdk.StartRequest, mark *startMarkData) (main osprocess.ID, nothingExecuted bool, err error) {
	// The keeper is asked last, because the kernel has a process until the keeper reaps it.
	candidates, found, err := findSessionLeaders(start, mark)
	if err != nil {
		return osprocess.ID{}, false, err
	}
	ended, complete, err := findEndedSessionLeaders(ctx, mark)
	if err != nil {
		return osprocess.ID{}, false, err
	}
	candidates = append(candidates, ended...)
	if complete {
		candidates = slices.DeleteFunc(candidates, func(p taskProcess) bool { return !p.hasExecuted })
		if len(candidates) == 0 && found > 0 {
			return osprocess.ID{}, false, fmt.Errorf("the process of task %q has not executed its program yet, or is exiting", start.Name)
		}
	}
	if len(candidates) == 0 {
		return osprocess.ID{}, complete, nil
	}
	oldest := slices.MinFunc(candidates, func(a, b taskProcess) int {
		switch {
		case a.StartTime != b.StartTime:
			return cmp.Compare(a.StartTime, b.StartTime)
		case a.PID == b.PID:
			return 0
		case osprocess.IsEarlierPID(a.PID, b.PID):
			return -1
		}
		return 1
	})
	if oldest.mayBeOfAnotherTask {
		return osprocess.ID{}, false, nil
	}
	return oldest.ID, false, nil
}

// taskProcess is a process that belongs to a task, or may belong to it.
type taskProcess struct {
	osprocess.ID
	hasExecuted        bool // it has executed a program since its fork
	mayBeOfAnotherTask bool
}

// findSessionLeaders returns the session leaders that were not reaped and can be the process of a start: those in the
// task's cgroup or, without one, those that have the task's names in their environment. The parent of the process has died, so
// no other process of the task is its parent. Only a cgroup of version 2 also has the processes that have ended. found is the
// number of the task's processes, session leaders or not.
func findSessionLeaders(start *sdk.StartRequest, mark *startMarkData) (leaders []taskProcess, found int, err error) {
	var pids []int
	switch {
	case mark.CgroupV2 != "":
		pids, err = osprocess.FindInCgroupV2(mark.CgroupV2)
	case mark.State.Cgroup != "":
		pids, err = osprocess.Cgroup(mark.State.Cgroup).PIDs()
	default:
		var found []osprocess.ID
		found, err = osprocess.FindByTaskEnv(start.AllocID, start.Name)
		for _, p := range found {
			pids = append(pids, p.PID)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	for _, pid := range pids {
		st, err := osprocess.ReadStat(pid)
		switch {
		case errors.Is(err, os.ErrProcessDone):
		case err != nil:
			return nil, 0, err
		case st.Session != pid, st.Ended() && mark.CgroupV2 == "", st.StartTime < mark.OldestStartTimeTicks, slices.Contains(pids, st.PPID):
		default:
			leaders = append(leaders, taskProcess{ID: osprocess.ID{PID: pid, StartTime: st.StartTime}, hasExecuted: st.Executed})
		}
	}
	return leaders, len(pids), nil
}

// findEndedSessionLeaders returns the session leaders that have ended and can be the process of a start, from the
// keeper. Only a cgroup of version 2 tells whether one belongs to the task: in version 1, a process that has ended
// is in no cgroup. Without a keeper, or if the keeper cannot tell, the result is empty. complete means that the process is in
// the result if it has executed a program and was reaped.
func findEndedSessionLeaders(ctx context.Context, mark *startMarkData) (leaders []taskProcess, complete bool, err error) {
	ended, completeForChildrenOf, err := askKeeperForEndedSessionLeaders(ctx, mark.OldestStartTimeTicks)
	switch {
	case ctx.Err() != nil:
		return nil, false, context.Cause(ctx) // the next host calls again
	case osprocess.IsResourceExhausted(err):
		return nil, false, err
	case err != nil:
		return nil, false, nil
	}
	for _, e := range ended {
		switch {
		case e.Process.StartTime == mark.OldestStartTimeTicks && mark.LastPID != 0 && !osprocess.IsEarlierPID(mark.LastPID, e.Process.PID):
			// e is older than the mark, so it is no process of this start.
		case mark.CgroupV2 == "":
			leaders = append(leaders, taskProcess{e.Process, true, true})
		case slices.Contains(strings.Split(e.Cgroup, "/"), mark.CgroupV2):
			leaders = append(leaders, taskProcess{e.Process, true, false})
		}
	}
	return leaders, mark.CgroupV2 != "" && completeForChildrenOf != 0 && completeForChildrenOf == mark.ParentPID, nil
}
