package allocdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/plugins/driver"
	"github.com/nomad-lite/nomad-lite/plugins/process"
	"github.com/nomad-lite/nomad-lite/plugins/safepath"
)

// account is a user of the machine with its primary group.
type account struct{ uid, gid int }

// root is the account of an agent that can change owners.
var root = account{0, 0}

// taskUsers are the users that may access the directories of one task.
type taskUsers struct {
	owner    account
	admitted []uint32 // further users, in ascending order; never the owner or root
	open     bool     // all users that can reach the directories may access them: Nomad's modes
	fallback bool     // use Nomad's modes where the owner or an ACL cannot be set
}

// users returns the users that may access the directories of a task under a root agent.
func (o TaskOptions) users() (taskUsers, error) {
	u := taskUsers{owner: root, open: o.Isolation == driver.FSIsolationImage, fallback: o.NomadModes}
	switch {
	case u.open:
		u.owner.uid, u.owner.gid = nobodyAccount() // the user is defined in the image
	case o.User != "":
		var err error
		if u.owner, err = lookupAccount(o.User); err != nil {
			return u, err
		}
	case o.Isolation != driver.FSIsolationNone:
		u.owner.uid, u.owner.gid = nobodyAccount() // such drivers run tasks as nobody
	}
	for _, name := range o.Admitted {
		other, err := lookupAccount(name)
		if err != nil {
			return u, err
		}
		if other.uid != root.uid && other.uid != u.owner.uid {
			u.admitted = append(u.admitted, uint32(other.uid))
		}
	}
	slices.Sort(u.admitted)
	u.admitted = slices.Compact(u.admitted)
	return u, nil
}

// passers returns the users other than root that must pass through the directory of the
// allocation, in ascending order.
func (u taskUsers) passers() []uint32 {
	if u.open || u.owner.uid == root.uid {
		return u.admitted
	}
	all := append([]uint32{uint32(u.owner.uid)}, u.admitted...)
	slices.Sort(all)
	return all
}

func lookupAccount(name string) (account, error) {
	cred, err := process.LookupUser(name)
	if err != nil {
		return account{}, fmt.Errorf("user %q: %w", name, err)
	}
	return account{int(cred.Uid), int(cred.Gid)}, nil
}

// isOwnershipDenied reports whether err means that owners or ACLs cannot be set: the file system
// does not support them, or a container may not set them.
func isOwnershipDenied(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC)
}

// explainDenied adds the remedy to an error for which isOwnershipDenied is true.
func explainDenied(err error) error {
	if err == nil || !isOwnershipDenied(err) {
		return err
	}
	return fmt.Errorf(`%w: other accounts could not be kept out: have the data directory on a file system with owners and ACLs, or allow Nomad's modes with the client option "alloc_dir.nomad_modes"`, err)
}

// ensureFor is ensure for a directory of a task that only the users of the task may
// access. An existing directory is changed only if it belongs to none of them, or has
// Nomad's mode. A directory that a task has mounted there is not changed.
func (h *handle) ensureFor(name string, u taskUsers, nomads fs.FileMode) (*handle, error) {
	if u.open || !isPrivileged() {
		return h.ensure(name, nomads, taskOwned)
	}
	dir, made, err := h.make(name)
	if err != nil {
		return nil, err
	}
	if err := h.restrict(dir, name, made, u, nomads); err != nil {
		dir.close()
		return nil, err
	}
	return dir, nil
}

// ensureExistsFor is ensureFor for a directory that belongs to the task once it exists:
// a file or link that the task has put in its place stays.
func (h *handle) ensureExistsFor(name string, u taskUsers, nomads fs.FileMode) error {
	return closeEnsured(h.ensureFor(name, u, nomads))
}

// restrict gives dir, which is called name in h, to the users of a task, and closes it
// to all others. made means that dir is new.
func (h *handle) restrict(dir *handle, name string, made bool, u taskUsers, nomads fs.FileMode) error {
	err := h.restrictTo(dir, name, made, u)
	if err == nil || !u.fallback || !isOwnershipDenied(err) {
		return explainDenied(err)
	}
	return dir.chmod(nomads)
}

