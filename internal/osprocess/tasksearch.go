//go:build linux

package osprocess

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// TaskSearch describes where [FindTaskProcesses] looks for the processes of tasks. The zero value finds them by cgroup and environment.
type TaskSearch struct {
	// IncludesAlloc reports whether the search is for the tasks of an allocation; nil means all allocations.
	IncludesAlloc func(allocID string) bool
	// AllocDirRoot is the directory that has the directories of the allocations; "" means that no process is found by its root directory.
	AllocDirRoot string
	// MainProcesses are recorded main processes of tasks, each of which was started in a session of its own.
	MainProcesses map[ID]TaskEnvID
	// IsTrustedParent reports whether the process pid gives its descendants their environment, such as a keeper; nil means that no process does.
	IsTrustedParent func(pid int) bool
}

// FindTaskProcesses returns the living processes of tasks, except the calling process, in one pass over the processes of the
// machine. A process belongs to the first task that one of these names: its cgroup, its root directory (the directory of a task, or
// a directory below it), its session, and last the environment that it was started with, which another account can forge: of a
// process with another user id than this one, the environment counts only below a trusted parent, and in the session of a recorded
// process that has ended. With an error processes can be missing: see [IsResourceExhausted].
func FindTaskProcesses(s TaskSearch) (map[TaskEnvID][]ID, error) {
	byCgroup, cgroupErr := s.findByCgroup()
	taskDirs, dirsErr := s.findTaskDirs()
	sessions := make(map[int]mainProcess, len(s.MainProcesses))
	for p, task := range s.MainProcesses {
		sessions[p.PID] = mainProcess{p, task}
	}
	found := make(map[TaskEnvID][]ID)
	passErr := forEachProcess(func(p ID, st Stat) error {
		if st.Ended() {
			return nil
		}
		task, ok := byCgroup[p]
		if !ok {
			task, ok = taskDirs.taskOfRoot(p.PID, st)
		}
		main, hasMain := sessions[st.Session]
		inSession := hasMain && st.StartTime >= main.StartTime
		if !ok && inSession && main.exists() {
			task, ok = main.task, true
		}
		if !ok {
			env, err := ReadEnv(p.PID)
			if errors.Is(err, fs.ErrPermission) || err != nil && nilIfNotExist(err) == nil {
				return nil
			}
			if err != nil {
				return err
			}
			if task, ok = parseTaskEnvID(env); ok && !(inSession && main.task == task) {
				ok = isEnvTrusted(p.PID, s.IsTrustedParent)
			}
		}
		if ok && s.includes(task.AllocID) {
			found[task] = append(found[task], p)
		}
		return nil
	})
	return found, errors.Join(cgroupErr, dirsErr, passErr)
}

func (s *TaskSearch) includes(allocID string) bool {
	return s.IncludesAlloc == nil || s.IncludesAlloc(allocID)
}

// mainProcess is the recorded main process of a task.
type mainProcess struct {
	ID
	task TaskEnvID
}

// exists reports whether the process exists, also as a zombie, so that the kernel has not reused the id of its session.
func (m mainProcess) exists() bool {
	now, err := LookupID(m.PID)
	return err == nil && now == m.ID
}

// KillTaskProcesses kills the processes that [FindTaskProcesses] finds, and those that they start meanwhile, until there is none. It
// returns the processes that it has found. With an error processes can still run.
func KillTaskProcesses(ctx context.Context, s TaskSearch) (killed map[TaskEnvID][]ID, err error) {
	killed = make(map[TaskEnvID][]ID)
	err = killUntilNone(ctx, func() (all []ID, err error) {
		found, err := FindTaskProcesses(s)
		for task, processes := range found {
			all = append(all, processes...)
			for _, p := range processes {
				if !slices.Contains(killed[task], p) {
					killed[task] = append(killed[task], p)
				}
			}
		}
		if len(all) == 0 {
			return nil, err
		}
		// A cgroup is killed as a whole, so that a process that forks all the time does not escape.
		groups, groupsErr := s.findCgroups()
		err = errors.Join(err, groupsErr)
		for group := range groups {
			err = errors.Join(err, group.Kill(ctx))
		}
		return all, err
	})
	return killed, err
}

