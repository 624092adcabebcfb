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

	"github.com/nomad-lite/nomad-lite/plugins/safepath"
)

// Sweep unmounts and removes a directory that a process of this program has left, with
// everything in it. It rejects a directory that belongs to another user, and does
// nothing if the directory does not exist.
func Sweep(path string) error {
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
	if err := removeBelow(filepath.Dir(path), filepath.Base(path)); err != nil {
		return fmt.Errorf("sweep %s: %w", path, err)
	}
	return nil
}

// removeBelow removes one name, and everything below it, in a directory that only the
// agent and the operator can replace.
func removeBelow(parent, name string) error {
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
	err = dir.removeAll(name, withTop)
	if errors.Is(err, unix.EBUSY) {
		// The directory was a mount point in another mount of the same files, like
		// alloc/logs in the directory of each chroot task. The first removal has
		// unmounted it.
		err = dir.removeAll(name, withTop)
	}
	return err
}

// removeMode defines whether the directory itself is removed with its content.
type removeMode bool

const (
	withTop removeMode = true
	keepTop removeMode = false
)

const (
	// maxDepth limits the number of directories that are open at a time. Deeper
	// directories are moved up first.
	maxDepth = 64
	// maxErrors limits the number of errors that are returned.
	maxErrors = 8
	// maxPasses limits how often a directory is emptied while another process fills it.
	maxPasses = 16
)

// removeAll removes the tree called name. It does not follow links, and unmounts mounts
// instead of entering them.
func (h *handle) removeAll(name string, t removeMode) error {
	r := remover{}
	if err := r.tree(h, name, t); err != nil {
		r.fail(err)
	}
	if r.failed > len(r.errs) {
		r.errs = append(r.errs, fmt.Errorf("and %d more", r.failed-len(r.errs)))
	}
	return errors.Join(r.errs...)
}

// remover is the state of the removal of one tree.
type remover struct {
	base   *os.File // directory at the top of the tree
	moved  []string // names, in base, of the directories that the remover has moved there because they were nested too deeply
	serial int
	errs   []error
	failed int
}

func (r *remover) fail(err error) {
	r.failed++
	if len(r.errs) < maxErrors {
		r.errs = append(r.errs, err)
	}
}

func (r *remover) tree(h *handle, name string, t removeMode) error {
	base, err := h.openDir(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, errNotDir):
		return h.remove(name)
	case err != nil:
		return err
	}
	defer base.Close()
	r.base = base

	r.empty(base, 0)
	for len(r.moved) > 0 {
		last := len(r.moved) - 1
		name := r.moved[last]
		r.moved = r.moved[:last]
		r.one(base, name, 0)
	}
	if t == keepTop || r.failed > 0 {
		return nil
	}
	return ignoreMissing(h.errorf("rmdir", name, unix.Unlinkat(h.fd, name, unix.AT_REMOVEDIR)))
}

// empty removes the content of dir.
func (r *remover) empty(dir *os.File, depth int) {
	for range maxPasses {
		before, found := r.failed, false
		if _, err := dir.Seek(0, io.SeekStart); err != nil {
			r.fail(err)
			return
		}
		for {
			names, err := dir.Readdirnames(256)
			for _, name := range names {
				found = true
				r.one(dir, name, depth)
			}
			if err == nil {
				continue
			}
			if !errors.Is(err, io.EOF) {
				r.fail(err)
			}
			break
		}
		// Some file systems skip names during concurrent removal, so read the directory
		// again.
		if !found || r.failed > before {
			return
		}
	}
}

// one removes one name in dir, whatever its type.
func (r *remover) one(dir *os.File, name string, depth int) {
	h := &handle{fd: int(dir.Fd()), path: dir.Name()}
	err := unlink(h, name, 0)
	if !errors.Is(err, unix.EISDIR) {
		r.failUnlessMissing(h.errorf("remove", name, err))
		return
	}
	err = unlink(h, name, unix.AT_REMOVEDIR)
	if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		r.failUnlessMissing(h.errorf("rmdir", name, err))
		return
	}

	if depth >= maxDepth {
		r.failUnlessMissing(r.moveUp(h, name))
		return
	}
	child, err := h.openDir(name)
	if err != nil {
		r.failUnlessMissing(err)
		return
	}
	before := r.failed
	r.empty(child, depth+1)
	child.Close()
	if r.failed == before {
		r.failUnlessMissing(h.errorf("rmdir", name, unlink(h, name, unix.AT_REMOVEDIR)))
	}
}

// moveUp moves a directory that is too deep to the top of the tree.
func (r *remover) moveUp(h *handle, name string) error {
	for {
		r.serial++
		moved := ".removed-" + strconv.Itoa(r.serial)
		err := unix.Renameat(h.fd, name, int(r.base.Fd()), moved)
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
			continue // a task has created a file of this name
		}
		if err != nil {
			return h.errorf("rename", name, err)
		}
		r.moved = append(r.moved, moved)
		return nil
	}
}

func (r *remover) failUnlessMissing(err error) {
	if err := ignoreMissing(err); err != nil {
		r.fail(err)
	}
}

// unlink removes a file or an empty directory, after unmounting the file systems that are mounted on it.
func unlink(h *handle, name string, flags int) error {
	err := unix.Unlinkat(h.fd, name, flags)
	if errors.Is(err, unix.EBUSY) {
		if err := h.unmount(name); err != nil {
			return err
		}
		err = unix.Unlinkat(h.fd, name, flags)
	}
	return err
}

// openDir opens a directory for reading. The directory must be on the same mount as h.
// If its owner has removed the permissions, openDir restores them.
func (h *handle) openDir(name string) (*os.File, error) {
	if err := h.unlock(name); err != nil {
		return nil, err
	}
	fd, err := safepath.OpenAt(h.fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, h.errorf("open", name, err)
	}
	mounted, err := isMount(h.fd, fd)
	if err == nil && mounted {
		err = errors.New("something is mounted there")
	}
	if err != nil {
		unix.Close(fd)
		return nil, h.errorf("open", name, err)
	}
	return os.NewFile(uintptr(fd), h.path+"/"+name), nil
}

// unlock restores the permissions of a directory of the agent's user that a task has
// made read-only, as Go does with its module cache. Root does not need that.
func (h *handle) unlock(name string) error {
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
	return os.Chmod(dir.proc(), 0o700)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
