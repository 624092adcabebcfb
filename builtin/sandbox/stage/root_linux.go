package stage

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// makeRoot makes the mounts of the task in the stage's own mount namespace, and makes the root
// directory of the task its own.
func (c *Config) makeRoot() error {
	r := c.Root
	root, err := openTree(r.Dir)
	if err != nil {
		return err
	}
	mounts, err := r.openMounts()
	if err != nil {
		return err
	}
	shm := tree(-1)
	if !c.Private.IPC {
		if shm, err = openTree("/dev/shm"); err != nil {
			return err
		}
	}
	devices, err := c.openDevices()
	if err != nil {
		return err
	}
	// Private: what the stage mounts must not appear on the host. A tree that was opened before keeps its
	// own propagation.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts of the host private: %w", err)
	}
	if err := root.set(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, unix.MS_PRIVATE); err != nil {
		return err
	}
	proc, err := newFileSystem("proc", restrictedAttributes)
	if err != nil {
		return err
	}
	sys, err := c.openSys()
	if err != nil {
		return err
	}
	if err := r.enter(root); err != nil {
		return err
	}
	// From here on, no path of the host exists.
	for _, step := range []func() error{
		func() error { return c.makeDev(devices, shm) },
		func() error { return mountProc(proc) },
		func() error { return c.mountSys(sys) },
		hidePrivateDir,
		func() error { return r.attachMounts(mounts) },
		r.attachFiles,
		c.bringLoopbackUp, c.setHostname,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// tree is a detached mount with everything that is mounted below it.
type tree int

func openTree(path string) (tree, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return tree(fd), nil
}

// openResolvedTree is openTree for a path without symbolic links.
func openResolvedTree(path string) (tree, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
	if err != nil {
		return -1, fmt.Errorf("open %s, which must not lead through a symbolic link: %w", path, err)
	}
	defer unix.Close(fd)
	clone, err := unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return tree(clone), nil
}

// set sets attributes and the propagation of all mounts of the tree. A propagation of 0 stays.
func (t tree) set(attributes, propagation uint64) error {
	attr := &unix.MountAttr{Attr_set: attributes, Propagation: propagation}
	if err := unix.MountSetattr(int(t), "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, attr); err != nil {
		return fmt.Errorf("set the attributes of a mount: %w", err)
	}
	return nil
}

// attach mounts the tree on a path, and closes it.
func (t tree) attach(path string) error {
	err := unix.MoveMount(int(t), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_SYMLINKS)
	unix.Close(int(t))
	if err != nil {
		return fmt.Errorf("mount on %s: %w", path, err)
	}
	return nil
}

// enter makes the tree the root directory.
func (r *Root) enter(root tree) error {
	if r.NoPivot {
		if err := unix.Fchdir(int(root)); err != nil {
			return err
		}
		if err := root.attach("/"); err != nil {
			return err
		}
		if err := unix.Chroot("."); err != nil {
			return fmt.Errorf("chroot to %s: %w", r.Dir, err)
		}
		return unix.Chdir("/")
	}
	if err := root.attach(r.Dir); err != nil {
		return err
	}
	if err := unix.Chdir(r.Dir); err != nil {
		return fmt.Errorf("enter %s: %w", r.Dir, err)
	}
	// The old root directory is mounted on the new one, and unmounted with all mounts of the host.
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot_root to %s: %w", r.Dir, err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the root directory of the host: %w", err)
	}
	return unix.Chdir("/")
}

const (
	restricted           = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	restrictedAttributes = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
)

// newFileSystem returns a new file system that is mounted nowhere. In a user namespace the kernel makes
// proc and sysfs only as long as those of the host are visible, so that no hidden part of them appears.
func newFileSystem(kind string, attributes int) (tree, error) {
	fs, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("make a file system %s: %w", kind, err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, fmt.Errorf("make a file system %s: %w", kind, err)
	}
	fd, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
	if err != nil {
		return -1, fmt.Errorf("mount a file system %s: %w", kind, err)
	}
	return tree(fd), nil
}

// attachToDir mounts the tree on a directory of the root directory, which is made if necessary.
func (t tree) attachToDir(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return t.attach(path)
}

// hiddenPaths show the machine or its kernel, or change it, also for processes without privileges.
var hiddenPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug", "/proc/scsi",
	"/proc/timer_list", "/proc/timer_stats",
}

