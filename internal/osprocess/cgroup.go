//go:build linux

package osprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// CgroupMount is the mount point of cgroups.
const CgroupMount = "/sys/fs/cgroup"

// Cgroup is the directory of a cgroup of version 1 or 2.
type Cgroup string

// OwnCgroup returns the path of the cgroup of version 2 that this process is in, relative to the mount point, such as
// /system.slice/x.service. It is empty if the process is in no cgroup of version 2.
func OwnCgroup() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	return parseOwnCgroup(string(text)), err
}

// CgroupV2Of returns the path of the cgroup of version 2 that a process is in, as OwnCgroup does. A process that has ended
// and was not reaped is in its last cgroup. The error is os.ErrProcessDone if there is no process.
func CgroupV2Of(pid int) (string, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return "", os.ErrProcessDone
	}
	return parseOwnCgroup(string(text)), err
}

// FindInCgroupV2 returns the processes in the cgroup of version 2 with this name, wherever it is, and in its descendants. Unlike
// [Cgroup.PIDs], it includes processes that are exiting, and those that have ended and were not reaped. With an error
// processes can be missing.
func FindInCgroupV2(name string) (pids []int, err error) {
	err = forEachProcess(func(p ID, _ Stat) error {
		cgroup, err := CgroupV2Of(p.PID)
		if slices.Contains(strings.Split(cgroup, "/"), name) {
			pids = append(pids, p.PID)
		}
		return nilIfNotExist(err)
	})
	return pids, err
}

func parseOwnCgroup(text string) string {
	for line := range strings.Lines(text) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path
		}
	}
	return ""
}

// FindCgroups returns the version of the cgroups that this process can make for tasks: 1 also for a machine with both
// versions, as in Nomad's drivers, and 0, with the reason, if there are none. For version 2, base is the cgroup below which
// it can make others: mount, where the hierarchy is mounted, or the cgroup that is delegated to a user other than root.
func FindCgroups(mount string) (version int, base, reason string) {
	var fs unix.Statfs_t
	if err := unix.Statfs(mount, &fs); err != nil {
		return 0, "", fmt.Sprintf("this machine has no cgroups at %s: %v", mount, err)
	}
	switch isRoot := os.Geteuid() == 0; {
	case fs.Type == unix.CGROUP2_SUPER_MAGIC && isRoot:
		return 2, mount, ""
	case fs.Type == unix.CGROUP2_SUPER_MAGIC:
		if base, reason = delegatedCgroup(mount); base == "" {
			return 0, "", reason
		}
		return 2, base, ""
	case fs.Type == unix.TMPFS_MAGIC && isRoot:
		return 1, "", ""
	case fs.Type == unix.TMPFS_MAGIC:
		return 0, "", "only root can make cgroups of version 1"
	}
	return 0, "", "there is no cgroup file system at " + mount
}

// delegatedCgroup returns the cgroup of version 2 that is delegated to the user of this process: the cgroup of the
// process, or its parent, which systemd marks if the process runs in a subgroup (DelegateSubgroup=). If no cgroup is
// delegated, it returns the reason. mount is the mount point of the cgroups.
func delegatedCgroup(mount string) (cgroup, reason string) {
	own, err := OwnCgroup()
	if err != nil {
		return "", err.Error()
	}
	if own == "" || own == "/" {
		return "", "the agent is not root, and in no cgroup that could be delegated to it: start it in a systemd unit with Delegate=yes"
	}
	dir := path.Join(mount, own)
	above := path.Dir(dir)
	if n, err := unix.Getxattr(above, "user.delegate", make([]byte, 1)); err == nil && n == 1 && isWritable(above) {
		return above, ""
	}
	if !isWritable(dir) {
		return "", fmt.Sprintf("the agent is not root, and its cgroup %s is not delegated to it: start it in a systemd unit with Delegate=yes", own)
	}
	return dir, ""
}

