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

// UnmountAndRemoveOwnDir unmounts and removes a directory made by an agent, with all allocations in it. It returns an error
// for another user's directory, and does nothing if the directory does not exist.
func UnmountAndRemoveOwnDir(path string) error {
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
	everything := func(string) bool { return true }
	if err := errors.Join(unmountBelowPath(path, everything), unmountAndRemove(filepath.Dir(path), filepath.Base(path))); err != nil {
		return fmt.Errorf("sweep %s: %w", path, err)
	}
	return nil
}

// unmountAndRemove unmounts and removes one name, and everything below it. parent is a directory that
// only the agent and the operator can replace.
func unmountAndRemove(parent, name string) error {
	dir, err := openTrustedDir(parent)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	if err := dir.detachAllMounts(name); err != nil {
		return err
	}
	err = dir.removeAll(name, removeTopDir)
	if errors.Is(err, unix.EBUSY) {
		// The first call could not remove a mount point, like alloc/logs, because the same directory was still mounted elsewhere
		// in the tree: in each chroot task's root directory. The first call has unmounted that too.
		err = dir.removeAll(name, removeTopDir)
	}
	return err
}

// RemoveTreeExceptMounts removes one name, and everything below it, in a directory that only the agent and the operator can
// replace. It does not follow links. It leaves what is mounted in the tree, and the directories above it, and returns an
// error for it. It does nothing if the name does not exist.
func RemoveTreeExceptMounts(parent, name string) error {
	dir, err := openTrustedDir(parent)
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

// removesTopDir says whether to remove a tree's top directory, or only its content.
type removesTopDir bool

const (
	removeTopDir removesTopDir = true
	keepTopDir   removesTopDir = false
)

const (
	// maxOpenDirs limits how many directories are open at a time. A deeper directory is first moved to the tree's top.
	maxOpenDirs = 64
	// maxReturnedErrors limits how many errors are returned.
	maxReturnedErrors = 8
	// maxEmptyingPasses limits how often a directory is emptied while another process fills it.
	maxEmptyingPasses = 16
)

// removeAll removes the tree called name. It does not follow links, and unmounts mounts instead of entering them.
func (h *dirHandle) removeAll(name string, t removesTopDir) error {
	r := treeRemover{}
	return r.remove(h, name, t)
}

// remove removes the tree called name in h, and returns the first maxReturnedErrors errors.
func (r *treeRemover) remove(h *dirHandle, name string, t removesTopDir) error {
	if err := r.removeTree(h, name, t); err != nil {
		r.addError(err)
	}
	if r.errorCount > len(r.firstErrs) {
		r.firstErrs = append(r.firstErrs, fmt.Errorf("and %d more", r.errorCount-len(r.firstErrs)))
	}
	return errors.Join(r.firstErrs...)
}

// treeRemover removes one tree, and has the removal's state.
type treeRemover struct {
	topDir           *os.File // the tree's top directory
	namesMovedToTop  []string // names, in topDir, of deeply nested directories; the remover has moved them there
	movedNameCounter int
	keepMounts       bool    // a mount in the tree is an error, and is not unmounted
	firstErrs        []error // the first errors, at most maxReturnedErrors
	errorCount       int     // all errors
}

func (r *treeRemover) addError(err error) {
	r.errorCount++
	if len(r.firstErrs) < maxReturnedErrors {
		r.firstErrs = append(r.firstErrs, err)
	}
}

// removeTree removes the tree called name in h. It adds errors below the top directory to r.errs, and returns others.
func (r *treeRemover) removeTree(h *dirHandle, name string, t removesTopDir) error {
	base, err := h.openDirRestoringPermissions(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errNotDir):
		return h.removeFile(name)
	case err != nil:
		return err
	}
	defer base.Close()
	r.topDir = base

	r.removeDirContent(base, 0)
	for len(r.namesMovedToTop) > 0 {
		last := len(r.namesMovedToTop) - 1
		name := r.namesMovedToTop[last]
		r.namesMovedToTop = r.namesMovedToTop[:last]
		r.removeEntry(base, name, 0)
	}
	if t == keepTopDir || r.errorCount > 0 {
		return nil
	}
	return ignoreMissing(h.wrapChildError("rmdir", name, unix.Unlinkat(h.fd, name, unix.AT_REMOVEDIR)))
}

