package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// TaskDirOptions define how a task's directory is created.
type TaskDirOptions struct {
	SecretsMB int                // secrets/ size in MB; 0 means 1
	Isolation driver.FSIsolation // the task driver's isolation

	// ChrootEnv has the host files for a task with isolation chroot, read-only: path on the host -> path in the task's root
	// directory. ValidateChrootEnv must accept it.
	ChrootEnv map[string]string

	// DriverMountsHostFiles: the driver makes the ChrootEnv mounts, and BuildTaskDir returns them. Otherwise a root agent makes
	// them on the host, below the task's directory.
	DriverMountsHostFiles bool

	// User is the job's user; empty means the default user for drivers with this isolation: the agent's user, or nobody with
	// chroot and unveil. With isolation image the image defines the user, and the directories belong to nobody.
	User string

	// AdmittedUsers are users other than User to whom the task's processes may switch.
	AdmittedUsers []string

	// AllowNomadOpenFileModes allows Nomad's modes where a directory cannot be closed to other
	// accounts: the file system has no owners or no ACLs, or a container may not set
	// them.
	AllowNomadOpenFileModes bool
}

// TaskDir is one task's directory.
type TaskDir struct {
	hook.TaskDir

	// SecretsOnDiskReason is the reason why secrets/ and private/ are plain directories. It
	// is nil when they are in memory.
	SecretsOnDiskReason error

	// MountsForDriver are the driver's mounts for a task with isolation chroot: the ChrootEnv files, if
	// TaskDirOptions.DriverMountsHostFiles is set or the agent is not root, and the shared directory, if the agent is not root.
	MountsForDriver []driver.Mount
}

// errNotRoot is the reason for secrets on disk if the agent is not root.
var errNotRoot = errors.New("only root can mount a memory file system")

// BuildTaskDir creates the missing parts of a task's directory in a built allocation, and denies access to it to all but the
// task's users. It must be called before every task start, and may be called while the task runs: after a reboot the
// directory exists but its memory file systems do not, and the user may be created by another task or have another uid than
// before. It keeps the task's changes in its own directories.
func (d *Dir) BuildTaskDir(name string, o TaskDirOptions) (*TaskDir, error) {
	if err := checkTaskDirName(name); err != nil {
		return nil, fmt.Errorf("build directory of task %q: %w", name, err)
	}
	t := &TaskDir{TaskDir: d.TaskPaths(name)}
	if err := d.buildTaskDir(t, name, o); err != nil {
		return nil, fmt.Errorf("build directory of task %q: %w", name, err)
	}
	return t, nil
}

func (d *Dir) buildTaskDir(t *TaskDir, name string, o TaskDirOptions) error {
	alloc, err := d.openHandle()
	if err != nil {
		return err
	}
	defer alloc.close()
	var u taskUsers
	if isAgentRoot() {
		if u, err = o.lookupUsers(); err != nil {
			return err
		}
	}
	task, err := alloc.ensureTaskDir(name, o, u)
	if err != nil {
		return err
	}
	defer task.close()

	if err := task.ensureDirForTaskUsersUnlessReplacedByTask(localDirName, u, 0o777); err != nil {
		return err
	}
	if err := task.ensureDirForTaskUsersUnlessReplacedByTask(tmpDirName, u, 0o777|fs.ModeSticky); err != nil {
		return err
	}
	for _, m := range []struct {
		name   string
		sizeMB int
	}{{secretsDirName, max(o.SecretsMB, 1)}, {privateDirName, 1}} {
		onDiskReason, err := task.ensureSecretDir(m.name, m.sizeMB, u)
		if err != nil {
			return err
		}
		if onDiskReason != nil {
			t.SecretsOnDiskReason = onDiskReason
		}
	}
	c := &chroot{rootDir: task, taskPathByHostPath: o.ChrootEnv, dirsToHide: []string{d.allocsRoot, d.unveilMountsRoot()}}
	if !isAgentRoot() {
		if o.Isolation == driver.FSIsolationChroot {
			t.MountsForDriver, err = c.linkHostFilesAndListMounts()
			t.MountsForDriver = append(t.MountsForDriver, sharedDirMounts(filepath.Join(d.Path(), sharedDirName))...)
		}
		return err // the drivers with other isolations that need mounts do not run without root
	}
	switch o.Isolation {
	case driver.FSIsolationChroot:
		if o.DriverMountsHostFiles {
			t.MountsForDriver, err = c.linkHostFilesAndListMounts()
		} else {
			err = c.linkAndMountHostFiles()
		}
		if err == nil {
			err = alloc.bindSharedDirInto(task)
		}
	case driver.FSIsolationUnveil:
		err = d.bindTaskDirsForUnveil(alloc, task, name, u)
	}
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return alloc.admitUIDsToTraverse(u.traversingUIDs(), u.allowNomadOpenFileModes)
}

