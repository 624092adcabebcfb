package allocdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/internal/taskuser"
	"github.com/nomad-lite/nomad-lite/plugins/driver"
)

// account is a user on the machine with its primary group.
type account struct{ uid, gid int }

// rootAccount is root, the only account under which an agent can change owners.
var rootAccount = account{0, 0}

// taskUsers are the users with access to one task's directories.
type taskUsers struct {
	owner                   account
	admittedUIDs            []uint32 // users other than the owner and root with access to the directories, in ascending order
	allowsAllUsers          bool     // the directories have Nomad's modes: every user who can reach them may access them
	allowNomadOpenFileModes bool     // use Nomad's modes where the owner or an ACL cannot be set
}

// lookupUsers looks up the users with access to the task's directories. The agent must be root.
func (o TaskDirOptions) lookupUsers() (taskUsers, error) {
	u := taskUsers{owner: rootAccount, allowsAllUsers: o.Isolation == driver.FSIsolationImage, allowNomadOpenFileModes: o.AllowNomadOpenFileModes}
	switch {
	case u.allowsAllUsers:
		u.owner.uid, u.owner.gid = nobodyIDs() // with isolation image, the user is defined in the image
	case o.User != "":
		var err error
		if u.owner, err = lookupAccount(o.User); err != nil {
			return u, err
		}
	case o.Isolation != driver.FSIsolationNone:
		u.owner.uid, u.owner.gid = nobodyIDs() // drivers with chroot or unveil isolation run tasks as nobody
	}
	for _, name := range o.AdmittedUsers {
		other, err := lookupAccount(name)
		if err != nil {
			return u, err
		}
		if other.uid != rootAccount.uid && other.uid != u.owner.uid {
			u.admittedUIDs = append(u.admittedUIDs, uint32(other.uid))
		}
	}
	slices.Sort(u.admittedUIDs)
	u.admittedUIDs = slices.Compact(u.admittedUIDs)
	return u, nil
}

// traversingUIDs returns the users other than root who must pass through the allocation's directory, in ascending order.
func (u taskUsers) traversingUIDs() []uint32 {
	if u.allowsAllUsers || u.owner.uid == rootAccount.uid {
		return u.admittedUIDs
	}
	all := append([]uint32{uint32(u.owner.uid)}, u.admittedUIDs...)
	slices.Sort(all)
	return all
}

// lookupAccount finds a user by name or by uid.
func lookupAccount(name string) (account, error) {
	cred, err := taskuser.Lookup(name)
	if err != nil {
		return account{}, err
	}
	return account{int(cred.Uid), int(cred.Gid)}, nil
}

// isOwnershipDenied reports whether err means that owners or ACLs cannot be set: the file system
// does not support them, or a container may not set them.
func isOwnershipDenied(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC)
}

// explainOwnershipDenied adds the remedy to an error for which isOwnershipDenied is true.
func explainOwnershipDenied(err error) error {
	if err == nil || !isOwnershipDenied(err) {
		return err
	}
	return fmt.Errorf(`%w: other accounts could not be kept out: have the data directory on a file system with owners and ACLs, or allow Nomad's modes with the client option "alloc_dir.nomad_modes"`, err)
}

// ensureDirForTaskUsers opens or creates a directory for a task's users alone. It changes an existing directory only if
// the directory belongs to none of these users, has Nomad's mode, or has no ACL for admitted users. It does not change a
// directory that a task has mounted there.
func (h *dirHandle) ensureDirForTaskUsers(name string, u taskUsers, nomadMode fs.FileMode) (*dirHandle, error) {
	if u.allowsAllUsers || !isAgentRoot() {
		return h.ensureDir(name, nomadMode, taskOwned)
	}
	dir, made, err := h.openOrMakeDir(name)
	if err != nil {
		return nil, err
	}
	if err := h.restrictDirToTaskUsers(dir, name, made, u, nomadMode); err != nil {
		dir.close()
		return nil, err
	}
	return dir, nil
}

