package allocdir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// RemoveAllocDir unmounts and removes a directory that a process of this program has left, with
// everything in it. It rejects a directory that belongs to another user, and does
// nothing if the directory does not exist.
func RemoveAllocDir(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sweep: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("sweep %s: %w", path, errNotDir)
	}
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return fmt.Errorf("sweep %s: %w", path, err)
	}
	if int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("sweep %s: it belongs to user id %d", path, st.Uid)
	}
	if err := removeChild(filepath.Dir(path), filepath.Base(path)); err != nil {
		return fmt.Errorf("sweep %s: %w", path, err)
	}
	return nil
}

// removeChild removes one name, and everything below it, in a directory that only the
// agent and the operator can replace.
func removeChild(parent, name string) error {
	dir, err := openPath(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	if err := dir.unmount(name); err != nil {
		return err
	}
	err = dir.removeAll(name, removeTopDir)
	if errors.Is(err, unix.EBUSY) {
		// The directory was a mount point in another mount of the same files, like
		// alloc/logs in the directory of each chroot task. The first removal has
		// unmounted it.
		err = dir.removeAll(name, removeTopDir)
	}
	return err
}

// RemoveTree removes one name, and everything below it, in a directory that only the agent and the operator can
// replace. It does not follow links. It leaves what is mounted in the tree, and the directories above it, and returns an
// error for it. It does nothing if the name does not exist.
func RemoveTree(parent, name string) error {
	dir, err := openPath(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	r := treeRemover{keepMounts: true}
	return r.remove(dir, name, removeTopDir)
}

// topDirRemoval defines whether the directory itself is removed with its content.
type topDirRemoval bool

const (
	removeTopDir topDirRemoval = true
	keepTopDir   topDirRemoval = false
)

const (
	// maxDepth limits the number of directories that are open at a time. Deeper
	// directories are moved up first.
	maxDepth = 64
	// maxErrors limits the number of errors that are returned.
	maxErrors = 8
	// maxEmptyingPasses limits how often a directory is emptied while another process fills it.
	maxEmptyingPasses = 16
)

// removeAll removes the tree called name. It does not follow links, and unmounts mounts
// instead of entering them.
func (h *dirHandle) removeAll(name string, t topDirRemoval) error {
	r := treeRemover{}
	return r.remove(h, name, t)
}

// remove removes the tree called name in h, and returns the first errors.
func (r *treeRemover) remove(h *dirHandle, name string, t topDirRemoval) error {
	if err := r.removeTree(h, name, t); err != nil {
		r.addError(err)
	}
	if r.errorCount > len(r.errs) {
		r.errs = append(r.errs, fmt.Errorf("and %d more", r.errorCount-len(r.errs)))
	}
	return errors.Join(r.errs...)
}

// treeRemover is the state of the removal of one tree.
type treeRemover struct {
	top             *os.File // directory at the top of the tree
	movedNames      []string // names, in top, of the directories that the remover has moved there because they were nested too deeply
	lastMovedNumber int
	keepMounts      bool // a mount in the tree is an error, and is not unmounted
	errs            []error
	errorCount      int
}

func (r *treeRemover) addError(err error) {
	r.errorCount++
	if len(r.errs) < maxErrors {
		r.errs = append(r.errs, err)
	}
}

func (r *treeRemover) removeTree(h *dirHandle, name string, t topDirRemoval) error {
	base, err := h.openDir(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errNotDir):
		return h.removeFile(name)
	case err != nil:
		return err
	}
	defer base.Close()
	r.top = base

	r.removeContent(base, 0)
	for len(r.movedNames) > 0 {
		last := len(r.movedNames) - 1
		name := r.movedNames[last]
		r.movedNames = r.movedNames[:last]
		r.removeEntry(base, name, 0)
	}
	if t == keepTopDir || r.errorCount > 0 {
		return nil
	}
	return ignoreMissing(h.errorf("rmdir", name, unix.Unlinkat(h.fd, name, unix.AT_REMOVEDIR)))
}

// removeContent removes the content of dir.
func (r *treeRemover) removeContent(dir *os.File, depth int) {
	for range maxEmptyingPasses {
		before, found := r.errorCount, false
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			r.addError(err)
			return
		}
		for {
			names, err := dir.Readdirnames(256)
			for _, name := range names {
				found = true
				r.removeEntry(dir, name, depth)
			}
			if err == nil {
				continue
			}
			if !errors.Is(err, io.EOF) && !errors.Is(err, fs.ErrNotExist) { // another process can remove the directory meanwhile
				r.addError(err)
			}
			break
		}
		// Some file systems skip names during concurrent removal, so read the directory
		// again.
		if !found || r.errorCount > before {
			return
		}
	}
}

