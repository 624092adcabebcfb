package template

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/builtin/template/evaluate"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// maxContentSize limits a file that a template reads, in bytes. The next process of the hook reads the output of the template, which is
// not larger.
const maxContentSize = evaluate.MaxOutputSize

// templateDirs are the directories in which templates read and write files. If
// allowHostFiles is true, templates can read files everywhere.
type templateDirs struct {
	taskDir, sharedAllocDir string
	allowHostFiles          bool
}

// rootedPath is the path of a file below a root directory. Symbolic links are
// followed as long as they stay below the root.
type rootedPath struct{ rootDir, pathInRoot string }

func (p rootedPath) String() string { return filepath.Join(p.rootDir, p.pathInRoot) }

// newPrivatePath returns the path of a file in the private directory of a task. Its root is the directory of the task: the task may be able
// to replace its private directory by a link.
func newPrivatePath(d hook.TaskDir, name string) rootedPath {
	if below, ok := strings.CutPrefix(d.PrivateDir, d.Dir+"/"); ok {
		return rootedPath{d.Dir, filepath.Join(below, name)}
	}
	return rootedPath{d.PrivateDir, name}
}

// isBelow reports whether the path is in the directory of other, or below it.
func (p rootedPath) isBelow(other rootedPath) bool {
	return strings.HasPrefix(p.String()+"/", filepath.Dir(other.String())+"/")
}

// hostRoot is the root for files outside of the task's directories. All symbolic
// links are followed there.
const hostRoot = "/"

// resolvePath resolves a path without access to the file system. A relative path is below the
// directory of the task. If joinOutsidePathsToTaskDir is true, an absolute path outside of the directories
// is also joined to the directory of the task.
func (d templateDirs) resolvePath(path string, joinOutsidePathsToTaskDir bool) (rootedPath, bool) {
	clean := filepath.Clean(path)
	if _, inside := d.toRootedPath(clean); !filepath.IsAbs(path) || joinOutsidePathsToTaskDir && !inside {
		clean = filepath.Join(d.taskDir, path)
	}
	return d.toRootedPath(clean)
}

// resolveReadablePath is resolvePath for files that are only read: with
// allowHostFiles, the path may lead anywhere.
func (d templateDirs) resolveReadablePath(path string) (rootedPath, bool) {
	if !d.allowHostFiles {
		return d.resolvePath(path, false)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(d.taskDir, path)
	}
	return rootedPath{hostRoot, strings.TrimPrefix(filepath.Clean(path), hostRoot)}, true
}

func (d templateDirs) toRootedPath(path string) (rootedPath, bool) {
	for _, root := range []string{d.taskDir, d.sharedAllocDir} {
		if name, ok := strings.CutPrefix(path, root+"/"); ok && root != "" {
			return rootedPath{root, name}, true
		}
	}
	return rootedPath{}, false
}

// readFile returns the content of a file.
func (p rootedPath) readFile() (content []byte, err error) {
	err = p.runConfinedToRoot(func(root *os.Root, name string) error {
		f, err := openRegularFile(root, name)
		if err != nil {
			return err
		}
		defer f.Close()
		content, err = io.ReadAll(io.LimitReader(f, maxContentSize+1))
		if err == nil && len(content) > maxContentSize {
			err = fmt.Errorf("%s: more than %d bytes", p.pathInRoot, maxContentSize)
		}
		return err
	})
	return content, err
}

// fileVersion returns a number that changes when the modification time or the size of the file changes. It is at least 2: index 0 requests
// the first read, and 1 is the index of a path without a file.
func (p rootedPath) fileVersion() (version uint64, err error) {
	err = p.runConfinedToRoot(func(root *os.Root, name string) error {
		info, err := root.Stat(name)
		if err != nil {
			return err
		}
		version = max(2, uint64(info.ModTime().UnixNano())^uint64(info.Size())<<1)
		return nil
	})
	return version, err
}