// ensureDirForTaskUsersUnlessReplacedByTask creates a directory for a task's users alone. If the task has replaced it by a
// file or a link, this stays and is no error.
func (h *dirHandle) ensureDirForTaskUsersUnlessReplacedByTask(name string, u taskUsers, nomadMode fs.FileMode) error {
	return closeDirIgnoringErrNotDir(h.ensureDirForTaskUsers(name, u, nomadMode))
}

// restrictDirToTaskUsers lets only a task's users access dir, which is called name in h. With u.allowNomadOpenFileModes,
// dir gets nomadMode if owners or ACLs cannot be set.
func (h *dirHandle) restrictDirToTaskUsers(dir *dirHandle, name string, justCreated bool, u taskUsers, nomadMode fs.FileMode) error {
	err := h.setOwnerModeAndACL(dir, name, justCreated, u)
	if err == nil || !u.allowNomadOpenFileModes || !isOwnershipDenied(err) {
		return explainOwnershipDenied(err)
	}
	return dir.chmod(nomadMode)
}

// setOwnerModeAndACL sets the owner, the mode and the ACL of dir, which is called name in h.
func (h *dirHandle) setOwnerModeAndACL(dir *dirHandle, name string, justCreated bool, u taskUsers) error {
	st, err := dir.stat()
	if err != nil {
		return err
	}
	belongs := int(st.Uid) == u.owner.uid || slices.Contains(u.admittedUIDs, st.Uid)
	nomadMode := st.Mode&0o777 == 0o777
	if !justCreated && (!belongs || nomadMode) {
		if foreign, err := h.isForeignMount(dir, name); foreign || err != nil {
			return err
		}
	}
	if !belongs {
		// If the owner is root, no file changes its owner, because root can read all files. Among the directories that belong to
		// root before the first start, only local can have files: an earlier allocation's data.
		if !justCreated && u.owner != rootAccount && (int(st.Uid) != rootAccount.uid || name == localDirName) {
			if err := dir.chownTree(int(st.Uid), u.owner); err != nil {
				return err
			}
		}
		if err := dir.chown(u.owner); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o700)
	if len(u.admittedUIDs) > 0 {
		mode |= fs.ModeSticky // the sticky bit prevents a user from replacing another user's files
	}
	switch {
	case justCreated && st.Mode&0o7777 == 0o700 && len(u.admittedUIDs) == 0:
		return nil
	case justCreated || !belongs || nomadMode || len(u.admittedUIDs) > 0 && st.Mode&0o070 == 0: // without group permissions, the ACL has not been set
		if err := dir.chmod(mode); err != nil {
			return err
		}
	case len(u.admittedUIDs) == 0 && st.Mode&0o070 != 0:
		// An earlier allocation, from which the directory was moved, may have admitted users. Without an ACL, the
		// group permissions were set by the task itself, and stay.
		dropped, err := dir.dropACL()
		if err != nil || !dropped {
			return err
		}
		return dir.chmod(mode)
	}
	if len(u.admittedUIDs) == 0 {
		return nil
	}
	return dir.setACL(u.admittedUIDs, aclRWX)
}

// isForeignMount reports whether dir, which is called name in h, has a mount not made by the agent.
func (h *dirHandle) isForeignMount(dir *dirHandle, name string) (bool, error) {
	mounted, err := safepath.IsMount(h.fd, dir.fd)
	if err != nil || !mounted {
		return false, err
	}
	if name != secretsDirName && name != privateDirName {
		return true, nil
	}
	tmpfs, err := dir.isOnTmpfs()
	return !tmpfs, err
}