// findByCgroup returns the processes in the cgroups of tasks.
func (s *TaskSearch) findByCgroup() (map[ID]TaskEnvID, error) {
	groups, err := s.findCgroups()
	errs := []error{err}
	tasks := make(map[ID]TaskEnvID)
	for group, task := range groups {
		processes, err := group.processes()
		errs = append(errs, err)
		for _, p := range processes {
			tasks[p] = task
		}
	}
	return tasks, errors.Join(errs...)
}

// findCgroups returns the cgroups of tasks, in all hierarchies.
func (s *TaskSearch) findCgroups() (map[Cgroup]TaskEnvID, error) {
	parents, err := TaskCgroupParents()
	errs := []error{err}
	found := make(map[Cgroup]TaskEnvID)
	for _, parent := range parents {
		groups, err := readDirIfAllowed(parent)
		errs = append(errs, err)
		for _, group := range groups {
			name := group.Name()
			if strings.HasSuffix(parent, ".slice") {
				name = strings.TrimSuffix(name, ".scope")
			}
			allocID, task, ok := strings.Cut(name, ".")
			if ok && allocID != "" && task != "" && group.IsDir() && s.includes(allocID) {
				found[Cgroup(path.Join(parent, group.Name()))] = TaskEnvID{allocID, task}
			}
		}
	}
	return found, errors.Join(errs...)
}

// processes returns the processes in the cgroup and in its descendants, except the calling process. With an error some can be missing.
func (c Cgroup) processes() (processes []ID, err error) {
	// The start times are read between two reads of the cgroup's list: a pid in both
	// lists was not reused in between.
	pids, err := c.PIDs()
	errs := []error{err}
	if len(pids) == 0 {
		return nil, err
	}
	candidates := make(map[int]ID)
	for _, pid := range pids {
		p, err := LookupID(pid)
		errs = append(errs, nilIfNotExist(err))
		if err == nil {
			candidates[pid] = p
		}
	}
	pids, err = c.PIDs()
	errs = append(errs, err)
	for _, pid := range pids {
		if p, ok := candidates[pid]; ok {
			processes = append(processes, p)
		}
	}
	return processes, errors.Join(errs...)
}

// fileID identifies a directory, whatever the mount through which a process sees it.
type fileID struct{ device, inode uint64 }

// taskDirs are the directories of tasks.
type taskDirs struct {
	root  string // directory of all allocations, as the kernel shows it in links of /proc; "" if there is none
	tasks map[fileID]TaskEnvID
}

func (s *TaskSearch) findTaskDirs() (dirs taskDirs, err error) {
	dirs.tasks = make(map[fileID]TaskEnvID)
	if s.AllocDirRoot == "" {
		return dirs, nil
	}
	f, err := os.Open(s.AllocDirRoot)
	if err != nil {
		return dirs, nilIfNotExist(err)
	}
	defer f.Close()
	if dirs.root, err = os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd()))); err != nil {
		return dirs, err
	}
	var own unix.Stat_t
	if err := unix.Stat("/", &own); err != nil {
		return dirs, err
	}
	ownRoot := fileID{own.Dev, own.Ino} // every process of the machine has it, also if it is mounted on the directory of a task
	allocs, err := f.ReadDir(-1)
	errs := []error{err}
	for _, alloc := range allocs {
		if !s.includes(alloc.Name()) {
			continue
		}
		entries, err := readDirIfAllowed(path.Join(s.AllocDirRoot, alloc.Name()))
		errs = append(errs, err)
		for _, e := range entries {
			var st unix.Stat_t
			if e.IsDir() && e.Name() != sharedAllocDir && unix.Lstat(path.Join(s.AllocDirRoot, alloc.Name(), e.Name()), &st) == nil {
				dirs.tasks[fileID{st.Dev, st.Ino}] = TaskEnvID{alloc.Name(), e.Name()}
			}
		}
	}
	delete(dirs.tasks, ownRoot)
	return dirs, errors.Join(errs...)
}

