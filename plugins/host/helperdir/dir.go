package helperdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// socketDirName is the directory for sockets in a data directory.
const socketDirName = "sockets"

// SocketDir returns the path of the directory for the sockets of a data directory. The path
// may exceed the length limit of a socket address.
func SocketDir(dataDir string) string { return path.Join(dataDir, socketDirName) }

// Dir is an open data directory. The helper processes of a data directory listen in it
// and lock files in it. All operations are relative to the open directory, so the directory
// may be renamed and its path may have any length. Its methods may be called concurrently.
type Dir struct {
	path   string
	handle *os.File // the directory, opened with O_PATH
}

// OpenOrCreate opens a data directory, and creates it if it is missing. It does not check
// which users can write to the directory: that is left to the caller. No method follows a
// symbolic link, uses a file of another user, or connects to a process of another user. The
// caller must call Close.
func OpenOrCreate(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, err
	}
	home, err := OpenHandle(path)
	if err != nil {
		return nil, err
	}
	return &Dir{path: path, handle: home}, nil
}

// OpenHandle opens a handle (O_PATH) of a directory.
func OpenHandle(path string) (*os.File, error) {
	fd, err := safepath.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// New returns a Dir for an open handle, which it takes over, of the data directory at path.
func New(path string, handle *os.File) *Dir { return &Dir{path, handle} }

// Handle returns the open directory.
func (d *Dir) Handle() *os.File { return d.handle }

// IsRemoved reports whether an open directory was removed, so that no process can connect in it any longer. A directory that was
// renamed, or hidden by a mount, is not removed.
func IsRemoved(handle *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(handle.Fd()), &st) == nil && st.Nlink == 0
}

// Path returns the path with which the directory was opened.
func (d *Dir) Path() string { return d.path }

// Close closes the handle.
func (d *Dir) Close() error { return d.handle.Close() }

// EnsurePrivateSocketDir creates the directory for sockets if it is missing, and calls EnsureFreeInodes for the sockets. It returns an
// error if other users can enter the directory.
func (d *Dir) EnsurePrivateSocketDir() error {
	d.EnsureFreeInodes()
	path := SocketDir(d.path)
	var st unix.Stat_t
	for {
		err := unix.Mkdirat(int(d.handle.Fd()), socketDirName, 0o700)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return &fs.PathError{Op: "mkdir", Path: path, Err: err}
		}
		st, err = safepath.StatAt(int(d.handle.Fd()), socketDirName)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ENOENT) { // ENOENT: an ephemeral keeper that shuts down has removed the directory
			return &fs.PathError{Op: "stat", Path: path, Err: err}
		}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is not a directory: remove it", path)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, not %d: remove it", path, st.Uid, os.Geteuid())
	case st.Mode&0o077 != 0:
		return fmt.Errorf("%s has mode %04o, which lets other users enter it: chmod it to 0700", path, st.Mode&0o7777)
	}
	return nil
}

// OpenSocketDir opens the directory for sockets. The error is fs.ErrNotExist if it is
// missing.
func (d *Dir) OpenSocketDir() (*os.File, error) {
	fd, err := safepath.OpenAt(int(d.handle.Fd()), socketDirName, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: SocketDir(d.path), Err: err}
	}
	return os.NewFile(uintptr(fd), SocketDir(d.path)), nil
}