// ensureTaskDir opens or creates a task's directory.
func (h *dirHandle) ensureTaskDir(name string, o TaskDirOptions, u taskUsers) (*dirHandle, error) {
	switch {
	case !isAgentRoot():
		return h.ensureDir(name, 0o777, taskOwned)
	case o.Isolation == driver.FSIsolationChroot:
		return h.ensureDir(name, chrootDirMode, agentOwned)
	case o.Isolation == driver.FSIsolationImage:
		return h.ensureDirTraversableBy(name, u.admittedUIDs, u.allowNomadOpenFileModes)
	}
	return h.ensureDirForTaskUsers(name, u, 0o777)
}

// bindSharedDirInto bind-mounts the shared directory into a chroot task's directory, with the logs read-only.
func (h *dirHandle) bindSharedDirInto(task *dirHandle) error {
	shared, err := h.open(sharedDirName)
	if err != nil {
		return err
	}
	defer shared.close()
	if err := task.bindMount(sharedDirName, shared, readWrite); err != nil {
		return err
	}
	shown, err := task.open(sharedDirName)
	if err != nil {
		return err
	}
	defer shown.close()
	logs, err := shown.open(logsDirName)
	if err != nil {
		return err
	}
	defer logs.close()
	return shown.bindMount(logsDirName, logs, readOnly)
}

// sharedDirMounts returns the mounts that bindSharedDirInto would make, for the driver.
func sharedDirMounts(hostDir string) []driver.Mount {
	return []driver.Mount{
		{TaskPath: "/" + sharedDirName, HostPath: hostDir},
		{TaskPath: path.Join("/", sharedDirName, logsDirName), HostPath: filepath.Join(hostDir, logsDirName), Readonly: true},
	}
}

