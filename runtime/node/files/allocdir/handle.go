package allocdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// errNotDir means that a name exists and is not a directory. A link to a directory is
// not a directory.
var errNotDir = errors.New("not a directory")

// dirHandle is an open directory (O_PATH). All operations on files that tasks can reach
// use a handle and one name at a time.
type dirHandle struct {
	fd   int
	path string // for messages only
}

// openPath opens a directory that only the agent and the operator can replace.
func openPath(path string) (*dirHandle, error) {
	fd, err := safepath.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return &dirHandle{fd: fd, path: path}, nil
}

// makeRoot creates the directory that contains all allocations.
func makeRoot(path string, mode fs.FileMode) error {
	err := os.Mkdir(path, mode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
	} else if errors.Is(err, fs.ErrExist) {
		return nil
	} else if err != nil {
		return err
	}
	return os.Chmod(path, mode) // sets the mode again, because the umask applies to mkdir
}

func (h *dirHandle) close() { unix.Close(h.fd) }

// procPath returns a path to the opened directory, even if another file now has its
// name.
func (h *dirHandle) procPath() string { return safepath.ProcPath(h.fd) }

// errorf adds the operation and the name to an error. It returns nil for nil.
func (h *dirHandle) errorf(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: h.path + "/" + name, Err: err}
}

// wrapError is errorf for the directory itself.
func (h *dirHandle) wrapError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: h.path, Err: err}
}

func (h *dirHandle) stat() (st unix.Stat_t, err error) {
	err = unix.Fstat(h.fd, &st)
	return st, h.wrapError("stat", err)
}

func (h *dirHandle) chown(to account) error {
	return h.wrapError("chown", unix.Fchownat(h.fd, "", to.uid, to.gid, unix.AT_EMPTY_PATH))
}

func (h *dirHandle) chmod(mode fs.FileMode) error {
	if err := os.Chmod(h.procPath(), mode); err != nil {
		return fmt.Errorf("%s: %w", h.path, err)
	}
	return nil
}

// open opens the directory called name. It returns errNotDir for a link.
func (h *dirHandle) open(name string) (*dirHandle, error) {
	fd, err := safepath.OpenAt(h.fd, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = errNotDir
	}
	if err != nil {
		return nil, h.errorf("open", name, err)
	}
	return &dirHandle{fd: fd, path: h.path + "/" + name}, nil
}

// dirOwner is the kind of owner of a directory.
type dirOwner bool

const (
	agentOwned dirOwner = false // the directory belongs to the agent: each ensureDir restores mode and owner
	taskOwned  dirOwner = true  // the directory belongs to the tasks: ensureDir sets mode and owner once, and the tasks may change both
)

// makeDir opens the directory called name. If the name does not exist, makeDir creates the
// directory, closed to other accounts.
func (h *dirHandle) makeDir(name string) (dir *dirHandle, made bool, err error) {
	err = unix.Mkdirat(h.fd, name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, h.errorf("mkdir", name, err)
	}
	made = err == nil
	dir, err = h.open(name)
	return dir, made, err
}

// ensureDir opens the directory called name, and creates it if the name does not exist. It
// also completes a creation that was interrupted before the owner was set.
func (h *dirHandle) ensureDir(name string, mode fs.FileMode, whose dirOwner) (*dirHandle, error) {
	dir, made, err := h.makeDir(name)
	if err != nil {
		return nil, err
	}
	if err := dir.applyOwnership(made, mode, whose); err != nil {
		dir.close()
		return nil, err
	}
	return dir, nil
}

func (h *dirHandle) applyOwnership(made bool, mode fs.FileMode, whose dirOwner) error {
	st, err := h.stat()
	if err != nil {
		return err
	}
	give := whose == taskOwned && isPrivileged() && st.Uid == 0
	take := whose == agentOwned && isPrivileged() && st.Uid != 0
	keep := whose == agentOwned && (take || int(st.Uid) == os.Geteuid()) && fs.FileMode(st.Mode&0o7777) != mode
	if take {
		if err := h.chown(rootAccount); err != nil {
			return err
		}
	}
	if !made && !give && !keep || whose == agentOwned && !keep {
		return nil
	}
	if err := h.chmod(mode); err != nil {
		return err
	}
	if give {
		uid, gid := nobodyAccount()
		err := h.chown(account{uid, gid})
		// Some containers cannot change owners. The mode lets all users write, so that
		// is not an error.
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return nil
}

// ensureTraversable is ensureDir for a directory of a root agent that is closed to all
// other accounts except users, which may pass through it. Users that may pass already
// keep their access during the call.
func (h *dirHandle) ensureTraversable(name string, users []uint32, fallback bool) (*dirHandle, error) {
	if len(users) == 0 {
		return h.ensureDir(name, 0o700, agentOwned)
	}
	dir, _, err := h.makeDir(name)
	if err != nil {
		return nil, err
	}
	if err := dir.applyTraverseACL(users, fallback); err != nil {
		dir.close()
		return nil, err
	}
	return dir, nil
}

func (h *dirHandle) applyTraverseACL(users []uint32, fallback bool) error {
	st, err := h.stat()
	if err != nil {
		return err
	}
	if int(st.Uid) != rootAccount.uid {
		if err := h.chown(rootAccount); err != nil {
			return err
		}
	}
	err = h.setACL(users, aclTraverse)
	if err != nil && fallback && isOwnershipDenied(err) {
		return h.chmod(nomadAllocDirMode)
	}
	return explainOwnershipDenied(err)
}

// ensureDirExists is ensureDir for a directory that belongs to the task once it exists: a
// file or link that the task has put in its place stays.
func (h *dirHandle) ensureDirExists(name string, mode fs.FileMode) error {
	return closeEnsuredDir(h.ensureDir(name, mode, taskOwned))
}

// closeEnsuredDir closes a directory that was ensured. It is not an error if a task has put
// something else in its place.
func closeEnsuredDir(dir *dirHandle, err error) error {
	if errors.Is(err, errNotDir) {
		return nil
	}
	if err != nil {
		return err
	}
	dir.close()
	return nil
}

// removeFile removes one name that is not a directory.
func (h *dirHandle) removeFile(name string) error {
	return h.errorf("remove", name, unix.Unlinkat(h.fd, name, 0))
}

func isPrivileged() bool { return os.Geteuid() == 0 }

// nobodyAccount returns the account that owns the directories of tasks.
var nobodyAccount = sync.OnceValues(func() (uid, gid int) {
	const overflow = 65534
	u, err := user.Lookup("nobody")
	if err != nil {
		return overflow, overflow
	}
	uid, uidErr := strconv.Atoi(u.Uid)
	gid, gidErr := strconv.Atoi(u.Gid)
	if uidErr != nil || gidErr != nil {
		return overflow, overflow
	}
	return uid, gid
})
