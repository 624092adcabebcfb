package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"time"

	"github.com/nomad-lite/nomad-lite/hclspec"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// startMarkData is the data of the mark that a start writes before it forks. If the driver exits during the start, the next
// process of the driver finds the start's process by the mark: see [Adopt]. The mark is an attribute of the task's cgroup
// or, if that fails, a file.
type startMarkData struct {
	StartID string `codec:"start_id"`
	State   State  `codec:"process"` // State.PID is 0 in a mark that is not Forked

	// OldestStartTime is the time of the mark, as a process start time: the process of the start is not older.
	OldestStartTime uint64 `codec:"oldest_start_time"`

	// Staged means that a stage executes the program, and only after the mark is Forked.
	Staged bool `codec:"staged"`
}

// usesStartMark reports whether a start leaves a mark: only under nomad-lite, because Nomad requests no Adopt.
func usesStartMark(start *sdk.StartRequest) bool {
	return os.Getenv(keeper.EnvSocket) != "" && start.ID != "" && start.AllocDir != ""
}

// startMark is the mark of a start in progress; nil if the start leaves no mark.
type startMark struct {
	startedCore *Core
	data        startMarkData
}

// newStartMark writes the mark of a start before the fork. Without the mark, the next process of the driver would start
// the task a second time.
func newStartMark(p *Core) (*startMark, error) {
	if !usesStartMark(p.startRequest) {
		return nil, nil
	}
	m := &startMark{startedCore: p, data: startMarkData{StartID: p.startRequest.ID, OldestStartTime: osprocess.StartTimeNow()}}
	return m, m.writeBeforeFork()
}

// recordExecByStage marks the start as Staged.
func (m *startMark) recordExecByStage() error {
	m.data.Staged = true
	return m.writeBeforeFork()
}

func (m *startMark) writeBeforeFork() error {
	if err := m.writeMark(); err != nil {
		return sdk.Recoverable(fmt.Errorf("mark the start of task %q: %w", m.startedCore.startRequest.Name, err))
	}
	return nil
}

// recordFork marks the start as Forked, and adds the process to the mark. A stage executes the program only afterwards.
func (m *startMark) recordFork() error {
	if m == nil {
		return nil
	}
	if err := m.writeMark(); err != nil {
		return fmt.Errorf("mark the process %d: %w", m.startedCore.processID.PID, err)
	}
	return nil
}

func (m *startMark) writeMark() error {
	m.data.State = m.startedCore.Snapshot()
	data, err := hclspec.MarshalState(m.data)
	if err != nil {
		return err
	}
	mark := osprocess.StartMark{Forked: m.startedCore.processID.PID != 0, Data: data}
	if m.startedCore.cgroup != nil && mark.WriteToCgroup(m.startedCore.cgroup.path) == nil {
		return nil
	}
	f, err := openStartMarkFile(m.startedCore.startRequest, os.O_CREATE|os.O_WRONLY)
	if err != nil {
		return err
	}
	return errors.Join(mark.WriteToFile(f), f.Close())
}

// openForStage opens the cgroup or the file that has the mark, for Program.Mark. It returns nil if the start leaves no mark.
func (m *startMark) openForStage() (*os.File, error) {
	if m == nil {
		return nil, nil
	}
	f, err := openStartMarkFile(m.startedCore.startRequest, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) && m.startedCore.cgroup != nil {
		f, err = os.Open(m.startedCore.cgroup.path)
	}
	if err != nil {
		return nil, sdk.Recoverable(fmt.Errorf("open the mark of the start: %w", err))
	}
	return f, nil
}

