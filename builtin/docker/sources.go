package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/sdk"
)

// driverMountedSource is a source whose path tasks can replace. The driver opens the file or directory, and
// mounts the opened file in a directory that only root can enter. The engine gets the path of this
// mount.
type driverMountedSource struct {
	hostMountSource
	createIfMissing bool   // true creates a directory if the path does not exist
	mountPointName  string // name of the mount point in the directory of sourceMountsDir
}

// sourceMountsDir returns the path of the directory in which the driver mounts the sources of one start.
func sourceMountsDir(start *sdk.StartRequest) string {
	return filepath.Join(start.TaskDir(), driver.MountsDir, path.Base(start.ID))
}

// cannotBindMountError is the reason why the driver cannot make mounts that the engine sees.
type cannotBindMountError struct{ cause error }

func (e *cannotBindMountError) Error() string { return e.cause.Error() }
func (e *cannotBindMountError) Unwrap() error { return e.cause }

func newCannotBindMountError(format string, args ...any) error {
	return &cannotBindMountError{fmt.Errorf(format, args...)}
}

// sourceMounter mounts the sources of one container.
type sourceMounter struct {
	engine untypedEngineClient
	start  *sdk.StartRequest
}

// cannotBindMountReason returns the reason why the driver cannot make mounts that the engine sees, or nil if
// none is known before a mount is made.
func (b sourceMounter) cannotBindMountReason() error {
	if os.Geteuid() != 0 {
		return newCannotBindMountError("the agent is not root")
	}
	if _, err := b.engineSocketPath(); err != nil {
		return err
	}
	// A user who can replace the directory of the task could also replace the mounts.
	if err := safepath.CheckDir(b.start.TaskDir()); err != nil {
		return newCannotBindMountError("the directory of the task is not protected: %w", err)
	}
	return nil
}

// engineSocketPath returns the path of the socket of the engine, or an error if the engine may be on
// another machine.
func (b sourceMounter) engineSocketPath() (string, error) {
	address, err := url.Parse(b.engine.client().DaemonHost())
	if err != nil || address.Scheme != "unix" {
		return "", newCannotBindMountError("the engine at %s can be on another machine", b.engine.client().DaemonHost())
	}
	return address.Path, nil
}

// replaceAllMounts mounts all sources. It unmounts the mounts that an earlier start of the task has left: the
// container of that start is gone, or Start removes it next.
func (b sourceMounter) replaceAllMounts(ctx context.Context, sources []driverMountedSource) error {
	dir, err := b.makeAndOpenMountsDir()
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	engineRoot, err := b.engineProcRootPath(ctx)
	if err != nil {
		return err
	}
	for _, s := range sources {
		if err := b.mountAndVerifySource(dir, engineRoot, s); err != nil {
			return fmt.Errorf("mount %s: %w", s.resolvedPath, err)
		}
	}
	return nil
}