// sharedAllocDir is the directory in the directory of an allocation that its tasks share.
const sharedAllocDir = "alloc"

// taskOfRoot returns the task whose directory is the root directory of a process, or has it below.
func (d *taskDirs) taskOfRoot(pid int, st Stat) (task TaskEnvID, ok bool) {
	if d.root == "" {
		return TaskEnvID{}, false
	}
	for _, dir := range threadDirs(pid, st) {
		// After pivot_root the link is "/", but the root is the same directory. After a chroot within the task the directory is
		// another one, but the link shows its path, unless the task has a mount namespace of its own.
		var root unix.Stat_t
		if unix.Stat(dir+"/root", &root) != nil {
			continue // it is unreadable for this user, or the thread has exited
		}
		if task, ok = d.tasks[fileID{root.Dev, root.Ino}]; ok {
			return task, true
		}
		link, err := os.Readlink(dir + "/root")
		rest, below := strings.CutPrefix(link, d.root+"/")
		if err != nil || !below {
			return TaskEnvID{}, false
		}
		allocID, rest, _ := strings.Cut(rest, "/")
		name, _, _ := strings.Cut(rest, "/")
		return TaskEnvID{allocID, name}, name != "" && name != sharedAllocDir
	}
	return TaskEnvID{}, false
}

// threadDirs returns the directory of a process in /proc. If the first thread of the process has exited before the others, most files
// there are unreadable, and it returns those of the other threads.
func threadDirs(pid int, st Stat) (dirs []string) {
	dir := "/proc/" + strconv.Itoa(pid)
	if st.State != 'Z' {
		return []string{dir}
	}
	threads, err := os.ReadDir(dir + "/task")
	if err != nil {
		return nil
	}
	for _, thread := range threads {
		if thread.Name() != strconv.Itoa(pid) {
			dirs = append(dirs, dir+"/task/"+thread.Name())
		}
	}
	return dirs
}

// isEnvTrusted reports whether another account cannot have chosen the environment of a process: all user ids of the process are those of
// this process, or one of its ancestors is a trusted parent. With a set-user-ID program, only some of the ids are.
func isEnvTrusted(pid int, isTrustedParent func(pid int) bool) bool {
	if HasUserOfThisProcess(pid) {
		return true
	}
	if isTrustedParent == nil {
		return false
	}
	for {
		st, err := ReadStat(pid)
		if err != nil || st.PPID <= 1 {
			return false
		}
		if pid = st.PPID; isTrustedParent(pid) {
			return true
		}
	}
}

// userIDs returns the real, effective, saved and file system user ids of a process.
func userIDs(pid int) (ids []int, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 5 || fields[0] != "Uid:" {
			continue
		}
		for _, field := range fields[1:] {
			id, err := strconv.Atoi(field)
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
		return ids, nil
	}
	return nil, fmt.Errorf("process %d has no user ids in its status", pid)
}

// HasUserOfThisProcess reports whether all user ids of the process pid are the effective one of this process.
func HasUserOfThisProcess(pid int) bool {
	own := os.Geteuid()
	ids, err := userIDs(pid)
	return err == nil && !slices.ContainsFunc(ids, func(id int) bool { return id != own })
}

// forEachProcess calls visit for each process, zombies included, except the calling process, until visit returns an error. With an
// error processes can be missing.
func forEachProcess(visit func(p ID, st Stat) error) error {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("find processes: %w", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The ID is read before other files of the process, so that Signal to a later process with the
		// same pid fails.
		st, err := ReadStat(pid)
		if err == nil {
			err = visit(ID{PID: pid, StartTime: st.StartTime}, st)
		}
		if err := nilIfNotExist(err); err != nil {
			return fmt.Errorf("find processes: %w", err)
		}
	}
	return nil
}