// removeStartMark removes the mark of a start whose processes have all ended. The mark on a cgroup is removed with the cgroup, or
// here if the host owns the cgroup. It is not removed there if p is not the owner of the task: a later start has replaced it.
func removeStartMark(p *Core) error {
	if !usesStartMark(p.startRequest) {
		return nil
	}
	if p.cgroup != nil && p.cgroup.isManagedByHost && p.isTaskOwner() {
		if err := osprocess.RemoveStartMark(p.cgroup.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
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
	paths := cgroupPaths(start.AllocID, start.Name)
	if dir := (&Core{startRequest: start}).hostMadeCgroupDir(); dir != "" {
		paths = append(paths, dir)
	}
	for _, cgroup := range paths {
		f, err := os.Open(cgroup)
		if err == nil {
			var mark *startMarkData
			if mark, err = readStartMarkFrom(f, start.ID); mark != nil {
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
		if mark, err = readStartMarkFrom(f, start.ID); mark != nil {
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
		case errors.Is(err, osprocess.ErrStartMarkDamaged) || attempt == markReadAttempts:
			return nil, fmt.Errorf("exit status unknown: read the mark of the start of task %q: %w", start.Name, err)
		}
		select {
		case <-time.After(markReadDelay):
		case <-ctx.Done():
			return nil, sdk.Recoverable(fmt.Errorf("read the mark of the start: %w", errors.Join(context.Cause(ctx), err)))
		}
	}
}

// readStartMarkFrom reads the mark of a cgroup or a file, which it closes. It returns nil for the mark of another start.
func readStartMarkFrom(f *os.File, startID string) (*startMarkData, error) {
	defer f.Close()
	mark, err := osprocess.ReadStartMark(f)
	if err != nil {
		return nil, err
	}
	data := &startMarkData{}
	if err := hclspec.UnmarshalState(mark.Data, data); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", f.Name(), osprocess.ErrStartMarkDamaged, err)
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
	p, err := AdoptCore(ctx, start)
	if err != nil {
		return nil, err
	}
	return NewProcess(p, nil), nil
}

// AdoptTask is [AdoptCore] for a driver that makes its task from the Core, by newTask. If newTask returns an error,
// AdoptTask leaves the process unchanged, and returns the error marked by [sdk.Recoverable]: the host calls
// again, and loses neither a running task nor its exit status.
func AdoptTask[T any](ctx context.Context, start *sdk.StartRequest, newTask func(*Core) (T, error)) (T, error) {
	var none T
	p, err := AdoptCore(ctx, start)
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
func abandonAdoption(p *Core) {
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
func NewProcess(p *Core, l Launcher) *Process {
	p.launcher = l
	return &Process{p}
}

// AdoptCore is [Adopt] for a task that runs no other commands.
func AdoptCore(ctx context.Context, start *sdk.StartRequest) (*Core, error) {
	mark, err := findStartMarkWithRetry(ctx, start)
	if err != nil {
		return nil, err
	}
	if mark == nil {
		return nil, sdk.ErrNotExecuted
	}
	if mark.State.PID == 0 && mark.Staged {
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
		main, err := findUnrecordedProcess(start, mark)
		if err != nil {
			return nil, sdk.Recoverable(err)
		}
		if main.PID == 0 {
			return nil, fmt.Errorf("exit status unknown: the driver exited while it started task %q", start.Name)
		}
		mark.State.PID, mark.State.StartTime = main.PID, main.StartTime
	}
	p, err := findProcessOfState(ctx, start, mark.State)
	if errors.Is(err, errExitStatusUnknown) {
		p.releaseTaskOwnership(nil)
		return nil, err // the host destroys the start after it has stored that its exit status is unknown
	}
	return p, err
}

// findUnrecordedProcess returns the process of a start whose mark does not name it: the oldest session leader in the
// task's cgroup or, without one, of the processes that have the task's names in their environment and are not older than
// the mark. It returns the zero value if there is none.
func findUnrecordedProcess(start *sdk.StartRequest, mark *startMarkData) (main osprocess.ID, err error) {
	var candidates []int
	if mark.State.Cgroup != "" {
		candidates, err = osprocess.Cgroup(mark.State.Cgroup).PIDs()
	} else {
		var found []osprocess.ID
		found, err = osprocess.FindByTaskEnv(start.AllocID, start.Name)
		for _, p := range found {
			candidates = append(candidates, p.PID)
		}
	}
	if err != nil {
		return osprocess.ID{}, err
	}
	slices.Sort(candidates)
	for _, pid := range candidates {
		st, err := osprocess.ReadStat(pid)
		switch {
		case errors.Is(err, os.ErrProcessDone):
		case err != nil:
			return osprocess.ID{}, err
		case st.Session != pid, st.Ended(), st.StartTime < mark.OldestStartTime:
		case main.PID == 0, st.StartTime < main.StartTime:
			main = osprocess.ID{PID: pid, StartTime: st.StartTime}
		}
	}
	return main, nil
}