// makeAndOpenMountsDir makes the directory of sourceMountsDir in a new file system, so that an engine that does not
// see the mounts of the driver does not find the path. It returns an open descriptor of the
// directory.
func (b sourceMounter) makeAndOpenMountsDir() (int, error) {
	task, err := safepath.OpenDir(b.start.TaskDir())
	if err != nil {
		return -1, err
	}
	defer unix.Close(task)
	if err := unix.Mkdirat(task, driver.MountsDir, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, &fs.PathError{Op: "mkdir", Path: filepath.Dir(sourceMountsDir(b.start)), Err: err}
	}
	if err := unmountAllAt(task, driver.MountsDir); err != nil {
		return -1, err
	}
	top, err := openDirAt(task, driver.MountsDir)
	if err != nil {
		return -1, err
	}
	opcount.Count(opcount.Mount)
	err = unix.Mount("tmpfs", safepath.ProcPath(top), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0700,size=1m")
	unix.Close(top)
	if err != nil {
		return -1, newCannotBindMountError("the agent cannot mount file systems: %w", err)
	}
	if top, err = openDirAt(task, driver.MountsDir); err != nil {
		return -1, err
	}
	defer unix.Close(top)
	name := path.Base(b.start.ID)
	if err := unix.Mkdirat(top, name, 0o700); err != nil {
		return -1, &fs.PathError{Op: "mkdir", Path: sourceMountsDir(b.start), Err: err}
	}
	return openDirAt(top, name)
}

func openDirAt(dirFD int, name string) (int, error) {
	fd, err := safepath.OpenAt(dirFD, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return fd, nil
}

// mountAndVerifySource mounts one source, and checks that the engine sees it.
func (b sourceMounter) mountAndVerifySource(dirFD int, engineRoot string, s driverMountedSource) error {
	source, err := s.openOrCreateWithoutLinks()
	if err != nil {
		return err
	}
	defer unix.Close(source)
	var want unix.Stat_t
	if err := unix.Fstat(source, &want); err != nil {
		return err
	}
	if want.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = unix.Mkdirat(dirFD, s.mountPointName, 0o700)
	} else {
		err = unix.Mknodat(dirFD, s.mountPointName, unix.S_IFREG|0o600, 0)
	}
	if err != nil {
		return err
	}
	target, err := safepath.OpenAt(dirFD, s.mountPointName, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(target)
	opcount.Count(opcount.Mount)
	tree, err := unix.OpenTree(source, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return newCannotBindMountError("the agent cannot mount directories: %w", err)
	}
	defer unix.Close(tree)
	opcount.Count(opcount.Mount)
	if err := unix.MoveMount(tree, "", target, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return newCannotBindMountError("the agent cannot mount directories: %w", err)
	}
	seen, err := unix.Open(filepath.Join(engineRoot, sourceMountsDir(b.start), s.mountPointName), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return newCannotBindMountError("the engine does not see mounts of the agent, or the agent cannot find out whether it does: %w", err)
	}
	defer unix.Close(seen)
	var got unix.Stat_t
	if err := unix.Fstat(seen, &got); err != nil || got.Dev != want.Dev || got.Ino != want.Ino {
		return newCannotBindMountError("the engine does not see mounts of the agent: it has another mount namespace")
	}
	return nil
}

// openOrCreateWithoutLinks opens the source without following links, because a task can have replaced a part of the
// path by a link since the path was resolved.
func (s driverMountedSource) openOrCreateWithoutLinks() (int, error) {
	dir, err := safepath.OpenDir(s.taskOrAllocDir)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	fd, err := safepath.OpenBeneath(dir, s.relativePath)
	if errors.Is(err, unix.ENOENT) && s.createIfMissing {
		if err := makeDirsWithoutLinks(dir, s.relativePath); err != nil {
			return -1, err
		}
		fd, err = safepath.OpenBeneath(dir, s.relativePath)
	}
	if errors.Is(err, unix.ELOOP) {
		return -1, errors.New("a task has replaced a part of the path by a link while the container was started")
	}
	return fd, err
}

// makeDirsWithoutLinks makes the missing directories of a path below a directory, without following links.
func makeDirsWithoutLinks(dirFD int, relativePath string) error {
	at, err := openDirAt(dirFD, ".")
	if err != nil {
		return err
	}
	for _, part := range strings.Split(relativePath, "/") {
		err := unix.Mkdirat(at, part, 0o755)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			unix.Close(at)
			return err
		}
		next, err := openDirAt(at, part)
		unix.Close(at)
		if err != nil {
			return err
		}
		at = next
	}
	return unix.Close(at)
}

// engineProcRootPath returns the path of the root directory of the engine: of the process that listens at its socket.
func (b sourceMounter) engineProcRootPath(ctx context.Context) (string, error) {
	socket, err := b.engineSocketPath()
	if err != nil {
		return "", err
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return "", sdk.Recoverable(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return "", err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return "", err
	}
	switch {
	case peerErr != nil:
		return "", peerErr
	case peer.Pid == 0:
		return "", newCannotBindMountError("the engine is in another PID namespace")
	}
	return fmt.Sprintf("/proc/%d/root", peer.Pid), nil
}

// unmountSources unmounts the sources of a start. It does nothing if they are not mounted, or if a later start of the task has
// unmounted them.
func unmountSources(start *sdk.StartRequest) error {
	task, err := safepath.OpenDir(start.TaskDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(task)
	if _, err := safepath.StatAt(task, driver.MountsDir+"/"+path.Base(start.ID)); err != nil {
		return nil
	}
	if err := unmountAllAt(task, driver.MountsDir); err != nil {
		return err
	}
	if err := unix.Unlinkat(task, driver.MountsDir, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: filepath.Dir(sourceMountsDir(start)), Err: err}
	}
	return nil
}

// unmountAllAt unmounts all mounts on a name and below it. Running containers keep their own copies of
// the mounts.
func unmountAllAt(dirFD int, name string) error {
	for {
		fd, err := openDirAt(dirFD, name)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		mounted, err := safepath.IsMount(dirFD, fd)
		if mounted && err == nil {
			opcount.Count(opcount.Mount)
			err = unix.Unmount(safepath.ProcPath(fd), unix.MNT_DETACH)
		}
		unix.Close(fd)
		if err != nil || !mounted {
			return err
		}
	}
}