func isWritable(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

// TaskCgroups returns the existing cgroups of a task, in all hierarchies, regardless of the
// driver or agent that made them. With an error some can be missing.
func TaskCgroups(allocID, task string) ([]Cgroup, error) {
	name := allocID + "." + task
	if allocID == "" || task == "" || strings.Contains(name, "/") {
		return nil, nil
	}
	parents, err := TaskCgroupParents()
	errs := []error{err}
	var cgroups []Cgroup
	for _, parent := range parents {
		for _, suffix := range []string{"", ".scope"} {
			path := path.Join(parent, name+suffix)
			exists, err := isDir(path)
			errs = append(errs, err)
			if exists {
				cgroups = append(cgroups, Cgroup(path))
			}
		}
	}
	return cgroups, errors.Join(errs...)
}

// TaskCgroupParents returns the directories that contain cgroups of tasks, a parent before
// its children. It omits directories that this user must not read. With any other error
// some can be missing.
func TaskCgroupParents() ([]string, error) {
	hierarchies, err := readDirIfAllowed(CgroupMount)
	errs := []error{err}
	var parents []string
	recorded := RecordedCgroupParents()
	for _, parent := range append([]string{"nomad"}, recorded...) {
		for _, below := range []string{parent, parent + "/reserve"} { // cgroup version 1
			for _, hierarchy := range hierarchies {
				path := path.Join(CgroupMount, hierarchy.Name(), below)
				exists, err := isDir(path)
				errs = append(errs, err)
				if exists {
					parents = append(parents, path)
				}
			}
		}
	}
	var fsStat unix.Statfs_t
	if err := unix.Statfs(CgroupMount, &fsStat); err != nil || fsStat.Type != unix.CGROUP2_SUPER_MAGIC {
		errs = append(errs, nilIfNotExist(err))
		return parents, errors.Join(errs...)
	}
	for _, parent := range recorded {
		dir := path.Join(CgroupMount, parent)
		if exists, err := isDir(dir); err != nil || !exists {
			errs = append(errs, err)
			continue
		}
		dirs, err := slicesBelow(dir)
		parents, errs = append(parents, dirs...), append(errs, err)
	}
	// Without root, the cgroups of tasks are below the cgroup that is delegated to the
	// agent, which may have been another one for an earlier agent. Therefore the whole tree
	// is searched.
	top := CgroupMount
	if os.Geteuid() == 0 {
		top = path.Join(CgroupMount, "nomad.slice")
	}
	errs = append(errs, fs.WalkDir(os.DirFS(top), ".", func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return nilIfNotExist(err)
		}
		dir := path.Join(top, name)
		if !d.IsDir() || path.Base(dir) != "nomad.slice" {
			return nil
		}
		dirs, err := slicesBelow(dir)
		parents = append(parents, dirs...)
		if err != nil {
			return err
		}
		return fs.SkipDir
	}))
	return parents, errors.Join(errs...)
}

// readDirIfAllowed returns the entries of a kernel directory. It returns none if the directory does
// not exist or if this user must not read it.
func readDirIfAllowed(dir string) ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrPermission) {
		return entries, nil
	}
	return entries, nilIfNotExist(err)
}

// isDir reports whether a directory exists and is visible to this user.
func isDir(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrPermission) {
		return false, nil
	}
	return err == nil && info.IsDir(), nilIfNotExist(err)
}

// nilIfNotExist returns nil if err, from reading a kernel file, means that the process or
// the cgroup does not exist. It returns any other err: see [IsResourceExhausted].
func nilIfNotExist(err error) error {
	for _, gone := range []error{fs.ErrNotExist, os.ErrProcessDone, unix.ESRCH, unix.ENODEV, unix.ENOTDIR} {
		if errors.Is(err, gone) {
			return nil
		}
	}
	return err
}

// PIDs returns the processes in the cgroup and in its descendants, except the calling
// process. With an error some can be missing. A cgroup that does not exist has none.
func (c Cgroup) PIDs() ([]int, error) {
	dirs, err := c.Tree()
	pids, pidsErr := PIDsInCgroups(dirs)
	return pids, errors.Join(err, pidsErr)
}

// PIDsInCgroups returns the processes in the cgroups themselves, except the calling process. With an error some can be
// missing. A cgroup that does not exist has none.
func PIDsInCgroups(dirs []Cgroup) ([]int, error) {
	var errs []error
	var pids []int
	var buf [1024]byte
	for _, dir := range dirs {
		text, err := ReadSmallFile(path.Join(string(dir), "cgroup.procs"), buf[:])
		if err != nil {
			// A threaded cgroup has no list of processes: they are in the list of a cgroup
			// above it.
			if !errors.Is(err, unix.EOPNOTSUPP) {
				errs = append(errs, nilIfNotExist(err))
			}
			continue
		}
		for field := range bytes.FieldsSeq(text) {
			if pid, err := strconv.Atoi(string(field)); err == nil && pid > 0 && pid != os.Getpid() {
				pids = append(pids, pid)
			}
		}
	}
	return pids, errors.Join(errs...)
}

