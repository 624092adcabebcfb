package attack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SwappedFile is the name of the directory that the mode "swap" exchanges with a link.
const SwappedFile = "swapped"

// HostileFiles are the names of the files that the mode "make" creates.
var HostileFiles = []string{"root", "proc", "loop", "zero", "fifo", "sparse", "plain"}

// makeHostileFiles creates files that harm a process which reads or mounts them without checks. Existing files stay.
func makeHostileFiles(dir string) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	sparse, err := os.OpenFile(at("sparse"), os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer sparse.Close()
	for _, err := range []error{
		sparse.Truncate(1 << 40),
		os.MkdirAll(at("plain"), 0o777),
		os.Symlink("/", at("root")),
		os.Symlink("/proc/self/root", at("proc")),
		os.Symlink("loop", at("loop")),
		os.Symlink("/dev/zero", at("zero")),
		unix.Mkfifo(at("fifo"), 0o666),
	} {
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// LeftPrefix is the prefix of the names of directories that a probe leaves behind.
const LeftPrefix = "left-"

// createSpecialFiles creates files with special modes and owners in the writable directories of the task. Their names
// end in nameSuffix.
func (p *probe) createSpecialFiles(nameSuffix string) {
	for _, dir := range p.WritableDirs {
		dir = filepath.Join(dir, LeftPrefix+strings.ReplaceAll(p.ProbeTaskName, "/", "-")+"-"+nameSuffix)
		if unix.Mkdir(dir, 0o777) != nil {
			continue // the directory does not exist or is not writable
		}
		p.tryToCreateSpecialFilesIn(dir)
	}
}

func (p *probe) tryToCreateSpecialFilesIn(dir string) {
	const setID = unix.S_ISUID | unix.S_ISGID
	const mode = setID | 0o755
	plain := func(path string) error {
		fd, err := unix.Open(path, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o755)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	withPlain := func(change func(path string, fd int) error) func(string) error {
		return func(path string) error {
			fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o755)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return change(path, fd)
		}
	}
	raw := func(number uintptr, path string, a2, a3, a4, a5 uintptr) error {
		text, err := unix.BytePtrFromString(path)
		if err != nil {
			return err
		}
		if _, _, errno := unix.Syscall6(number, uintptr(0xffffffffffffff9c), uintptr(unsafe.Pointer(text)), a2, a3, a4, a5); errno != 0 { // AT_FDCWD
			return errno
		}
		return nil
	}
	capability := make([]byte, 20) // VFS_CAP_REVISION_2 with cap_setuid, effective
	capability[0], capability[3], capability[4] = 1, 2, 1<<unix.CAP_SETUID
	const fchmodat2 = 452
	for _, c := range []struct {
		name string
		make func(path string) error
	}{
		{"chmod", withPlain(func(path string, _ int) error { return unix.Chmod(path, mode) })},
		{"chmod-user", withPlain(func(path string, _ int) error { return unix.Chmod(path, unix.S_ISUID|0o755) })},
		{"chmod-group", withPlain(func(path string, _ int) error { return unix.Chmod(path, unix.S_ISGID|0o755) })},
		{"fchmod", withPlain(func(_ string, fd int) error { return unix.Fchmod(fd, mode) })},
		{"fchmodat", withPlain(func(path string, _ int) error { return raw(unix.SYS_FCHMODAT, path, mode, 0, 0, 0) })},
		{"fchmodat2", withPlain(func(path string, _ int) error { return raw(fchmodat2, path, mode, 0, 0, 0) })},
		{"chmod-proc", withPlain(func(_ string, fd int) error { return unix.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), mode) })},
		{"open", func(path string) error {
			fd, err := unix.Open(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, mode)
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		{"tmpfile", func(path string) error {
			fd, err := unix.Open(filepath.Dir(path), unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, mode)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
		}},
		{"openat2", func(path string) error {
			fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY | unix.O_CLOEXEC, Mode: mode})
			if err == nil {
				unix.Close(fd)
			}
			return err
		}},
		{"mknod", func(path string) error { return unix.Mknod(path, unix.S_IFREG|mode, 0) }},
		{"mkdir-inherit", func(path string) error {
			if err := unix.Mkdir(path, unix.S_ISGID|0o777); err != nil {
				return err
			}
			return plain(path + "/file")
		}},
		{"setxattr", withPlain(func(path string, _ int) error { return unix.Setxattr(path, "security.capability", capability, 0) })},
		{"fsetxattr", withPlain(func(_ string, fd int) error { return unix.Fsetxattr(fd, "security.capability", capability, 0) })},
		{"chown", withPlain(func(path string, _ int) error { return unix.Chown(path, 0, 0) })},
		{"chown-set-id", withPlain(func(path string, _ int) error { return errors.Join(unix.Chown(path, 0, 0), unix.Chmod(path, mode)) })},
		{"lchown", withPlain(func(path string, _ int) error { return unix.Lchown(path, 1, 1) })},
		{"fchown", withPlain(func(_ string, fd int) error { return unix.Fchown(fd, 4001, 4001) })},
		{"device", func(path string) error {
			err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 1))) // /dev/mem
			if err == nil && tryOpen(path, unix.O_RDONLY) == nil {
				p.report(Device, path)
			}
			return err
		}},
		{"block-device", func(path string) error { return unix.Mknod(path, unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0))) }},
	} {
		if path := filepath.Join(dir, c.name); c.make(path) == nil {
			p.report(Left, c.name, path)
		}
	}
}

// characterDevices are devices that control the machine and that can be opened without an effect. Watchdogs are not
// among them, because an open would start them.
var characterDevices = []string{"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/vhost-net", "/dev/loop-control", "/dev/mapper/control", "/dev/cuse"}

// tryToOpenDevices tries to open all block devices and the characterDevices, and reports successes.
func (p *probe) tryToOpenDevices() {
	// Files that vanish during the walk are not an error.
	_ = filepath.WalkDir("/dev", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeDevice == 0 || e.Type()&fs.ModeCharDevice != 0 && !slices.Contains(characterDevices, path) {
			return nil
		}
		if tryOpen(path, unix.O_RDONLY) == nil {
			p.report(Device, path)
		}
		return nil
	})
}

// reportTextsInWritableDirs reports the text of small files in the writable directories of the task. A template, an
// artifact or a driver can have copied a secret into them.
func (p *probe) reportTextsInWritableDirs() {
	for _, dir := range p.WritableDirs {
		// Files that vanish during the walk are not an error.
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil
			}
			if e.IsDir() && (strings.HasPrefix(e.Name(), LeftPrefix) || e.Name() == "logs") {
				return filepath.SkipDir
			}
			if info, err := e.Info(); err == nil && e.Type().IsRegular() && info.Size() < 1<<16 {
				p.reportIfReadable(path)
			}
			return nil
		})
	}
}