// removeDirContent removes everything in dir, which is depth levels below the tree's top.
func (r *treeRemover) removeDirContent(dir *os.File, depth int) {
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
		// Some file systems skip names if files are removed while the directory is read, so
		// it is read again until it is empty.
		if !found || r.errorCount > before {
			return
		}
	}
}

// removeEntry removes a file, a link, or a directory with its content.
func (r *treeRemover) removeEntry(dir *os.File, name string, depth int) {
	h := &dirHandle{fd: int(dir.Fd()), pathForErrors: dir.Name()}
	err := r.unlinkUnmountingIfBusy(h, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		r.addErrorUnlessMissing(h.wrapChildError("remove", name, err))
		return
	}
	err = r.unlinkUnmountingIfBusy(h, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		r.addErrorUnlessMissing(h.wrapChildError("rmdir", name, err))
		return
	}

	if depth >= maxOpenDirs {
		r.addErrorUnlessMissing(r.moveDirToTop(h, name))
		return
	}
	child, err := h.openDirRestoringPermissions(name)
	if err != nil {
		r.addErrorUnlessMissing(err)
		return
	}
	before := r.errorCount
	r.removeDirContent(child, depth+1)
	child.Close()
	if r.errorCount == before {
		r.addErrorUnlessMissing(h.wrapChildError("rmdir", name, r.unlinkUnmountingIfBusy(h, name, unix.AT_REMOVEDIR)))
	}
}

// moveDirToTop moves a directory from too deep in the tree to its top.
func (r *treeRemover) moveDirToTop(h *dirHandle, name string) error {
	for {
		r.movedNameCounter++
		moved := ".removed-" + strconv.Itoa(r.movedNameCounter)
		err := unix.Renameat(h.fd, name, int(r.topDir.Fd()), moved)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
			continue // a task has created a file with this name, so the next name is tried
		}
		if err != nil {
			return h.wrapChildError("rename", name, err)
		}
		r.namesMovedToTop = append(r.namesMovedToTop, moved)
		return nil
	}
}

func (r *treeRemover) addErrorUnlessMissing(err error) {
	if err := ignoreMissing(err); err != nil {
		r.addError(err)
	}
}

// unlinkUnmountingIfBusy removes a file or an empty directory. It first unmounts file systems on it, unless keepMounts is
// set.
func (r *treeRemover) unlinkUnmountingIfBusy(h *dirHandle, name string, flags int) error {
	err := unix.Unlinkat(h.fd, name, flags)
	if errors.Is(err, unix.EBUSY) && !r.keepMounts {
		if err := h.detachAllMounts(name); err != nil {
			return err
		}
		err = unix.Unlinkat(h.fd, name, flags)
	}
	return err
}

// openDirRestoringPermissions opens a directory for reading. The directory must be on the same mount as h.
// If its owner has removed the permissions, openDirRestoringPermissions restores them.
func (h *dirHandle) openDirRestoringPermissions(name string) (*os.File, error) {
	if !isAgentRoot() { // permissions do not restrict root
		if err := h.restoreOwnerPermissions(name); err != nil {
			return nil, err
		}
	}
	dir, err := openDirAt(h.fd, name, h.pathForErrors+"/"+name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	mounted, err := safepath.IsMount(h.fd, dir.fd)
	if err == nil && mounted {
		err = errors.New("something is mounted there")
	}
	if err != nil {
		dir.close()
		return nil, h.wrapChildError("open", name, err)
	}
	return os.NewFile(uintptr(dir.fd), dir.pathForErrors), nil
}

// restoreOwnerPermissions restores the permissions if a task has made a directory of the agent's user read-only, as Go does
// with its module cache.
func (h *dirHandle) restoreOwnerPermissions(name string) error {
	dir, err := h.open(name)
	if err != nil {
		return err
	}
	defer dir.close()
	var st unix.Stat_t
	if err := unix.Fstat(dir.fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir.pathForErrors, Err: err}
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
