package taskfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

// ErrPathEscapes means that a path leads out of the directory of the allocation. The
// text is Nomad's.
var ErrPathEscapes = errors.New("Path escapes the alloc directory")

// ErrDirectory means that a file's path is a directory.
var ErrDirectory = errors.New("is a directory")

// ErrNotRegular means that a path leads to a FIFO, a socket or a device.
var ErrNotRegular = errors.New("is not a regular file")

// ProtectedFileError means that only its task may read a file. Host files, which the agent or a driver mounts for the
// task, are protected because the agent can read more of them than the task. The agent's own files in the allocation's
// directory contain the job with its environment.
type ProtectedFileError struct {
	Kind string // "secret", "private", "host" or "agent"
	Path string // requested path
}

func (e *ProtectedFileError) Error() string {
	return fmt.Sprintf("Reading %s file prohibited: %s", e.Kind, e.Path)
}

// AllocDirOpener opens allocation files. The zero value is ready to use. It uses no kernel resources while no file is
// followed. Its methods may be called concurrently.
type AllocDirOpener struct {
	watcher inotifyWatcher
}

// AllocDir is one allocation's open directory. Its methods may be called concurrently.
type AllocDir struct {
	opener *AllocDirOpener
	fd     int
	path   string
}

// OpenAllocDir opens an allocation's directory in allocsRoot. allocID may come from a client: it cannot lead out of
// allocsRoot. The error is fs.ErrNotExist if the directory does not exist.
func (f *AllocDirOpener) OpenAllocDir(allocsRoot, allocID string) (*AllocDir, error) {
	if strings.Contains(allocID, "/") || allocID == "." || allocID == ".." {
		return nil, ErrPathEscapes
	}
	path := allocsRoot + "/" + allocID
	above, err := safepath.OpenDir(allocsRoot)
	if err != nil {
		return nil, err
	}
	defer unix.Close(above)
	fd, err := safepath.OpenAt(above, allocID, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &AllocDir{opener: f, fd: fd, path: path}, nil
}

// Close closes the directory. Files opened in it stay open.
func (d *AllocDir) Close() error { return unix.Close(d.fd) }

// EntryInfo describes a file or directory.
type EntryInfo struct {
	fs.FileInfo
	name string
	// ContentType is the content's MIME type; only Stat sets it.
	ContentType string
}

// Name returns the path's last element, with links resolved.
func (i EntryInfo) Name() string { return i.name }

// unknownContentType is the content type if the agent may not or cannot read the file.
const unknownContentType = "application/octet-stream"

// Stat describes the file or directory at a path.
func (d *AllocDir) Stat(path string) (EntryInfo, error) {
	p, err := d.walkPath(path)
	if err != nil {
		return EntryInfo{}, d.hostPathError("stat", path, err)
	}
	defer p.close()
	info, err := os.Stat(safepath.ProcPath(p.currentFD()))
	if err != nil {
		return EntryInfo{}, d.hostPathError("stat", path, err)
	}
	i := EntryInfo{FileInfo: info, name: filepath.Base(d.path + "/" + strings.Join(p.pathElements, "/")), ContentType: unknownContentType}
	if info.Mode().IsRegular() && p.protectedKind() == "" {
		// A file that cannot be read is described without its content type.
		if content, err := p.openForReading(); err == nil {
			defer content.Close()
			var headBytes [512]byte
			n, _ := io.ReadFull(content, headBytes[:])
			i.ContentType = http.DetectContentType(headBytes[:n])
		}
	}
	return i, nil
}

// List lists a directory, sorted by name. It does not follow links in the directory. In the allocation's directory, it
// omits all files, which are the agent's: the FIFOs for task output, which Nomad has elsewhere, and the time line.
func (d *AllocDir) List(path string) ([]EntryInfo, error) {
	p, err := d.walkPath(path)
	if err != nil {
		return nil, d.hostPathError("open", path, err)
	}
	defer p.close()
	var st unix.Stat_t
	if err := unix.Fstat(p.currentFD(), &st); err != nil {
		return nil, d.hostPathError("open", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR { // os.OpenRoot would block on a FIFO without a writer
		return nil, d.hostPathError("open", path, unix.ENOTDIR)
	}
	root, err := os.OpenRoot(safepath.ProcPath(p.currentFD()))
	if err != nil {
		return nil, d.hostPathError("open", path, errors.Unwrap(err))
	}
	defer root.Close()
	dir, err := root.Open(".")
	if err != nil {
		return nil, d.hostPathError("open", path, errors.Unwrap(err))
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, d.hostPathError("read", path, errors.Unwrap(err))
	}
	slices.Sort(names)
	infos := make([]EntryInfo, 0, len(names))
	for _, name := range names {
		// Files removed after the directory was read are omitted.
		if info, err := root.Lstat(name); err == nil && (len(p.pathElements) > 0 || info.IsDir()) {
			infos = append(infos, EntryInfo{FileInfo: info, name: name})
		}
	}
	return infos, nil
}

// File is a task's open file.
type File struct {
	*os.File
	opener *AllocDirOpener
	path   string // requested path, without a leading slash
}

// OpenUnprotectedFile opens a file for reading. It does not block, and rejects secrets and all but regular files,
// whatever path or links lead to them.
func (d *AllocDir) OpenUnprotectedFile(path string) (*File, error) {
	p, err := d.walkPath(path)
	if err != nil {
		return nil, d.hostPathError("stat", path, err)
	}
	defer p.close()
	var st unix.Stat_t
	if err := unix.Fstat(p.currentFD(), &st); err != nil {
		return nil, d.hostPathError("stat", path, err)
	}
	kind := p.protectedKind()
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil, fmt.Errorf("file %q %w", path, ErrDirectory)
	case kind != "":
		return nil, &ProtectedFileError{kind, path}
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("file %q %w", path, ErrNotRegular)
	}
	f, err := p.openForReading()
	if err != nil {
		return nil, d.hostPathError("open", path, err)
	}
	return &File{File: f, opener: d.opener, path: strings.TrimLeft(path, "/")}, nil
}

// hostPathError returns an error with the path on the host, for the operator.
func (d *AllocDir) hostPathError(op, path string, err error) error {
	if errors.Is(err, ErrPathEscapes) {
		return ErrPathEscapes
	}
	var errno unix.Errno
	if errors.As(err, &errno) {
		err = errno
	}
	return &fs.PathError{Op: op, Path: strings.TrimRight(d.path+"/"+strings.Trim(path, "/"), "/"), Err: err}
}