// Tree returns the cgroup and its descendants, a parent before its children. With an
// error some can be missing.
func (c Cgroup) Tree() ([]Cgroup, error) {
	dirs := []Cgroup{c}
	var errs []error
	for i := 0; i < len(dirs); i++ {
		// A directory with a link count of 2 has no children, and need not be read.
		var st unix.Stat_t
		if err := unix.Stat(string(dirs[i]), &st); err != nil {
			errs = append(errs, nilIfNotExist(err))
			continue
		}
		if st.Nlink <= 2 {
			continue
		}
		entries, err := os.ReadDir(string(dirs[i]))
		errs = append(errs, nilIfNotExist(err))
		for _, e := range entries {
			if e.IsDir() {
				dirs = append(dirs, Cgroup(path.Join(string(dirs[i]), e.Name())))
			}
		}
	}
	return dirs, errors.Join(errs...)
}

// Kill kills all processes in the cgroup and in its descendants, and returns when
// there are none. A cgroup that does not exist has none. With an error processes can
// still run.
func (c Cgroup) Kill(ctx context.Context) error {
	for delay := 50 * time.Microsecond; ; delay = min(2*delay, 20*time.Millisecond) {
		pids, err := c.PIDs()
		if err == nil && len(pids) == 0 {
			return nil
		}
		opcount.Count(opcount.Cgroup)
		if os.WriteFile(path.Join(string(c), "cgroup.kill"), []byte("1"), 0) != nil {
			c.killWithoutCgroupKill()
		}
		if err != nil {
			return fmt.Errorf("find processes in %s: %w", c, err)
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return fmt.Errorf("end processes %v in %s: %w", pids, c, ctx.Err())
		}
	}
}

// killWithoutCgroupKill kills the processes of a cgroup that has no file cgroup.kill:
// cgroups v1 and old kernels. It freezes the cgroup, because a frozen process cannot fork;
// if there is no freezer, or a thread of this process is in the cgroup, Kill repeats the call.
func (c Cgroup) killWithoutCgroupKill() {
	lock, release := acquireFreezerLock(c)
	defer release()
	lock.Lock()
	defer lock.Unlock()
	if !c.hasOwnThread() {
		c.setFreezerState("FROZEN")
		defer c.setFreezerState("THAWED")
	}
	fds := map[int]*Pidfd{}
	pids, _ := c.PIDs() // Kill reports the error
	for _, pid := range pids {
		fd, err := OpenPidfd(pid)
		if err == nil {
			defer fd.Close()
		}
		if !errors.Is(err, os.ErrProcessDone) {
			fds[pid] = fd // fd is nil if the kernel has no pidfds
		}
	}
	// The pids are read again after the pidfds were opened: a pid that is still in the
	// cgroup was not reused by a process of another task.
	pids, _ = c.PIDs()
	for _, pid := range pids {
		fd, open := fds[pid]
		switch {
		case fd != nil:
			fd.Signal(unix.SIGKILL)
		case open:
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

func (c Cgroup) setFreezerState(state string) {
	file := path.Join(string(c), "freezer.state")
	opcount.Count(opcount.Cgroup)
	if os.WriteFile(file, []byte(state), 0) != nil {
		return // the cgroup has no freezer: it is in another hierarchy of version 1, or of version 2
	}
	for range 50 {
		now, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(now)) == state {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// Remove removes the cgroup, its descendants and, in version 2, its empty parents. The
// cgroup must have no processes. In version 1 the parents stay, as in Nomad: a task has
// parents in each hierarchy, and creating them for each start would be slow.
func (c Cgroup) Remove() error {
	for delay := 50 * time.Microsecond; ; delay *= 2 {
		opcount.Count(opcount.Cgroup)
		err := unix.Rmdir(string(c))
		if err == nil || err == unix.ENOENT {
			break
		}
		if delay > 200*time.Millisecond {
			return &os.PathError{Op: "remove cgroup", Path: string(c), Err: err}
		}
		tree, _ := c.Tree() // the error of Tree is ignored: if a child is missing in tree, Rmdir of the cgroup fails
		descendants := tree[1:]
		for _, dir := range slices.Backward(descendants) {
			opcount.Count(opcount.Cgroup)
			unix.Rmdir(string(dir))
		}
		if len(descendants) == 0 {
			time.Sleep(delay) // a process that has ended stays in the cgroup for a short time
		}
	}
	parent := path.Dir(string(c))
	if strings.HasSuffix(path.Dir(parent), "/nomad.slice") && unix.Rmdir(parent) == nil {
		unix.Rmdir(path.Dir(parent))
	}
	return nil
}
