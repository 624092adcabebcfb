package stage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// makeAndEnterTaskRoot makes the mounts of the task in the stage's own mount namespace, and changes the root
// directory of the stage to the root directory of the task. The mounts of the host are cloned in the mount namespace of
// the host, and are attached in that of the stage.
func (c *Config) makeAndEnterTaskRoot() error {
	r := c.Root
	root, err := cloneMount(r.HostDir)
	if err != nil {
		return err
	}
	mounts, err := r.cloneHostMounts()
	if err != nil {
		return err
	}
	peers, err := r.openSharedMounts()
	if err != nil {
		return err
	}
	shm := detachedMount(-1)
	if !c.PrivateNamespaces.IPC {
		if shm, err = cloneMount("/dev/shm"); err != nil {
			return err
		}
	}
	devices, err := c.collectDeviceNodes()
	if err != nil {
		return err
	}
	if err := root.setAttributes(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, unix.MS_PRIVATE); err != nil {
		return err
	}
	proc, err := newDetachedFileSystem("proc", restrictedAttributes|unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return err
	}
	sys, err := c.openSysFS()
	if err != nil {
		return err
	}
	rootMountPoint, err := c.enterMountNamespace()
	if err != nil {
		return err
	}
	if err := r.switchRoot(root, rootMountPoint); err != nil {
		return err
	}
	// From here on, no path of the host exists.
	for _, step := range []func() error{
		func() error { return c.mountDev(devices, shm) },
		func() error { return mountRestrictedProc(proc) },
		func() error { return c.mountRestrictedSysFS(sys) },
		hideTaskPrivateDir,
		func() error { return r.attachMounts(mounts) },
		r.attachReplacementFiles,
		c.bringLoopbackUp, c.setHostname,
		func() error { return shareMounts(peers, mounts) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// enterMountNamespace puts the stage into a mount namespace of its own, and returns a directory of this namespace on which the
// root directory of the task can be mounted.
func (c *Config) enterMountNamespace() (rootMountPoint string, err error) {
	if !c.CopiesHostMounts() {
		return TaskMountPoint, enterCopyOfNamespace(NamespaceFD)
	}
	// The mounts must be private, so that mounts of the stage do not appear on the host. The mounts
	// that were cloned before keep their own propagation.
	opcount.Count(opcount.Mount)
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return "", fmt.Errorf("make the mounts of the host private: %w", err)
	}
	return c.Root.HostDir, nil
}

// enterCopyOfNamespace puts the calling thread into a new mount namespace with the mounts of an existing one.
func enterCopyOfNamespace(namespaceFD int) error {
	// A thread that shares its root directory with other threads cannot enter a mount namespace.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("leave the root directory of the driver: %w", err)
	}
	if err := unix.Setns(namespaceFD, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the empty mount namespace: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("copy the empty mount namespace: %w", err)
	}
	return nil
}

// detachedMount is the file descriptor of a mount that is attached to no path, with all mounts
// below it.
type detachedMount int

func cloneMount(path string) (detachedMount, error) {
	opcount.Count(opcount.Mount)
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return detachedMount(fd), nil
}

// cloneMountWithoutLinks is like cloneMount, and returns an error if the path has a symbolic link.
func cloneMountWithoutLinks(path string) (detachedMount, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if err != nil {
		return -1, fmt.Errorf("open %s, which must not lead through a symbolic link: %w", path, err)
	}
	defer unix.Close(fd)
	opcount.Count(opcount.Mount)
	clone, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return detachedMount(clone), nil
}

// setAttributes sets attributes and the propagation of all mounts of the tree. A propagation of 0 keeps the
// propagation of each mount.
func (d detachedMount) setAttributes(attributes, propagation uint64) error {
	attr := &unix.MountAttr{Attr_set: attributes, Propagation: propagation}
	opcount.Count(opcount.Mount)
	if err := unix.MountSetattr(int(d), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return fmt.Errorf("set the attributes of a mount: %w", err)
	}
	return nil
}

// attachAndClose mounts the tree on a path, and closes the file descriptor.
func (d detachedMount) attachAndClose(path string) error {
	defer unix.Close(int(d))
	return d.attach(path)
}

// attach mounts the tree on a path.
func (d detachedMount) attach(path string) error {
	opcount.Count(opcount.Mount)
	err := unix.MoveMount(int(d), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	if err != nil {
		return fmt.Errorf("mount on %s: %w", path, err)
	}
	return nil
}

// switchRoot mounts root on mountPoint, makes it the root directory of the stage, and unmounts the old root directory.
func (r *Root) switchRoot(root detachedMount, mountPoint string) error {
	if r.NoPivotRoot {
		if err := unix.Fchdir(int(root)); err != nil {
			return err
		}
		if err := root.attachAndClose("/"); err != nil {
			return err
		}
		if err := unix.Chroot("."); err != nil {
			return fmt.Errorf("chroot to %s: %w", r.HostDir, err)
		}
		return unix.Chdir("/")
	}
	if err := root.attachAndClose(mountPoint); err != nil {
		return err
	}
	if err := unix.Chdir(mountPoint); err != nil {
		return fmt.Errorf("enter %s: %w", r.HostDir, err)
	}
	opcount.Count(opcount.Mount)
	// pivot_root mounts the old root directory on the new root directory. Unmount then removes it
	// with all mounts below it.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root to %s: %w", r.HostDir, err)
	}
	opcount.Count(opcount.Mount)
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the old root directory: %w", err)
	}
	return unix.Chdir("/")
}