// ListenReplacingSocket listens on a stream socket in the directory for sockets, which is created if it is missing. An existing
// socket is replaced. The returned file is the listening socket, which does not block; closing it does not remove the socket.
func (d *Dir) ListenReplacingSocket(socketFileName string) (*os.File, error) {
	if err := d.EnsurePrivateSocketDir(); err != nil {
		return nil, err
	}
	dir, err := d.OpenSocketDir()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := path.Join(SocketDir(d.path), socketFileName)
	if err := unix.Unlinkat(int(dir.Fd()), socketFileName, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, &fs.PathError{Op: "remove", Path: path, Err: err}
	}
	listener, err := listen(safepath.ProcPathAt(int(dir.Fd()), socketFileName)) // a short path, because an address holds 107 bytes
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil, fmt.Errorf("listen on %s: %w: the file system has no unix sockets: choose a data directory on another one", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	// Before the chmod only the mode of the directory denies access to other users.
	if err := unix.Fchmodat(int(dir.Fd()), socketFileName, 0o600, 0); err != nil {
		unix.Close(listener)
		return nil, &fs.PathError{Op: "chmod", Path: path, Err: err}
	}
	return os.NewFile(uintptr(listener), path), nil
}

// maxBacklog is the maximum number of connections that wait until they are accepted. The kernel limits it to
// /proc/sys/net/core/somaxconn.
const maxBacklog = 1<<16 - 1

// listen returns a socket that listens on a path.
func listen(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = unix.Listen(fd, maxBacklog)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// HasSocket reports whether the directory for sockets contains the name.
func (d *Dir) HasSocket(name string) bool {
	_, err := safepath.StatAt(int(d.handle.Fd()), socketDirName+"/"+name)
	return err == nil
}

// RemoveFile removes a file of the data directory. A missing file is ignored.
func (d *Dir) RemoveFile(name string) { _ = unix.Unlinkat(int(d.handle.Fd()), name, 0) }

// RemoveSocket removes a socket. A missing socket is ignored.
func (d *Dir) RemoveSocket(name string) { d.RemoveFile(socketDirName + "/" + name) }

// RemoveSocketDir removes the directory for sockets and the sockets in it. The directory stays
// if it contains other files.
func (d *Dir) RemoveSocketDir() {
	dir, err := d.OpenSocketDir()
	if err != nil {
		return
	}
	defer dir.Close()
	entries, _ := os.ReadDir(safepath.ProcPath(int(dir.Fd())))
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			_ = unix.Unlinkat(int(dir.Fd()), e.Name(), 0)
		}
	}
	_ = unix.Unlinkat(int(d.handle.Fd()), socketDirName, unix.AT_REMOVEDIR)
}

// LockFile locks a file of the data directory, which is created if it is missing. The lock is
// released when all copies of the file are closed. With unix.LOCK_EX LockFile blocks until it
// has the lock; with unix.LOCK_NB the error is filelock.ErrLocked when another process has
// it.
func (d *Dir) LockFile(fileName string, flockFlags int) (*os.File, error) {
	for {
		f, err := d.openAndLockFile(fileName, flockFlags)
		if err != nil {
			return nil, &fs.PathError{Op: "lock", Path: path.Join(d.path, fileName), Err: err}
		}
		// The previous owner of the lock may have removed the file before LockFile returned.
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink > 0 {
			return f, err
		}
		f.Close()
	}
}

func (d *Dir) openAndLockFile(name string, flockFlags int) (*os.File, error) {
	f, err := d.openLockFile(name, unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	if err := filelock.Lock(f, flockFlags); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openLockFile opens a lock file. It returns an error unless the file is a regular file of this user with a single hard
// link.
func (d *Dir) openLockFile(name string, flags int) (*os.File, error) {
	fd, err := safepath.OpenAt(int(d.handle.Fd()), name, flags|unix.O_RDWR|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path.Join(d.path, name))
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid() || st.Nlink > 1 {
		f.Close()
		return nil, errors.New("it is not a file of this user with one name: remove it")
	}
	return f, nil
}

// WriteLockOwner writes a process ID to a file that this process has locked, from which LockOwner reads it.
func WriteLockOwner(f *os.File, p osprocess.ID) error {
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(append(b, '\n'), 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(b)) + 1)
}

// LockOwner returns the process that holds the lock of a file and is recorded in the file.
// running is false if no process holds the lock, or the recorded process is not alive.
// Each error satisfies [osprocess.IsResourceExhausted]; after an error it is unknown
// whether a process holds the lock.
func (d *Dir) LockOwner(fileName string) (owner osprocess.ID, running bool, err error) {
	f, err := d.openLockFile(fileName, 0)
	if osprocess.IsResourceExhausted(err) {
		return osprocess.ID{}, false, &fs.PathError{Op: "open", Path: path.Join(d.path, fileName), Err: err}
	}
	if err != nil {
		return osprocess.ID{}, false, nil
	}
	defer f.Close()
	if err := filelock.Lock(f, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, filelock.ErrLocked) {
		return osprocess.ID{}, false, nil
	}
	if err := json.NewDecoder(f).Decode(&owner); err != nil || !owner.Alive() {
		return osprocess.ID{}, false, nil
	}
	return owner, true, nil
}
