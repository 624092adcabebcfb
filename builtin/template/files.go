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

	"github.com/nomad-lite/nomad-lite/internal/wait"
)

// maxContentSize is the maximum size in bytes of a file that a template reads, of the output of a
// template, and of each string that a template function returns.
const maxContentSize = 4 << 20

// templateDirs are the directories in which templates read and write files. If
// allowHostFiles is true, templates can read files everywhere.
type templateDirs struct {
	taskDir, sharedAllocDir string
	allowHostFiles          bool
}

// rootedPath is the path of a file below a root directory. Symbolic links are
// followed as long as they stay below the root.
type rootedPath struct{ rootDir, pathInRoot string }

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

// readFile returns the content and the modification time of a regular file.
func (p rootedPath) readFile() (content []byte, modTime time.Time, err error) {
	err = p.runConfinedToRoot(func(root *os.Root, name string) error {
		f, err := openRegularFile(root, name)
		if err != nil {
			return err
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return err
		}
		modTime = info.ModTime()
		content, err = io.ReadAll(io.LimitReader(f, maxContentSize+1))
		if err == nil && len(content) > maxContentSize {
			err = fmt.Errorf("%s: more than %d bytes", p.pathInRoot, maxContentSize)
		}
		return err
	})
	return content, modTime, err
}

// fileVersion returns a number that changes with the modification time or the size of the
// file.
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
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", name)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// replaceFileAtomically replaces the file by a rename, so that the task never reads an incomplete file. A
// symbolic link is replaced and not followed. modTime becomes the modification time of the file;
// zero means the current time. A later process that renders a template with time functions reads
// the time back from there, so that it renders the same content.
func (p rootedPath) replaceFileAtomically(content []byte, mode uint32, uid, gid int, modTime time.Time) error {
	return p.runConfinedToRoot(func(root *os.Root, name string) error {
		dir := filepath.Dir(name)
		if err := root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		fresh := filepath.Join(dir, ".template-"+rand.Text())
		f, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
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
		if err == nil && !modTime.IsZero() {
			err = root.Chtimes(fresh, modTime, modTime)
		}
		if err == nil {
			err = root.Rename(fresh, name)
		}
		if err != nil {
			return errors.Join(err, root.Remove(fresh))
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
			real, err := filepath.EvalSymlinks(hostRoot + name)
			if err != nil {
				return err
			}
			name = cmp.Or(strings.TrimPrefix(real, hostRoot), ".")
		}
		return access(root, name)
	})
}

// filePollInterval is the polling interval for changes of files. inotify would not
// report changes that a task makes through another mount.
const filePollInterval = 2 * time.Second

// fetchFileAfterChange is the blockingFetchFunc of a file. Its index is fileVersion, or 1 if
// the file is missing.
func (p rootedPath) fetchFileAfterChange(ctx context.Context, afterIndex uint64) (value any, index uint64, err error) {
	for {
		index, err := p.fileVersion()
		if errors.Is(err, fs.ErrNotExist) {
			index, err = 1, nil
		}
		if err != nil {
			return nil, 0, err
		}
		if afterIndex == 0 || index != afterIndex {
			if index == 1 {
				return nil, index, nil
			}
			content, _, err := p.readFile()
			if err != nil {
				return nil, 0, err
			}
			return string(content), index, nil
		}
		if err := wait.Sleep(ctx, filePollInterval); err != nil {
			return nil, 0, err
		}
	}
}