// openRegularFile opens a file for reading, and does not block on a FIFO.
func openRegularFile(root *os.Root, name string) (*os.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case info.IsDir():
		err = &fs.PathError{Op: "read", Path: name, Err: unix.EISDIR}
	case root.Name() == hostRoot: // the operator lets templates read everything
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s: not a regular file", name)
	case isOnMountOfMachine(f) && !canEveryUserRead(root, name, info):
		err = &fs.PathError{Op: "open", Path: name, Err: unix.EACCES}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// canEveryUserRead reports whether the file and its parent directories below the root have modes that let every user read the file.
func canEveryUserRead(root *os.Root, name string, file fs.FileInfo) bool {
	for dir := filepath.Dir(name); dir != "."; dir = filepath.Dir(dir) {
		if info, err := root.Stat(dir); err != nil || info.Mode()&0o001 == 0 {
			return false
		}
	}
	return file.Mode()&0o004 != 0
}

// isOnMountOfMachine reports whether a file is on a mount that shows files of the machine below the directory of a task, such as /etc in a
// chroot: this process can read them, and not every user of a task. It also returns true if the mount cannot be examined.
func isOnMountOfMachine(f *os.File) bool {
	var stat unix.Statfs_t
	err := unix.Fstatfs(int(f.Fd()), &stat)
	return err != nil || stat.Flags&unix.ST_RDONLY != 0 || stat.Type == unix.PROC_SUPER_MAGIC
}

// replaceFileAtomically replaces the file by a rename, so that the task never reads an incomplete file. A
// symbolic link is replaced and not followed.
func (p rootedPath) replaceFileAtomically(content []byte, mode uint32, uid, gid int) error {
	return p.runConfinedToRoot(func(root *os.Root, name string) error {
		dir := filepath.Dir(name)
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		tmpName := filepath.Join(dir, ".template-"+rand.Text())
		f, err := root.OpenFile(tmpName, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(content)
		if err == nil && (uid >= 0 || gid >= 0) {
			err = f.Chown(uid, gid)
		}
		if err == nil {
			err = f.Chmod(fs.FileMode(mode))
		}
		err = errors.Join(err, f.Close())
		if err == nil {
			err = root.Rename(tmpName, name)
		}
		if err != nil {
			return errors.Join(err, root.Remove(tmpName))
		}
		return nil
	})
}

// runConfinedToRoot calls access with an open root, on a thread that cannot access other
// files if the kernel supports Landlock.
func (p rootedPath) runConfinedToRoot(access func(root *os.Root, name string) error) error {
	return runOnThreadConfinedToDir(p.rootDir, func(root *os.Root) error {
		name := p.pathInRoot
		if p.rootDir == hostRoot {
			target, err := filepath.EvalSymlinks(hostRoot + name)
			if err != nil {
				return err
			}
			name = cmp.Or(strings.TrimPrefix(target, hostRoot), ".")
		}
		return access(root, name)
	})
}

// filePollInterval is the polling interval for changes of files. inotify would not
// report changes that a task makes through another mount.
const filePollInterval = 2 * time.Second

// pollThreads has an element for each thread that polls a file, of all tasks.
var pollThreads = make(chan struct{}, 16)

// newFileFetchFunc returns the fetchFunc of a file that a template reads. Its errors are Nomad's: a path that cannot be resolved
// or leads outside is an error of the function file, and a file that cannot be read fails the template.
func (d templateDirs) newFileFetchFunc(path string) fetchFunc {
	at, resolveErr := d.resolveFileToRead(path)
	return func(ctx context.Context, afterIndex uint64) (evaluate.Datum, uint64, error) {
		for {
			version, err := uint64(1), resolveErr
			if afterIndex > 0 {
				select {
				case pollThreads <- struct{}{}:
				case <-ctx.Done():
					return evaluate.Datum{}, 0, ctx.Err()
				}
			}
			if err == nil {
				version, err = at.fileVersion()
			}
			if afterIndex > 0 {
				<-pollThreads
			}
			if afterIndex == 0 || err == nil && version != afterIndex {
				return d.readFileForTemplate(at, path, version, err, afterIndex == 0)
			}
			if err := wait.Sleep(ctx, filePollInterval); err != nil {
				return evaluate.Datum{}, 0, err
			}
		}
	}
}

// readFileForTemplate reads a file for a query. resolveErr is the error with which the path was resolved. If a file disappears while its
// task runs, the query keeps its answer.
func (d templateDirs) readFileForTemplate(at rootedPath, path string, version uint64, resolveErr error, isFirstRead bool) (evaluate.Datum, uint64, error) {
	switch {
	case resolveErr != nil && d.allowHostFiles:
		return evaluate.Datum{}, 0, newRenderError(fmt.Sprintf("file(%s): %v", path, fileError("stat", path, resolveErr)))
	case resolveErr != nil:
		return evaluate.Datum{Err: d.explainUnresolved(path, at, resolveErr)}, 1, nil
	}
	content, err := at.readFile()
	switch {
	case err != nil && isFirstRead:
		return evaluate.Datum{}, 0, newRenderError(fmt.Sprintf("file(%s): %v", path, fileError("read", path, err)))
	case err != nil:
		return evaluate.Datum{}, 0, err
	}
	return evaluate.Datum{Value: evaluate.Value{Exists: true, Text: string(content)}}, version, nil
}

// fileError returns an error of the file system with the operation and the path that Nomad's error has.
func fileError(operation, path string, err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		err = pathErr.Err
	}
	return &fs.PathError{Op: operation, Path: path, Err: err}
}

// errOutsideSandbox is the error of a path that leads outside of the directory of the task.
var errOutsideSandbox = errors.New("outside of sandbox")

// resolveFileToRead resolves the argument of the function file, which is an absolute path below the directory of the task.
func (d templateDirs) resolveFileToRead(path string) (rootedPath, error) {
	if !filepath.IsAbs(path) {
		return rootedPath{}, fs.ErrNotExist // relative to the directory of the agent, where no task has a file
	}
	at, ok := d.resolveReadablePath(path)
	if !ok {
		return rootedPath{}, errOutsideSandbox
	}
	if at.rootDir == d.sharedAllocDir {
		if _, err := at.fileVersion(); err != nil {
			return at, err
		}
		return rootedPath{}, errOutsideSandbox
	}
	return at, nil
}

// explainUnresolved returns the text of the error for a path that could not be resolved.
func (d templateDirs) explainUnresolved(path string, at rootedPath, err error) string {
	const prefix = "failed to resolve target path: "
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return prefix + "not a directory"
	case errors.Is(err, fs.ErrNotExist):
		return prefix + "lstat " + firstMissingPath(path, at) + ": no such file or directory"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ELOOP):
		return prefix + fileError("lstat", path, err).Error()
	}
	return "'" + path + "' is outside of sandbox"
}

// firstMissingPath returns the shortest prefix of a path that does not exist.
func firstMissingPath(path string, at rootedPath) string {
	clean := filepath.Clean(path)
	if at.rootDir == "" { // a relative path
		prefix := ""
		for part := range strings.SplitSeq(clean, "/") {
			prefix = filepath.Join(prefix, part)
			if part != ".." {
				break
			}
		}
		return prefix
	}
	missing := clean
	_ = at.runConfinedToRoot(func(root *os.Root, name string) error {
		for dir := name; dir != "."; dir = filepath.Dir(dir) {
			if _, err := root.Lstat(dir); err == nil {
				break
			}
			missing = filepath.Join(at.rootDir, dir)
		}
		return nil
	})
	return missing
}
