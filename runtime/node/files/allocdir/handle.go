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

// errNotDir: a name exists and is not a directory. A link to a directory is not a directory.
var errNotDir = errors.New("not a directory")

// dirHandle is an open directory (O_PATH). Each operation on a file that a task could replace takes the parent
// directory's handle and one name.
type dirHandle struct {
	fd            int
	pathForErrors string // for error messages only; the directory may have been moved
}

// openTrustedDir opens a directory that only the agent and the operator can replace.
func openTrustedDir(path string) (*dirHandle, error) {
	fd, err := safepath.OpenDir(path)
	if err != nil {
		return nil, err
	}
	return &dirHandle{fd: fd, pathForErrors: path}, nil
}

// ensureRootDir creates allocsRoot or unveilMountsRoot, with its parents. It does not change an existing directory.
func ensureRootDir(path string, mode fs.FileMode) error {
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
	return os.Chmod(path, mode) // the umask may have reduced mkdir's mode
}

func (h *dirHandle) close() { unix.Close(h.fd) }

// procPath returns a path to the opened directory, even if another file now has its
// name.
func (h *dirHandle) procPath() string { return safepath.ProcPath(h.fd) }

// wrapChildError adds the operation and the path of a name in the directory to an error. It returns nil for nil.
func (h *dirHandle) wrapChildError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: h.pathForErrors + "/" + name, Err: err}
}

// wrapDirError adds the operation and the directory's path to an error. It returns nil for nil.
func (h *dirHandle) wrapDirError(op string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: h.pathForErrors, Err: err}
}

func (h *dirHandle) stat() (st unix.Stat_t, err error) {
	err = unix.Fstat(h.fd, &st)
	return st, h.wrapDirError("stat", err)
}

func (h *dirHandle) chown(to account) error {
	return h.wrapDirError("chown", unix.Fchownat(h.fd, "", to.uid, to.gid, unix.AT_EMPTY_PATH))
}

func (h *dirHandle) chmod(mode fs.FileMode) error {
	if err := os.Chmod(h.procPath(), mode); err != nil {
		return fmt.Errorf("%s: %w", h.pathForErrors, err)
	}
	return nil
}

// open opens the directory called name. It returns errNotDir for a link.
func (h *dirHandle) open(name string) (*dirHandle, error) {
	return openDirAt(h.fd, name, h.pathForErrors+"/"+name, unix.O_PATH)
}

// openDirAt opens a directory, with O_PATH or O_RDONLY in flags, relative to the open directory parent, or to the working
// directory for AT_FDCWD. It returns errNotDir if name's last element is a link.
func openDirAt(parent int, name, pathForErrors string, flags int) (*dirHandle, error) {
	fd, err := safepath.OpenAt(parent, name, flags|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		err = errNotDir
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: pathForErrors, Err: err}
	}
	return &dirHandle{fd: fd, pathForErrors: pathForErrors}, nil
}

// ownedByTasks says whether the agent or the tasks own a directory.
type ownedByTasks bool

const (
	agentOwned ownedByTasks = false // the agent's: each ensureDir call restores mode and owner
	taskOwned  ownedByTasks = true  // the tasks': ensureDir sets a new directory's mode and owner, and the tasks may change both
)

// openOrMakeDir opens the directory called name. If the name does not exist, openOrMakeDir creates the
// directory with mode 0700.
func (h *dirHandle) openOrMakeDir(name string) (dir *dirHandle, made bool, err error) {
	err = unix.Mkdirat(h.fd, name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, h.wrapChildError("mkdir", name, err)
	}
	made = err == nil
	dir, err = h.open(name)
	return dir, made, err
}

// ensureDir opens the directory called name, and creates it if the name does not exist. It also sets the owner if an
// interrupted creation has not set it.
func (h *dirHandle) ensureDir(name string, mode fs.FileMode, owner ownedByTasks) (*dirHandle, error) {
	dir, made, err := h.openOrMakeDir(name)
	if err != nil {
		return nil, err
	}
	if err := dir.setOwnerAndMode(made, mode, owner); err != nil {
		dir.close()
		return nil, err
	}
	return dir, nil
}

// setOwnerAndMode sets the directory's mode and owner as described at ownedByTasks.
func (h *dirHandle) setOwnerAndMode(justCreated bool, mode fs.FileMode, owner ownedByTasks) error {
	st, err := h.stat()
	if err != nil {
		return err
	}
	give := owner == taskOwned && isAgentRoot() && st.Uid == 0
	take := owner == agentOwned && isAgentRoot() && st.Uid != 0
	keep := owner == agentOwned && (take || int(st.Uid) == os.Geteuid()) && fs.FileMode(st.Mode&0o7777) != mode
	if take {
		if err := h.chown(rootAccount); err != nil {
			return err
		}
	}
	if !justCreated && !give && !keep || owner == agentOwned && !keep {
		return nil
	}
	if err := h.chmod(mode); err != nil {
		return err
	}
	if give {
		uid, gid := nobodyIDs()
		err := h.chown(account{uid, gid})
		// Some containers cannot change owners. The mode lets all users write, so that
		// is not an error.
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EINVAL) {
			return err
		}
	}
	return nil
}

// ensureDirTraversableBy opens or creates a directory for root. Only users may pass through it. One system call replaces
// the ACL, so running processes of these users do not lose access.
func (h *dirHandle) ensureDirTraversableBy(name string, uids []uint32, allowNomadOpenFileModes bool) (*dirHandle, error) {
	if len(uids) == 0 {
		return h.ensureDir(name, 0o700, agentOwned)
	}
	dir, _, err := h.openOrMakeDir(name)
	if err != nil {
		return nil, err
	}
	if err := dir.setTraverseACL(uids, allowNomadOpenFileModes); err != nil {
		dir.close()
		return nil, err
	}
	return dir, nil
}

// setTraverseACL makes root the directory's owner and lets users pass through it. With allowNomadOpenFileModes, the
// directory gets Nomad's mode if an ACL cannot be set.
func (h *dirHandle) setTraverseACL(uids []uint32, allowNomadOpenFileModes bool) error {
	st, err := h.stat()
	if err != nil {
		return err
	}
	if int(st.Uid) != rootAccount.uid {
		if err := h.chown(rootAccount); err != nil {
			return err
		}
	}
	err = h.setACL(uids, aclTraverse)
	if err != nil && allowNomadOpenFileModes && isOwnershipDenied(err) {
		return h.chmod(nomadAllocDirMode)
	}
	return explainOwnershipDenied(err)
}

// ensureDirUnlessReplacedByTask creates a directory for the tasks. If a task has replaced it by a file or a link, this
// stays and is no error.
func (h *dirHandle) ensureDirUnlessReplacedByTask(name string, mode fs.FileMode) error {
	return closeDirIgnoringErrNotDir(h.ensureDir(name, mode, taskOwned))
}

// closeDirIgnoringErrNotDir closes dir unless err is set, and returns err. It ignores errNotDir: a task has replaced the
// directory by a file or a link.
func closeDirIgnoringErrNotDir(dir *dirHandle, err error) error {
	if errors.Is(err, errNotDir) {
		return nil
	}
	if err != nil {
		return err
	}
	dir.close()
	return nil
}

// removeFile removes a file or a link.
func (h *dirHandle) removeFile(name string) error {
	return h.wrapChildError("remove", name, unix.Unlinkat(h.fd, name, 0))
}

func isAgentRoot() bool { return os.Geteuid() == 0 }

// nobodyIDs returns the ids of the user nobody, or 65534 if the machine has no such user.
var nobodyIDs = sync.OnceValues(func() (uid, gid int) {
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
