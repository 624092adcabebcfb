package allocdir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// WriteTaskFile writes a file for the task's user alone, to a path relative to the task's directory. It creates missing
// directories, and replaces the file by a rename, so the task never reads an incomplete file. No part of the path may be a
// link. With isolation image, where the image defines the users, all users in the container may read the file.
func (d *Dir) WriteTaskFile(task, pathInTaskDir string, o TaskDirOptions, data []byte) error {
	if err := d.writeTaskFile(task, pathInTaskDir, o, data); err != nil {
		return fmt.Errorf("write %q for task %q: %w", pathInTaskDir, task, err)
	}
	return nil
}

func (d *Dir) writeTaskFile(task, pathInTaskDir string, o TaskDirOptions, data []byte) error {
	pathInTaskDir = strings.TrimLeft(filepath.Clean(pathInTaskDir), "/")
	if pathInTaskDir == "." || !filepath.IsLocal(pathInTaskDir) {
		return errors.New("path escapes the task directory")
	}
	u, err := o.lookupFileUsers()
	if err != nil {
		return err
	}
	dir, err := d.openTaskDir(task)
	if err != nil {
		return err
	}
	defer func() { dir.close() }()
	parts := strings.Split(pathInTaskDir, "/")
	for _, part := range parts[:len(parts)-1] {
		d.mu.Lock()
		next, err := u.openOrMakeOwnedDir(dir, part)
		d.mu.Unlock()
		if err != nil {
			return err
		}
		dir.close()
		dir = next
	}
	return u.replaceFile(dir, parts[len(parts)-1], data)
}

// openTaskDir opens a task's directory.
func (d *Dir) openTaskDir(task string) (*dirHandle, error) {
	if err := checkTaskDirName(task); err != nil {
		return nil, err
	}
	alloc, err := d.openHandle()
	if err != nil {
		return nil, err
	}
	defer alloc.close()
	return alloc.open(task)
}

// lookupFileUsers returns the users that may read the agent's files for the task. If the agent is not root, it cannot change
// owners, and looks up no user.
func (o TaskDirOptions) lookupFileUsers() (taskUsers, error) {
	if !isAgentRoot() {
		return taskUsers{allowsAllUsers: o.Isolation == driver.FSIsolationImage}, nil
	}
	return o.lookupUsers()
}

// openOrMakeOwnedDir opens a directory in parent, or creates it for the users. It creates the directory under another name:
// a killed agent never leaves the name on a directory that the users do not own yet.
func (u taskUsers) openOrMakeOwnedDir(parent *dirHandle, name string) (*dirHandle, error) {
	dir, err := parent.open(name)
	if !errors.Is(err, unix.ENOENT) {
		return dir, err
	}
	made := temporaryName(name)
	if err := parent.removeAll(made, removeTopDir); err != nil {
		return nil, err
	}
	dir, _, err = parent.openOrMakeDir(made)
	if err != nil {
		return nil, err
	}
	if u.allowsAllUsers {
		err = dir.chmod(0o755)
	}
	if err == nil && isAgentRoot() {
		err = dir.chown(u.owner)
	}
	if u.allowNomadOpenFileModes && isOwnershipDenied(err) {
		err = nil
	}
	if err != nil {
		dir.close()
		return nil, explainOwnershipDenied(err)
	}
	err = unix.Renameat(parent.fd, made, parent.fd, name)
	if err == nil {
		dir.pathForErrors = parent.pathForErrors + "/" + name
		return dir, nil
	}
	dir.close()
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) { // the task has created the directory meanwhile
		if err := parent.removeAll(made, removeTopDir); err != nil {
			return nil, err
		}
		return parent.open(name)
	}
	return nil, parent.wrapChildError("rename to", name, err)
}

// temporaryName returns the name under which a file or a directory is created before it is renamed to name.
func temporaryName(name string) string { return "." + name + ".new" }

// replaceFile writes a file in the directory h and renames it to name. It replaces an earlier call's temporary file.
func (u taskUsers) replaceFile(h *dirHandle, name string, data []byte) (err error) {
	made := temporaryName(name)
	if err := ignoreMissing(h.removeFile(made)); err != nil {
		return err
	}
	fd, err := safepath.OpenAt(h.fd, made, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return h.wrapChildError("create", made, err)
	}
	f := os.NewFile(uintptr(fd), h.pathForErrors+"/"+made)
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(h.removeFile(made)))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = u.setFileOwnerAndMode(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return h.wrapChildError("rename to", name, unix.Renameat(h.fd, made, h.fd, name))
}