func (h *handle) restrictTo(dir *handle, name string, made bool, u taskUsers) error {
	st, err := dir.stat()
	if err != nil {
		return err
	}
	belongs := int(st.Uid) == u.owner.uid || slices.Contains(u.admitted, st.Uid)
	nomads := st.Mode&0o777 == 0o777
	if !made && (!belongs || nomads) {
		if foreign, err := h.foreignMount(dir, name); foreign || err != nil {
			return err
		}
	}
	if !belongs {
		// No files are given to root, which can read them all. Of the directories that
		// belong to root before the first start, only local can have files: the data of
		// an earlier allocation.
		if !made && u.owner != root && (int(st.Uid) != root.uid || name == localName) {
			if err := dir.follow(int(st.Uid), u.owner); err != nil {
				return err
			}
		}
		if err := dir.chown(u.owner); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o700)
	if len(u.admitted) > 0 {
		mode |= fs.ModeSticky // a user cannot replace files of another user
	}
	switch {
	case made && st.Mode&0o7777 == 0o700 && len(u.admitted) == 0:
		return nil
	case made || !belongs || nomads:
		if err := dir.chmod(mode); err != nil {
			return err
		}
	case len(u.admitted) == 0 && st.Mode&0o070 != 0:
		// An earlier allocation may have admitted users. Access that the task itself
		// has granted to others stays.
		dropped, err := dir.dropACL()
		if err != nil || !dropped {
			return err
		}
		return dir.chmod(mode)
	}
	if len(u.admitted) == 0 {
		return nil
	}
	return dir.setACL(u.admitted, rwx)
}

// foreignMount reports whether a mount that the agent did not make is on dir, which is
// called name in h.
func (h *handle) foreignMount(dir *handle, name string) (bool, error) {
	mounted, err := isMount(h.fd, dir.fd)
	if err != nil || !mounted {
		return false, err
	}
	if name != secretsName && name != privateName {
		return true, nil
	}
	tmpfs, err := dir.onTmpfs()
	return !tmpfs, err
}

// follow changes the owner of everything in the directory tree that belongs to user id
// from, because the user of a task has changed since the files were created. It does
// not enter mounts. The caller changes the directory itself afterwards, so that an
// interrupted call is repeated.
func (h *handle) follow(from int, to account) error {
	fd, err := safepath.OpenAt(h.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return h.wrapError("open", err)
	}
	f := os.NewFile(uintptr(fd), h.path)
	defer f.Close()
	for {
		names, err := f.Readdirnames(256)
		for _, name := range names {
			if err := h.followOne(name, from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

func (h *handle) followOne(name string, from int, to account) error {
	fd, err := safepath.OpenAt(h.fd, name, unix.O_PATH, 0)
	if err != nil {
		return h.errorf("open", name, err)
	}
	entry := &handle{fd: fd, path: h.path + "/" + name}
	defer entry.close()
	if mounted, err := isMount(h.fd, fd); mounted || err != nil {
		return err
	}
	st, err := entry.stat()
	if err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if isDir {
		if err := entry.follow(from, to); err != nil {
			return err
		}
	}
	// A file of root with several hard links may also be outside the directory.
	if int(st.Uid) != from || from == root.uid && !isDir && st.Nlink > 1 {
		return nil
	}
	return entry.chown(to)
}

// admit lets further users pass through the directory of the allocation. The caller
// holds d.mu.
func (h *handle) admit(users []uint32, fallback bool) error {
	if len(users) == 0 {
		return nil
	}
	now, err := h.admittedUsers()
	if err != nil {
		return err
	}
	all := slices.Concat(now, users)
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == len(now) {
		return nil
	}
	err = h.setACL(all, traverse)
	if err != nil && fallback && isOwnershipDenied(err) {
		return h.chmod(openMode)
	}
	return explainDenied(err)
}

// openMode is Nomad's mode of the directory of an allocation.
const openMode fs.FileMode = 0o755

// Restrict closes the directory of the allocation to all accounts except the users of
// the tasks, if an earlier version left it open. The given tasks may be running: their
// users are not locked out at any time. It does nothing if the directory does not
// exist, or if the agent is not root.
func (d *Dir) Restrict(tasks []TaskOptions) error {
	if !isPrivileged() {
		return nil
	}
	if err := d.restrict(tasks); err != nil {
		return fmt.Errorf("restrict alloc directory %s: %w", d.Path(), err)
	}
	return nil
}

func (d *Dir) restrict(tasks []TaskOptions) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	alloc, err := d.open()
	if err != nil {
		return ignoreMissing(err)
	}
	defer alloc.close()
	st, err := alloc.stat()
	if err != nil || st.Mode&0o007 == 0 {
		return err
	}
	var users []uint32
	fallback := false
	for _, t := range tasks {
		u, err := t.users()
		fallback = fallback || t.NomadModes
		if err != nil {
			continue // no process runs as a user that does not exist
		}
		users = append(users, u.passers()...)
	}
	if len(users) == 0 {
		return alloc.chmod(0o700)
	}
	if err := alloc.admit(users, false); err != nil && !(fallback && isOwnershipDenied(err)) {
		return err
	}
	return nil
}

// Close closes the directory of an allocation without running tasks to all accounts
// except the agent's.
func (d *Dir) Close() error { return d.Restrict(nil) }