// chownTree changes the owner of user id fromUID's files and directories below h, because a task's user has changed since.
// It does not enter mounts. The caller changes h's owner afterwards, so a repeated call continues an interrupted one.
func (h *dirHandle) chownTree(fromUID int, to account) error {
	fd, err := safepath.OpenAt(h.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return h.wrapDirError("open", err)
	}
	f := os.NewFile(uintptr(fd), h.pathForErrors)
	defer f.Close()
	for {
		names, err := f.Readdirnames(256)
		for _, name := range names {
			if err := h.chownChild(name, fromUID, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (h *dirHandle) chownChild(name string, fromUID int, to account) error {
	fd, err := safepath.OpenAt(h.fd, name, unix.O_PATH, 0)
	if err != nil {
		return h.wrapChildError("open", name, err)
	}
	entry := &dirHandle{fd: fd, pathForErrors: h.pathForErrors + "/" + name}
	defer entry.close()
	if mounted, err := safepath.IsMount(h.fd, fd); mounted || err != nil {
		return err
	}
	st, err := entry.stat()
	if err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir {
		if err := entry.chownTree(fromUID, to); err != nil {
			return err
		}
	}
	// A root file with several hard links may have a name outside the directory, so it keeps its owner.
	if int(st.Uid) != fromUID || fromUID == rootAccount.uid && !isDir && st.Nlink > 1 {
		return nil
	}
	return entry.chown(to)
}

// admitUIDsToTraverse adds users to those who may pass through h, an allocation's directory. The caller holds its Dir's
// mu.
func (h *dirHandle) admitUIDsToTraverse(uids []uint32, allowNomadOpenFileModes bool) error {
	if len(uids) == 0 {
		return nil
	}
	now, err := h.readTraverseUIDs()
	if err != nil {
		return err
	}
	all := slices.Concat(now, uids)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == len(now) {
		return nil
	}
	err = h.setACL(all, aclTraverse)
	if err != nil && allowNomadOpenFileModes && isOwnershipDenied(err) {
		return h.chmod(nomadAllocDirMode)
	}
	return explainOwnershipDenied(err)
}

// RevokeUserAccess makes the allocation's directory inaccessible to a user who could pass through it. It does nothing if
// the directory does not exist, or if the agent is not root. BuildTaskDir admits the user again.
func (d *Dir) RevokeUserAccess(uid uint32) error {
	if !isAgentRoot() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	alloc, err := d.openHandle()
	if err != nil {
		return ignoreMissing(err)
	}
	defer alloc.close()
	admitted, err := alloc.readTraverseUIDs()
	if err != nil || !slices.Contains(admitted, uid) {
		return err
	}
	return alloc.setACL(slices.DeleteFunc(admitted, func(id uint32) bool { return id == uid }), aclTraverse)
}

// nomadAllocDirMode is Nomad's mode for an allocation's directory.
const nomadAllocDirMode fs.FileMode = 0o755

// RestrictToTaskUsers lets only root and the given tasks' users pass through the allocation's directory, if an earlier
// version let all users. The given tasks may be running: their users have access at all times. It does nothing if the
// directory does not exist, or if the agent is not root.
func (d *Dir) RestrictToTaskUsers(tasks []TaskDirOptions) error {
	if !isAgentRoot() {
		return nil
	}
	if err := d.restrictToTaskUsers(tasks); err != nil {
		return fmt.Errorf("restrict alloc directory %s: %w", d.Path(), err)
	}
	return nil
}

func (d *Dir) restrictToTaskUsers(tasks []TaskDirOptions) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	alloc, err := d.openHandle()
	if err != nil {
		return ignoreMissing(err)
	}
	defer alloc.close()
	st, err := alloc.stat()
	if err != nil || st.Mode&0o007 == 0 {
		return err
	}
	var allowedUIDs []uint32
	allowNomadFileModes := false
	for _, t := range tasks {
		u, err := t.lookupUsers()
		allowNomadFileModes = allowNomadFileModes || t.AllowNomadOpenFileModes
		if err != nil {
			continue // no process runs as a user that does not exist
		}
		allowedUIDs = append(allowedUIDs, u.traversingUIDs()...)
	}
	if len(allowedUIDs) == 0 {
		return alloc.chmod(0o700)
	}
	if err := alloc.admitUIDsToTraverse(allowedUIDs, false); err != nil && !(allowNomadFileModes && isOwnershipDenied(err)) {
		return err
	}
	return nil
}

// RestrictToRoot is RestrictToTaskUsers for an allocation without running tasks: only root can access the directory.
func (d *Dir) RestrictToRoot() error { return d.RestrictToTaskUsers(nil) }