// readOnlyPaths change the machine when root writes to them.
var readOnlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// mountProc mounts /proc. Its processes are those of the PID namespace of the stage.
func mountProc(proc tree) error {
	if err := proc.attachToDir("/proc"); err != nil {
		return err
	}
	for _, path := range readOnlyPaths {
		if err := bindReadOnly(path, path); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return hide(hiddenPaths...)
}

// hide replaces directories by an empty directory, and files by the null device.
func hide(paths ...string) error {
	for _, path := range paths {
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil && info.IsDir() {
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY|restricted, "mode=000")
		} else if err == nil {
			err = bindReadOnly("/dev/null", path)
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	return nil
}

// bindReadOnly mounts a file or directory on another path.
func bindReadOnly(source, path string) error {
	t, err := openTree(source)
	if err == nil {
		err = t.set(unix.MOUNT_ATTR_RDONLY, 0)
	}
	if err == nil {
		err = t.attach(path)
	}
	return err
}

// hiddenSysPaths are directories of /sys that show the firmware of the machine and the power that it uses.
var hiddenSysPaths = []string{"/sys/firmware", "/sys/devices/virtual/powercap"}

// openSys returns /sys of the task. In a user namespace the kernel makes a file system only for a network
// namespace that belongs to it; for the network of the host, /sys is that of the host.
func (c *Config) openSys() (tree, error) {
	const attributes = restrictedAttributes | unix.MOUNT_ATTR_RDONLY
	if !c.UserNamespace || c.Private.Net {
		return newFileSystem("sysfs", attributes)
	}
	t, err := openTree("/sys")
	if err == nil {
		err = t.set(attributes, unix.MS_PRIVATE)
	}
	return t, err
}

// mountedInSys are the directories of /sys on which hosts mount other file systems.
var mountedInSys = []string{
	"/sys/fs/bpf", "/sys/fs/cgroup", "/sys/fs/fuse", "/sys/fs/pstore", "/sys/fs/selinux", "/sys/firmware/efi",
	"/sys/kernel/config", "/sys/kernel/debug", "/sys/kernel/security", "/sys/kernel/tracing",
}

func (c *Config) mountSys(sys tree) error {
	if err := sys.attachToDir("/sys"); err != nil {
		return err
	}
	if c.UserNamespace && !c.Private.Net {
		if err := hide(mountedInSys...); err != nil {
			return err
		}
	}
	return hide(hiddenSysPaths...)
}

// mountNew mounts a new file system on a directory of the root directory, which is made if necessary.
func mountNew(source, path, kind string, flags uintptr, options string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := unix.Mount(source, path, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

// deviceNode is a device in /dev of the task.
type deviceNode struct {
	path     string
	mode     uint32 // kind and permissions
	number   uint64
	uid, gid uint32
	tree     tree // device of the host that is mounted on path; -1 if a node is made
}

// standardDevices are the devices that every task has, by name.
var standardDevices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// openDevices returns the devices of the task.
func (c *Config) openDevices() ([]deviceNode, error) {
	var nodes []deviceNode
	for _, name := range standardDevices {
		node, err := c.openDevice("/dev/" + name)
		if err != nil {
			return nil, err
		}
		node.path, node.mode = "/dev/"+name, unix.S_IFCHR|0o666
		nodes = append(nodes, node)
	}
	for _, d := range c.Root.Devices {
		node, err := c.openDevice(d.Source)
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
		node.mode |= d.Mode
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// openDevice returns a device of the host, without its path and permissions.
func (c *Config) openDevice(source string) (deviceNode, error) {
	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil {
		return deviceNode{}, fmt.Errorf("device %s: %w", source, err)
	}
	node := deviceNode{mode: st.Mode & unix.S_IFMT, number: uint64(st.Rdev), tree: -1}
	var err error
	if c.UserNamespace { // no user namespace can make devices
		node.tree, err = openTree(source)
	}
	return node, err
}

// makeDev makes /dev with devices, terminals and shared memory. The directory is read-only afterwards, and
// every other file system of the task has the option nodev, so that a task with CAP_MKNOD can open no other
// device.
func (c *Config) makeDev(devices []deviceNode, shm tree) error {
	if err := mountNew("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755,size=256k"); err != nil {
		return err
	}
	for _, d := range devices {
		if err := d.make(); err != nil {
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
	if !c.UserNamespace { // it does not have the group tty
		terminals += ",gid=5"
	}
	if err := mountNew("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, terminals); err != nil {
		return err
	}
	if err := mountNew("mqueue", "/dev/mqueue", "mqueue", restricted, ""); err != nil && !errors.Is(err, unix.ENODEV) {
		return err
	}
	if err := mountShm(shm); err != nil {
		return err
	}
	if err := c.Root.makeFiles(); err != nil {
		return err
	}
	return unix.MountSetattr(unix.AT_FDCWD, "/dev", 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
}

func (d *deviceNode) make() error {
	if err := os.MkdirAll(path.Dir(d.path), 0o755); err != nil {
		return err
	}
	if d.tree >= 0 {
		f, err := os.OpenFile(d.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		f.Close()
		return d.tree.attach(d.path)
	}
	// The mode of mknod(2) depends on the umask.
	if err := unix.Mknod(d.path, d.mode, int(d.number)); err != nil {
		return err
	}
	if err := unix.Chmod(d.path, d.mode&0o777); err != nil {
		return err
	}
	return unix.Chown(d.path, int(d.uid), int(d.gid))
}

// mountShm mounts shared memory of the task, or that of the host if shm is a tree.
func mountShm(shm tree) error {
	if shm < 0 {
		return mountNew("tmpfs", "/dev/shm", "tmpfs", restricted, "mode=1777,size=64m")
	}
	if err := os.Mkdir("/dev/shm", 0o755); err != nil {
		return err
	}
	if err := shm.set(unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC, unix.MS_PRIVATE); err != nil {
		return err
	}
	return shm.attach("/dev/shm")
}

// makeFiles makes the files for attachFiles. /dev is writable for the stage at that time, and no file of a
// volume can take the place of one.
func (r *Root) makeFiles() error {
	for i := range r.Files {
		f := &r.Files[i]
		if r.mountsOn(f.Path) {
			continue // a mount of the task takes precedence
		}
		if err := f.make(); err != nil {
			return fmt.Errorf("%s of the task: %w", f.Path, err)
		}
	}
	return nil
}

// make makes the file below /dev, where it remains, because a file without a name cannot be mounted.
func (f *File) make() error {
	name := path.Join("/dev", path.Base(f.Path))
	if err := os.WriteFile(name, []byte(f.Text), 0o644); err != nil {
		return err
	}
	if err := os.Chmod(name, 0o644); err != nil { // the umask can have removed bits
		return err
	}
	t, err := openTree(name)
	if err != nil {
		return err
	}
	f.mount = int(t)
	return t.set(unix.MOUNT_ATTR_RDONLY, 0)
}

// attachFiles mounts the files on their paths, which are made if necessary. A path can be in a mount of
// the task.
func (r *Root) attachFiles() error {
	for _, f := range r.Files {
		if f.mount == 0 {
			continue
		}
		err := makeTarget(f.Path, tree(f.mount))
		if errors.Is(err, unix.EROFS) {
			err = fmt.Errorf("the machine has no such file, create it there: %w", err)
		}
		if err == nil {
			err = tree(f.mount).attach(f.Path)
		}
		if err != nil {
			return fmt.Errorf("%s of the task: %w", f.Path, err)
		}
	}
	return nil
}

// mountsOn reports whether the task mounts something on a path.
func (r *Root) mountsOn(file string) bool {
	return slices.ContainsFunc(r.Mounts, func(m Mount) bool { return path.Clean("/"+m.Target) == file })
}

// hidePrivateDir hides the directory of the task that is not for the task.
func hidePrivateDir() error { return hide("/private") }

// openMounts opens the files of the host before the host's mounts are out of reach.
func (r *Root) openMounts() (trees []tree, err error) {
	for _, m := range r.Mounts {
		open := openTree
		if m.Resolved {
			open = openResolvedTree
		}
		t, err := open(m.Source)
		if err != nil {
			return nil, err
		}
		attributes := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
		if m.ReadOnly {
			attributes |= unix.MOUNT_ATTR_RDONLY
		}
		propagation := uint64(m.Propagation)
		if propagation == unix.MS_SHARED {
			propagation = 0 // as on the host: MS_SHARED would make a new peer group of a private mount
		}
		if err := t.set(attributes, propagation); err != nil {
			return nil, fmt.Errorf("%s: %w", m.Source, err)
		}
		trees = append(trees, t)
	}
	return trees, nil
}

func (r *Root) attachMounts(trees []tree) error {
	for i, t := range trees {
		target := path.Clean("/" + r.Mounts[i].Target)
		if err := makeTarget(target, t); err != nil {
			return fmt.Errorf("make %s, the path of a mount: %w", target, err)
		}
		if err := t.attach(target); err != nil {
			return err
		}
	}
	return nil
}

// makeTarget makes the file or directory on which a tree is mounted, unless it exists.
func makeTarget(target string, t tree) error {
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
	if !c.Private.UTS {
		return nil // it would be that of the machine
	}
	if err := unix.Sethostname([]byte(c.Root.Hostname)); err != nil {
		return fmt.Errorf("set the hostname %q: %w", c.Root.Hostname, err)
	}
	return nil
}

// bringLoopbackUp makes 127.0.0.1 usable in a network namespace that was made for the task.
func (c *Config) bringLoopbackUp() error {
	if !c.Private.Net {
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