const (
	restricted           = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	restrictedAttributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// newDetachedFileSystem returns a new file system that is not attached to a path. In a user namespace, the
// kernel makes a new proc or sysfs only while the host's proc or sysfs is fully visible, so that
// the new one shows no hidden paths. It must therefore be called before the host's mounts are gone.
func newDetachedFileSystem(kind string, attributes int) (detachedMount, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a file system %s: %w", kind, err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make a file system %s: %w", kind, err)
	}
	opcount.Count(opcount.Mount)
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, fmt.Errorf("mount a file system %s: %w", kind, err)
	}
	return detachedMount(fd), nil
}

// makeDirAndAttach mounts the tree on a directory of the root directory, which is made if necessary.
func (d detachedMount) makeDirAndAttach(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return d.attachAndClose(path)
}

// hiddenPaths are paths in /proc that reveal data of the machine or its kernel, or change them,
// also for processes without privileges.
var hiddenPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
	"/proc/timer_list", "/proc/timer_stats",
}

// readOnlyPaths are paths in /proc through which root could change the machine.
var readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// mountRestrictedProc mounts /proc, which shows the processes of the PID namespace of the stage. proc must be read-only.
func mountRestrictedProc(proc detachedMount) error {
	if err := proc.makeDirAndAttach("/proc"); err != nil {
		return err
	}
	for _, path := range readOnlyPaths {
		// A bind mount has the attributes of the mount of its source, and keeps them when /proc becomes writable.
		if err := bind(path, path); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	opcount.Count(opcount.Mount)
	if err := unix.MountSetattr(unix.AT_FDCWD, "/proc", 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("make /proc writable: %w", err)
	}
	return hidePaths(hiddenPaths...)
}

// hidePaths mounts an empty directory over each directory, and the null device over each file.
func hidePaths(paths ...string) error {
	hiddenFile := "" // a file that is hidden already: a bind mount of it is read-only
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && info.IsDir() {
			opcount.Count(opcount.Mount)
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|restricted, "mode=000")
		} else if err == nil && hiddenFile != "" {
			err = bind(hiddenFile, path)
		} else if err == nil {
			err = bindReadOnly("/dev/null", path)
			hiddenFile = path
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

// bindReadOnly mounts a file or directory read-only on another path.
func bindReadOnly(source, target string) error {
	t, err := cloneMount(source)
	if err == nil {
		err = t.setAttributes(unix.MOUNT_ATTR_RDONLY, 0)
	}
	if err == nil {
		err = t.attachAndClose(target)
	}
	return err
}

// bind mounts a file or directory on another path, with the attributes of the mount that the source is on.
func bind(source, target string) error {
	opcount.Count(opcount.Mount)
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", source, target, err)
	}
	return nil
}

// hiddenSysPaths are directories of /sys that show the firmware of the machine and the power that it uses.
var hiddenSysPaths = []string{"/sys/firmware", "/sys/devices/virtual/powercap"}

// openSysFS returns /sys of the task. In a user namespace, the kernel makes a sysfs only for a
// network namespace that belongs to the user namespace. For a task in the network namespace of the
// host, openSysFS returns /sys of the host.
func (c *Config) openSysFS() (detachedMount, error) {
	const attributes = restrictedAttributes | unix.MOUNT_ATTR_RDONLY
	if !c.InUserNamespace || c.PrivateNamespaces.Net {
		return newDetachedFileSystem("sysfs", attributes)
	}
	t, err := cloneMount("/sys")
	if err == nil {
		err = t.setAttributes(attributes, unix.MS_PRIVATE)
	}
	return t, err
}

// mountedInSys are the directories of /sys on which hosts mount other file systems.
var mountedInSys = []string{
	"/sys/fs/bpf", "/sys/fs/cgroup", "/sys/fs/fuse", "/sys/fs/pstore", "/sys/fs/selinux", "/sys/firmware/efi",
	"/sys/kernel/config", "/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/tracing",
}

func (c *Config) mountRestrictedSysFS(sys detachedMount) error {
	if err := sys.makeDirAndAttach("/sys"); err != nil {
		return err
	}
	if c.InUserNamespace && !c.PrivateNamespaces.Net {
		if err := hidePaths(mountedInSys...); err != nil {
			return err
		}
	}
	return hidePaths(hiddenSysPaths...)
}

// mountNewFileSystem mounts a new file system on a directory of the root directory, which is made if necessary.
func mountNewFileSystem(source, path, kind string, flags uintptr, options string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	opcount.Count(opcount.Mount)
	if err := unix.Mount(source, path, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

// deviceNode is a device that is made in /dev of the task.
type deviceNode struct {
	path            string
	mode            uint32 // file type and permissions, as in st_mode
	deviceNumber    uint64
	uid, gid        uint32
	hostDeviceMount detachedMount // device of the host that is mounted on path; -1 means that a node is made with mknod(2)
}

// standardDevices are the devices that every task has, by name.
var standardDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// collectDeviceNodes returns the devices of the task.
func (c *Config) collectDeviceNodes() ([]deviceNode, error) {
	var nodes []deviceNode
	for _, name := range standardDevices {
		node, err := c.readHostDevice("/dev/" + name)
		if err != nil {
			return nil, err
		}
		node.path, node.mode = "/dev/"+name, unix.S_IFCHR|0o666
		nodes = append(nodes, node)
	}
	for _, d := range c.Root.Devices {
		node, err := c.readHostDevice(d.Source)
		if err != nil {
			return nil, err
		}
		if node.mode != unix.S_IFCHR && node.mode != unix.S_IFBLK {
			return nil, fmt.Errorf("device %s is no device", d.Source)
		}
		if !strings.HasPrefix(path.Clean(d.Target), "/dev/") {
			return nil, fmt.Errorf("device %s: its path for the task, %s, is not below /dev", d.Source, d.Target)
		}
		node.path, node.uid, node.gid = path.Clean(d.Target), c.User.UID, c.User.GID
		node.mode |= d.OwnerPermissions
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// readHostDevice returns the type and number of a device of the host. The caller sets the path and the
// permissions.
func (c *Config) readHostDevice(source string) (deviceNode, error) {
	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil {
		return deviceNode{}, fmt.Errorf("device %s: %w", source, err)
	}
	node := deviceNode{mode: st.Mode & unix.S_IFMT, deviceNumber: uint64(st.Rdev), hostDeviceMount: -1}
	var err error
	if c.InUserNamespace { // a user namespace cannot make devices
		node.hostDeviceMount, err = cloneMount(source)
	}
	return node, err
}

// mountDev makes /dev with devices, terminals and shared memory. The directory is read-only afterwards, and
// every other file system of the task has the option nodev, so that a task with CAP_MKNOD can open no other
// device.
func (c *Config) mountDev(devices []deviceNode, shm detachedMount) error {
	if err := mountNewFileSystem("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=256k"); err != nil {
		return err
	}
	for _, d := range devices {
		if err := d.makeInDev(); err != nil {
			return fmt.Errorf("device %s: %w", d.path, err)
		}
	}
	for _, link := range [][2]string{
		{"/proc/self/fd", "/dev/fd"}, {"/proc/self/fd/0", "/dev/stdin"}, {"/proc/self/fd/1", "/dev/stdout"}, {"/proc/self/fd/2", "/dev/stderr"},
		{"pts/ptmx", "/dev/ptmx"},
	} {
		if err := os.Symlink(link[0], link[1]); err != nil {
			return err
		}
	}
	terminals := "newinstance,ptmxmode=0666,mode=0620"
	if !c.InUserNamespace { // a user namespace does not have the group tty
		terminals += ",gid=5"
	}
	if err := mountNewFileSystem("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, terminals); err != nil {
		return err
	}
	if err := mountNewFileSystem("mqueue", "/dev/mqueue", "mqueue", restricted, ""); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	if err := mountShm(shm); err != nil {
		return err
	}
	if err := c.Root.makeReplacementFilesInDev(); err != nil {
		return err
	}
	opcount.Count(opcount.Mount)
	if err := unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return err
	}
	return c.Root.cloneReplacementFiles()
}

func (d *deviceNode) makeInDev() error {
	if err := os.MkdirAll(path.Dir(d.path), 0o755); err != nil {
		return err
	}
	if d.hostDeviceMount >= 0 {
		f, err := os.OpenFile(d.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		f.Close()
		return d.hostDeviceMount.attachAndClose(d.path)
	}
	// The umask can remove permissions in mknod(2), so Chmod sets them again.
	if err := unix.Mknod(d.path, d.mode, int(d.deviceNumber)); err != nil {
		return err
	}
	if err := unix.Chmod(d.path, d.mode&0o777); err != nil {
		return err
	}
	return unix.Chown(d.path, int(d.uid), int(d.gid))
}

// mountShm mounts the shared memory of the host, or a new file system for shared memory if shm is
// -1.
func mountShm(shm detachedMount) error {
	if shm < 0 {
		return mountNewFileSystem("tmpfs", "/dev/shm", "tmpfs", restricted, "mode=1777,size=64m")
	}
	if err := os.Mkdir("/dev/shm", 0o755); err != nil {
		return err
	}
	if err := shm.setAttributes(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, unix.MS_PRIVATE); err != nil {
		return err
	}
	return shm.attachAndClose("/dev/shm")
}

// makeReplacementFilesInDev makes the files that attachReplacementFiles mounts. It makes them in /dev while /dev is
// writable, because no task can have put another file there.
func (r *Root) makeReplacementFilesInDev() error {
	for i := range r.ReplacementFiles {
		f := &r.ReplacementFiles[i]
		if r.hasJobMountOn(f.Path) {
			continue // a mount of the task takes precedence
		}
		if err := f.makeInDev(); err != nil {
			return fmt.Errorf("%s of the task: %w", f.Path, err)
		}
	}
	return nil
}

func (f *ReplacementFile) pathInDev() string { return path.Join("/dev", path.Base(f.Path)) }

// makeInDev makes the file below /dev. The file remains there, because a file without a name cannot be mounted.
func (f *ReplacementFile) makeInDev() error {
	if err := os.WriteFile(f.pathInDev(), []byte(f.Text), 0o644); err != nil {
		return err
	}
	return os.Chmod(f.pathInDev(), 0o644) // sets the bits that the umask has removed
}

// cloneReplacementFiles clones the files that makeReplacementFilesInDev has made. It must be called when /dev is read-only,
// because then the clones are, and before a mount of the task can cover them.
func (r *Root) cloneReplacementFiles() error {
	for i := range r.ReplacementFiles {
		f := &r.ReplacementFiles[i]
		if r.hasJobMountOn(f.Path) {
			continue
		}
		t, err := cloneMount(f.pathInDev())
		if err != nil {
			return fmt.Errorf("%s of the task: %w", f.Path, err)
		}
		f.detachedMountFD = int(t)
	}
	return nil
}

// attachReplacementFiles mounts the files on their paths, and makes missing paths. A path can be in a mount of
// the task.
func (r *Root) attachReplacementFiles() error {
	for _, f := range r.ReplacementFiles {
		if f.detachedMountFD == 0 {
			continue
		}
		err := makeMountPoint(f.Path, detachedMount(f.detachedMountFD))
		if errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("the machine has no such file, create it there: %w", err)
		}
		if err == nil {
			err = detachedMount(f.detachedMountFD).attachAndClose(f.Path)
		}
		if err != nil {
			return fmt.Errorf("%s of the task: %w", f.Path, err)
		}
	}
	return nil
}

// hasJobMountOn reports whether the task mounts something on a path.
func (r *Root) hasJobMountOn(file string) bool {
	return slices.ContainsFunc(r.Mounts, func(m Mount) bool { return !m.IsMachineFile && path.Clean("/"+m.Target) == file })
}

// hideTaskPrivateDir hides the private directory in the task directory, which is for drivers and hooks
// only.
func hideTaskPrivateDir() error { return hidePaths("/private") }

// cloneSource clones the mount of the host's file or directory.
func (m *Mount) cloneSource() (detachedMount, error) {
	if m.SourceHasNoSymlinks {
		return cloneMountWithoutLinks(m.Source)
	}
	return cloneMount(m.Source)
}

// cloneHostMounts clones the mounts of the host's files and directories. It must be called before the
// root directory is changed.
func (r *Root) cloneHostMounts() (trees []detachedMount, err error) {
	for _, m := range r.Mounts {
		t, err := m.cloneSource()
		if err != nil {
			return nil, err
		}
		attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if m.ReadOnly {
			attributes |= unix.MOUNT_ATTR_RDONLY
		}
		propagation := uint64(m.PropagationFlag)
		if propagation == unix.MS_SHARED {
			propagation = unix.MS_SLAVE // until shareMounts
		}
		if err := t.setAttributes(attributes, propagation); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Source, err)
		}
		trees = append(trees, t)
	}
	return trees, nil
}

// openSharedMounts returns, for each mount whose mounts must appear on the machine, another clone, which is in the peer group of
// the machine's mount. It must be called before the root directory is changed.
func (r *Root) openSharedMounts() (peers map[int]detachedMount, err error) {
	for i, m := range r.Mounts {
		if m.PropagationFlag != unix.MS_SHARED {
			continue
		}
		if peers == nil {
			peers = make(map[int]detachedMount)
		}
		if peers[i], err = m.cloneSource(); err != nil {
			return nil, err
		}
	}
	return peers, nil
}

// shareMounts makes the mounts of peers members of the peer groups of the machine's mounts. It is the last change of the mounts: what
// is mounted below a shared mount appears on the machine, whatever links its path leads through. Mounts that the machine has
// below the mount stay as they are for the task: they get mounts of the machine, and the machine none of theirs.
func shareMounts(peers map[int]detachedMount, trees []detachedMount) error {
	for i, peer := range peers {
		private := &unix.MountAttr{Propagation: unix.MS_PRIVATE}
		opcount.Count(opcount.Mount)
		err := unix.MountSetattr(int(trees[i]), "", unix.AT_EMPTY_PATH, private)
		if err == nil {
			opcount.Count(opcount.Mount)
			err = unix.MoveMount(int(peer), "", int(trees[i]), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH|unix.MOVE_MOUNT_SET_GROUP)
		}
		unix.Close(int(peer))
		unix.Close(int(trees[i]))
		if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: the machine's mount is private, so what the task mounts below it is not visible on the machine
			return fmt.Errorf("share a mount with the machine: %w", err)
		}
	}
	return nil
}

func (r *Root) attachMounts(trees []detachedMount) error {
	for i, t := range trees {
		target := path.Clean("/" + r.Mounts[i].Target)
		if err := makeMountPoint(target, t); err != nil {
			return fmt.Errorf("make %s, the path of a mount: %w", target, err)
		}
		attach := t.attachAndClose
		if r.Mounts[i].PropagationFlag == unix.MS_SHARED {
			attach = t.attach // shareMounts needs it
		}
		if err := attach(target); err != nil {
			return err
		}
	}
	return nil
}

// makeMountPoint makes the file or directory on which t is mounted, unless the path exists.
func makeMountPoint(target string, t detachedMount) error {
	if _, err := os.Stat(target); err == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(t), &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return os.MkdirAll(target, 0o755)
	}
	if err := os.MkdirAll(path.Dir(target), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// setHostname sets the hostname of the task.
func (c *Config) setHostname() error {
	if !c.PrivateNamespaces.UTS {
		return nil // the call would change the hostname of the machine
	}
	if err := unix.Sethostname([]byte(c.Root.Hostname)); err != nil {
		return fmt.Errorf("set the hostname %q: %w", c.Root.Hostname, err)
	}
	return nil
}

// bringLoopbackUp sets the loopback interface up in a network namespace that was made for the task.
func (c *Config) bringLoopbackUp() error {
	if !c.PrivateNamespaces.Net {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("set up the loopback interface: %w", err)
	}
	return nil
}