// setFileOwnerAndMode makes the task's user the owner of a new file, which only the agent can read so far.
func (u taskUsers) setFileOwnerAndMode(f *os.File) error {
	var err error
	if u.allowsAllUsers {
		err = f.Chmod(0o644)
	}
	if err == nil && isAgentRoot() {
		err = f.Chown(u.owner.uid, u.owner.gid)
	}
	if err != nil && u.allowNomadOpenFileModes && isOwnershipDenied(err) {
		return f.Chmod(0o644)
	}
	return explainOwnershipDenied(err)
}

// ListenInSecretsDir creates a unix socket in a task's secrets directory, in place of a file with this name, and returns the
// descriptor on which the caller accepts connections. Only the task's user can connect; with isolation image, all users in
// the container can.
func (d *Dir) ListenInSecretsDir(task, socketName string, o TaskDirOptions) (fd int, err error) {
	if fd, err = d.listenInSecretsDir(task, socketName, o); err != nil {
		return -1, fmt.Errorf("make socket %q of task %q: %w", socketName, task, err)
	}
	return fd, nil
}

// listenBacklog is how many of a task's clients can wait until the agent accepts their connections.
const listenBacklog = 128

func (d *Dir) listenInSecretsDir(task, socketName string, o TaskDirOptions) (fd int, err error) {
	u, err := o.lookupFileUsers()
	if err != nil {
		return -1, err
	}
	dir, err := d.openTaskDir(task)
	if err != nil {
		return -1, err
	}
	defer dir.close()
	secrets, err := dir.open(secretsDirName)
	if err != nil {
		return -1, err
	}
	defer secrets.close()
	if err := ignoreMissing(secrets.removeFile(socketName)); err != nil {
		return -1, err
	}
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	// The socket file gets the socket's mode at the bind, so that no other user can connect before a later mode change.
	err = os.NewSyscallError("fchmod", unix.Fchmod(fd, 0o600))
	if err == nil {
		err = bindSocketAs(u.owner, fd, safepath.ProcPathAt(secrets.fd, socketName))
	}
	if err == nil && u.allowsAllUsers {
		err = u.letAllUsersConnect(secrets, socketName)
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, listenBacklog))
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// bindSocketAs binds a socket to a path. The socket file belongs to owner from its creation: if root created it and changed
// its owner, the task could put a link to another file in its place, and would own that file.
func bindSocketAs(owner account, fd int, path string) (err error) {
	address := &unix.SockaddrUnix{Name: path}
	if !isAgentRoot() || owner == rootAccount {
		return os.NewSyscallError("bind", unix.Bind(fd, address))
	}
	runtime.LockOSThread() // the ids for accesses to files belong to the thread
	defer runtime.UnlockOSThread()
	defer func() {
		_ = unix.Setfsuid(0) // cannot fail: the thread's effective user id is still root
		_ = unix.Setfsgid(0)
	}()
	for _, set := range []struct {
		call func(int) (int, error)
		id   int
	}{{unix.SetfsgidRetGid, owner.gid}, {unix.SetfsuidRetUid, owner.uid}} {
		_, _ = set.call(set.id) // returns the former id, also if it fails
		if now, _ := set.call(-1); now != set.id {
			return fmt.Errorf("act as user %d: %w", owner.uid, unix.EPERM)
		}
	}
	return os.NewSyscallError("bind", unix.Bind(fd, address))
}

// letAllUsersConnect lets all users connect to a socket in the directory h. A container's users can replace the socket, so
// letAllUsersConnect first checks that the file is the owner's socket.
func (u taskUsers) letAllUsersConnect(h *dirHandle, name string) error {
	fd, err := safepath.OpenAt(h.fd, name, unix.O_PATH, 0)
	if err != nil {
		return h.wrapChildError("open", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return h.wrapChildError("stat", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || isAgentRoot() && int(st.Uid) != u.owner.uid {
		return h.wrapChildError("chmod", name, unix.EEXIST)
	}
	return h.wrapChildError("chmod", name, unix.Chmod(safepath.ProcPath(fd), 0o666))
}