// bindTaskDirsForUnveil bind-mounts the directories of a task with isolation unveil below unveilMountsRoot.
func (d *Dir) bindTaskDirsForUnveil(alloc, task *dirHandle, name string, u taskUsers) error {
	mountsDirName := d.allocID + "-" + name
	if err := checkFileName(mountsDirName); err != nil {
		return err
	}
	if err := ensureRootDir(d.unveilMountsRoot(), 0o711); err != nil {
		return err
	}
	root, err := openTrustedDir(d.unveilMountsRoot())
	if err != nil {
		return err
	}
	defer root.close()
	mounts, err := root.ensureDirTraversableBy(mountsDirName, u.traversingUIDs(), u.allowNomadOpenFileModes)
	if err != nil {
		return err
	}
	defer mounts.close()
	for _, m := range []struct {
		parent *dirHandle
		name   string
	}{{alloc, sharedDirName}, {task, localDirName}, {task, secretsDirName}} {
		source, err := m.parent.open(m.name)
		if err != nil {
			return err
		}
		err = mounts.bindMount(m.name, source, readWrite)
		source.close()
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureSecretDir creates a directory and mounts a tmpfs on it. If no tmpfs can be mounted,
// it returns onDiskReason, and the directory is on disk.
func (h *dirHandle) ensureSecretDir(name string, sizeMB int, u taskUsers) (onDiskReason, err error) {
	dir, err := h.ensureDirForTaskUsers(name, u, 0o777)
	if errors.Is(err, errNotDir) {
		// The task has replaced the directory by a file or a link. Remove it, because secrets would be
		// written through it.
		if err := h.removeFile(name); err != nil {
			return nil, err
		}
		dir, err = h.ensureDirForTaskUsers(name, u, 0o777)
	}
	if err != nil {
		return nil, err
	}
	defer dir.close()
	if !isAgentRoot() {
		return errNotRoot, nil
	}
	return h.mountSecretTmpfs(dir, name, sizeMB, u)
}

// DropSecretsAndUnmount removes a task's secrets: it unmounts them, or empties the directories if they are on disk. It also
// unmounts everything else mounted for the task. The runner calls it when the task will not start again. It may be called
// again, and for a task that was never built.
func (d *Dir) DropSecretsAndUnmount(name string) error {
	if err := checkTaskDirName(name); err != nil {
		return fmt.Errorf("drop secrets of task %q: %w", name, err)
	}
	if err := errors.Join(d.unbindTaskDirsForUnveil(name), d.dropSecretsAndUnmount(name)); err != nil {
		return fmt.Errorf("drop secrets of task %q: %w", name, err)
	}
	return nil
}

func (d *Dir) dropSecretsAndUnmount(name string) error {
	alloc, err := d.openHandle()
	if err != nil {
		return ignoreMissing(err)
	}
	defer alloc.close()
	task, err := alloc.open(name)
	if err != nil {
		return ignoreMissing(err)
	}
	defer task.close()
	var errs []error
	if st, err := task.stat(); err == nil && st.Uid == 0 && st.Mode&0o777 == chrootDirMode {
		errs = append(errs, unmountChroot(task, 0))
	}
	errs = append(errs, task.detachAllMounts(sharedDirName), task.detachAllMounts(driver.MountsDir))
	for _, name := range []string{secretsDirName, privateDirName} {
		errs = append(errs, task.detachAllMounts(name), task.removeAll(name, keepTopDir))
	}
	return errors.Join(errs...)
}

// unbindTaskDirsForUnveil removes the mounts that bindTaskDirsForUnveil has made.
func (d *Dir) unbindTaskDirsForUnveil(name string) error {
	mountsDirName := d.allocID + "-" + name
	if checkFileName(mountsDirName) != nil {
		return nil // bindTaskDirsForUnveil rejects such a name, so it has made no mounts
	}
	return unmountAndRemove(d.unveilMountsRoot(), mountsDirName)
}

// WriteLocalFile writes one file for the task, with mode 0755, to a path relative to its local directory. The path may leave
// the local directory, but not the allocation's directory. An existing file is replaced.
func (d *Dir) WriteLocalFile(task, pathInLocal string, data []byte) error {
	if err := d.writeLocalFile(task, pathInLocal, data); err != nil {
		return fmt.Errorf("write %q for task %q: %w", pathInLocal, task, err)
	}
	return nil
}

func (d *Dir) writeLocalFile(task, pathInLocal string, data []byte) error {
	if err := checkTaskDirName(task); err != nil {
		return err
	}
	root, err := d.Open()
	if err != nil {
		return err
	}
	defer root.Close()

	file := path.Join(task, localDirName, pathInLocal)
	if !filepath.IsLocal(file) {
		return errors.New("path escapes the alloc directory")
	}
	// The mode is set after each creation too, because the umask may have reduced it.
	parent := ""
	for _, part := range strings.Split(path.Dir(file), "/") {
		parent = path.Join(parent, part)
		switch err := root.Mkdir(parent, 0o755); {
		case err == nil:
			if err := root.Chmod(parent, 0o755); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrExist):
			return err
		}
	}
	if err := root.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// O_EXCL: no task's link or FIFO is opened.
	f, err := root.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(0o755), f.Close())
}

// checkTaskDirName rejects names that cannot have their own directory.
func checkTaskDirName(name string) error {
	switch {
	case name == sharedDirName:
		return errors.New(`the name "alloc" is reserved for the shared directory`)
	case strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".fifo"):
		return errors.New(`names like ".web.stdout.fifo" are reserved for the output of tasks`)
	}
	return checkFileName(name)
}