// removeEntry removes one name in dir, whatever its type.
func (r *treeRemover) removeEntry(dir *os.File, name string, depth int) {
	h := &dirHandle{fd: int(dir.Fd()), path: dir.Name()}
	err := r.unlink(h, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		r.addErrorUnlessMissing(h.errorf("remove", name, err))
		return
	}
	err = r.unlink(h, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		r.addErrorUnlessMissing(h.errorf("rmdir", name, err))
		return
	}

	if depth >= maxDepth {
		r.addErrorUnlessMissing(r.moveToTop(h, name))
		return
	}
	child, err := h.openDir(name)
	if err != nil {
		r.addErrorUnlessMissing(err)
		return
	}
	before := r.errorCount
	r.removeContent(child, depth+1)
	child.Close()
	if r.errorCount == before {
		r.addErrorUnlessMissing(h.errorf("rmdir", name, r.unlink(h, name, unix.AT_REMOVEDIR)))
	}
}

// moveToTop moves a directory that is too deep to the top of the tree.
func (r *treeRemover) moveToTop(h *dirHandle, name string) error {
	for {
		r.lastMovedNumber++
		moved := ".removed-" + strconv.Itoa(r.lastMovedNumber)
		err := unix.Renameat(h.fd, name, int(r.top.Fd()), moved)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
			continue // a task has created a file of this name, so the next name is tried
		}
		if err != nil {
			return h.errorf("rename", name, err)
		}
		r.movedNames = append(r.movedNames, moved)
		return nil
	}
}

func (r *treeRemover) addErrorUnlessMissing(err error) {
	if err := ignoreMissing(err); err != nil {
		r.addError(err)
	}
}

// unlink removes a file or an empty directory, after unmounting the file systems that are mounted on it unless they are
// kept.
func (r *treeRemover) unlink(h *dirHandle, name string, flags int) error {
	err := unix.Unlinkat(h.fd, name, flags)
	if errors.Is(err, unix.EBUSY) && !r.keepMounts {
		if err := h.unmount(name); err != nil {
			return err
		}
		err = unix.Unlinkat(h.fd, name, flags)
	}
	return err
}

// openDir opens a directory for reading. The directory must be on the same mount as h.
// If its owner has removed the permissions, openDir restores them.
func (h *dirHandle) openDir(name string) (*os.File, error) {
	if err := h.restorePermissions(name); err != nil {
		return nil, err
	}
	fd, err := safepath.OpenAt(h.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, h.errorf("open", name, err)
	}
	mounted, err := safepath.IsMount(h.fd, fd)
	if err == nil && mounted {
		err = errors.New("something is mounted there")
	}
	if err != nil {
		unix.Close(fd)
		return nil, h.errorf("open", name, err)
	}
	return os.NewFile(uintptr(fd), h.path+"/"+name), nil
}

// restorePermissions restores the permissions of a directory of the agent's user that a task has
// made read-only, as Go does with its module cache. Root does not need that.
func (h *dirHandle) restorePermissions(name string) error {
	dir, err := h.open(name)
	if err != nil {
		return err
	}
	defer dir.close()
	if isPrivileged() {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir.fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir.path, Err: err}
	}
	if st.Mode&0o700 == 0o700 || int(st.Uid) != os.Geteuid() {
		return nil
	}
	return os.Chmod(dir.procPath(), 0o700)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
