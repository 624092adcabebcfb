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

// WriteTaskFile writes a file that only the user of the task may read, to a path relative to the
// directory of the task. It creates missing directories, and replaces the file by a rename, so that the
// task never reads an incomplete file. No part of the path may be a link. With isolation image, whose
// users are defined in the image, all users of the container may read the file.
func (d *Dir) WriteTaskFile(task, name string, o TaskOptions, data []byte) error {
	if err := d.writeTaskFile(task, name, o, data); err != nil {
		return fmt.Errorf("write %q for task %q: %w", name, task, err)
	}
	return nil
}

func (d *Dir) writeTaskFile(task, name string, o TaskOptions, data []byte) error {
	name = strings.TrimLeft(filepath.Clean(name), "/")
	if name == "." || !filepath.IsLocal(name) {
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
	parts := strings.Split(name, "/")
	for _, part := range parts[:len(parts)-1] {
		next, err := u.openOrMakeDir(dir, part)
		if err != nil {
			return err
		}
		dir.close()
		dir = next
	}
	return u.replaceFile(dir, parts[len(parts)-1], data)
}

// openTaskDir opens the directory of a task.
func (d *Dir) openTaskDir(task string) (*dirHandle, error) {
	if err := checkTaskName(task); err != nil {
		return nil, err
	}
	alloc, err := d.openHandle()
	if err != nil {
		return nil, err
	}
	defer alloc.close()
	return alloc.open(task)
}

// lookupFileUsers returns the users that may read files that the agent writes for the task. An agent that is not root cannot
// change owners, so it looks up no user.
func (o TaskOptions) lookupFileUsers() (taskUsers, error) {
	if !isAgentRoot() {
		return taskUsers{allowsAllUsers: o.Isolation == driver.FSIsolationImage}, nil
	}
	return o.lookupUsers()
}

// openOrMakeDir opens a directory in parent, or creates it for the users.
func (u taskUsers) openOrMakeDir(parent *dirHandle, name string) (*dirHandle, error) {
	dir, made, err := parent.openOrMakeDir(name)
	if err != nil || !made {
		return dir, err
	}
	if u.allowsAllUsers {
		err = dir.chmod(0o755)
	}
	if err == nil && isAgentRoot() {
		err = dir.chown(u.owner)
	}
	if err != nil && !(u.allowNomadFileModes && isOwnershipDenied(err)) {
		dir.close()
		return nil, explainOwnershipDenied(err)
	}
	return dir, nil
}

// replaceFile writes a file in the directory h and renames it to name. A temporary file that an earlier call has left is
// replaced.
func (u taskUsers) replaceFile(h *dirHandle, name string, data []byte) (err error) {
	made := "." + name + ".new"
	if err := ignoreMissing(h.removeFile(made)); err != nil {
		return err
	}
	fd, err := safepath.OpenAt(h.fd, made, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return h.childError("create", made, err)
	}
	f := os.NewFile(uintptr(fd), h.path+"/"+made)
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(h.removeFile(made)))
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = u.setFileOwner(f)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return h.childError("rename to", name, unix.Renameat(h.fd, made, h.fd, name))
}

// setFileOwner makes the user of the task the owner of a new file, which only the agent can read so far.
func (u taskUsers) setFileOwner(f *os.File) error {
	var err error
	if u.allowsAllUsers {
		err = f.Chmod(0o644)
	}
	if err == nil && isAgentRoot() {
		err = f.Chown(u.owner.uid, u.owner.gid)
	}
	if err != nil && u.allowNomadFileModes && isOwnershipDenied(err) {
		return f.Chmod(0o644)
	}
	return explainOwnershipDenied(err)
}

// ListenInSecrets creates a unix socket in the secrets directory of a task, in place of a file with this
// name, and returns the descriptor on which the caller accepts connections. Only the user of the task can
// connect; with isolation image, all users of the container can.
func (d *Dir) ListenInSecrets(task, name string, o TaskOptions) (fd int, err error) {
	if fd, err = d.listenInSecrets(task, name, o); err != nil {
		return -1, fmt.Errorf("make socket %q of task %q: %w", name, task, err)
	}
	return fd, nil
}

// listenBacklog is how many clients of a task can wait until the agent accepts their connections.
const listenBacklog = 128

func (d *Dir) listenInSecrets(task, name string, o TaskOptions) (fd int, err error) {
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
	if err := ignoreMissing(secrets.removeFile(name)); err != nil {
		return -1, err
	}
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	// The file of the socket gets the mode that the socket has when it is bound, so that no other user
	// can connect before a later change of the mode.
	err = os.NewSyscallError("fchmod", unix.Fchmod(fd, 0o600))
	if err == nil {
		err = bindSocketAs(u.owner, fd, safepath.ProcPathAt(secrets.fd, name))
	}
	if err == nil && u.allowsAllUsers {
		err = u.letAllUsersConnect(secrets, name)
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
// its owner, the task could put a link to another file in its place, and would become the owner of that file.
func bindSocketAs(owner account, fd int, path string) (err error) {
	address := &unix.SockaddrUnix{Name: path}
	if !isAgentRoot() || owner == rootAccount {
		return os.NewSyscallError("bind", unix.Bind(fd, address))
	}
	runtime.LockOSThread() // the ids for accesses to files belong to the thread
	defer runtime.UnlockOSThread()
	defer func() {
		_ = unix.Setfsuid(0) // cannot fail: the thread still has the effective user id of root
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

// letAllUsersConnect lets all users connect to a socket in the directory h. The users of a container can replace the
// socket, so letAllUsersConnect first checks that the file is a socket of the owner.
func (u taskUsers) letAllUsersConnect(h *dirHandle, name string) error {
	fd, err := safepath.OpenAt(h.fd, name, unix.O_PATH, 0)
	if err != nil {
		return h.childError("open", name, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return h.childError("stat", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK || isAgentRoot() && int(st.Uid) != u.owner.uid {
		return h.childError("chmod", name, unix.EEXIST)
	}
	return h.childError("chmod", name, unix.Chmod(safepath.ProcPath(fd), 0o666))
}
