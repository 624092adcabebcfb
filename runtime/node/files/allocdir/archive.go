package allocdir

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/safepath"
)

const (
	// maxArchiveDepth limits how deep directories are nested in an archive, because each level keeps a file open.
	maxArchiveDepth = 200
	dirReadBatch    = 256 // names read from a directory at a time
)

// archiveErrorName returns the name of the entry that says why an archive is incomplete. The name is Nomad's.
func archiveErrorName(allocID string) string { return "NOMAD-" + allocID + "-ERROR.log" }

// WriteArchive writes alloc/data and the named tasks' local directories to w, in the archive format that cluster nodes
// exchange: a tar with directories, regular files and symbolic links, with their modes and owners. It leaves out other files,
// everything mounted in the directories, and directories that do not exist. Tasks may change the files meanwhile. If the
// archive cannot be completed, it ends with an entry that has the reason, and WriteArchive returns an error. If w fails or ctx
// ends, the archive has no end.
func (d *Dir) WriteArchive(ctx context.Context, w io.Writer, tasks []string) error {
	a := &archiveWriter{ctx: ctx, tar: tar.NewWriter(w)}
	err := a.writeAlloc(d, tasks)
	if err == nil {
		err = a.tar.Close()
	} else if ctx.Err() == nil {
		text := []byte(err.Error())
		header := &tar.Header{Typeflag: tar.TypeReg, Name: archiveErrorName(d.allocID), Mode: 0o666, Size: int64(len(text)), ModTime: time.Now()}
		if a.tar.WriteHeader(header) == nil {
			if _, writeErr := a.tar.Write(text); writeErr == nil {
				a.tar.Close()
			}
		}
	}
	if err != nil {
		return fmt.Errorf("archive the data of alloc %s: %w", d.allocID, err)
	}
	return nil
}

type archiveWriter struct {
	ctx context.Context
	tar *tar.Writer
}

func (a *archiveWriter) writeAlloc(d *Dir, tasks []string) error {
	alloc, err := d.openHandle()
	if err != nil {
		return err
	}
	defer alloc.close()
	if err := a.writeSubdir(alloc, sharedDirName, dataDirName); err != nil {
		return err
	}
	for _, name := range tasks {
		if err := checkTaskDirName(name); err != nil {
			return fmt.Errorf("task %q: %w", name, err)
		}
		if err := a.writeSubdir(alloc, name, localDirName); err != nil {
			return err
		}
	}
	return nil
}

// writeSubdir writes the directory alloc/parent/name. If a task has replaced it by a file or a link, it is left out.
func (a *archiveWriter) writeSubdir(alloc *dirHandle, parent, name string) error {
	dir, err := alloc.open(parent)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDir) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.close()
	entry, err := dir.open(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDir) {
		return nil
	}
	if err != nil {
		return err
	}
	defer entry.close()
	st, err := entry.stat()
	if err != nil {
		return err
	}
	return a.writeDir(entry, path.Join(parent, name), &st, 0)
}

// writeDir writes a directory with its content.
func (a *archiveWriter) writeDir(dir *dirHandle, name string, st *unix.Stat_t, depth int) error {
	if depth > maxArchiveDepth {
		return fmt.Errorf("%s: directories are nested deeper than %d levels", name, maxArchiveDepth)
	}
	if err := a.tar.WriteHeader(newArchiveHeader(tar.TypeDir, name, st)); err != nil {
		return err
	}
	fd, err := safepath.OpenAt(dir.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return dir.wrapDirError("open", err)
	}
	f := os.NewFile(uintptr(fd), dir.pathForErrors)
	defer f.Close()
	for {
		names, err := f.Readdirnames(dirReadBatch)
		for _, child := range names {
			if err := a.writeChild(dir, child, path.Join(name, child), depth+1); err != nil {
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

// writeChild writes one name in a directory. It reads the file type from the opened file, because a task can replace the name
// at any time.
func (a *archiveWriter) writeChild(dir *dirHandle, child, name string, depth int) error {
	if err := a.ctx.Err(); err != nil {
		return context.Cause(a.ctx)
	}
	fd, err := safepath.OpenAt(dir.fd, child, unix.O_PATH, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a task has removed it
	}
	if err != nil {
		return dir.wrapChildError("open", child, err)
	}
	entry := &dirHandle{fd: fd, pathForErrors: dir.pathForErrors + "/" + child}
	defer entry.close()
	if mounted, err := safepath.IsMount(dir.fd, fd); mounted || err != nil {
		return err
	}
	st, err := entry.stat()
	if err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return a.writeDir(entry, name, &st, depth)
	case unix.S_IFREG:
		return a.writeFile(entry, name, &st)
	case unix.S_IFLNK:
		header := newArchiveHeader(tar.TypeSymlink, name, &st)
		buffer := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", buffer)
		if err != nil {
			return entry.wrapDirError("readlink", err)
		}
		header.Linkname = string(buffer[:n])
		return a.tar.WriteHeader(header)
	}
	return nil
}

// writeFile writes a regular file. A file that becomes shorter meanwhile is an error.
func (a *archiveWriter) writeFile(entry *dirHandle, name string, st *unix.Stat_t) error {
	f, err := os.OpenFile(entry.procPath(), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", name, errors.Unwrap(err)) // err has the path of a descriptor
	}
	defer f.Close()
	header := newArchiveHeader(tar.TypeReg, name, st)
	header.Size = st.Size
	if err := a.tar.WriteHeader(header); err != nil {
		return err
	}
	n, err := io.CopyN(a.tar, contextReader{a.ctx, f}, st.Size)
	if !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := io.CopyN(a.tar, zeroReader{}, st.Size-n); err != nil { // so that the entry with the error can follow
		return err
	}
	return fmt.Errorf("%s has become shorter while it was read", name)
}

func newArchiveHeader(kind byte, name string, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()).Truncate(time.Second),
	}
}

// contextReader fails when its context has ended.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.r.Read(p)
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

const (
	archiveStagingName = ".migration" // directory in an allocation's directory for extracting an archive
	archiveBlockBytes  = 4 << 10      // bytes that each entry counts in addition to its content
	maxArchiveErrLen   = 4 << 10
)

// ReadArchive reads an archive like those of WriteArchive from r, and moves its alloc/data and the named tasks' local
// directories to this allocation, which is built and has no tasks yet. Existing files stay, so a call after a crash continues.
// Other directories in the archive are ignored. It takes over either everything or, with an error, nothing. An incomplete
// archive, a path or link that leaves the directory, another file type, and more than maxBytes, counted as blocks on a disk,
// are errors. Modes lose the bits with which a file runs as its owner.
func (d *Dir) ReadArchive(r io.Reader, tasks []string, maxBytes int64) (err error) {
	staging, err := New(d.Path(), archiveStagingName)
	if err != nil {
		return err
	}
	if err := staging.Destroy(); err != nil { // what a call before a crash has left
		return err
	}
	defer func() { err = errors.Join(err, staging.Destroy()) }()
	if err := staging.extractArchive(r, tasks, maxBytes); err != nil {
		return fmt.Errorf("read the archive: %w", err)
	}
	return d.moveDataFrom(staging, tasks)
}

func (d *Dir) extractArchive(r io.Reader, tasks []string, maxBytes int64) error {
	root, err := openTrustedDir(d.allocsRoot)
	if err != nil {
		return err
	}
	defer root.close()
	top, made, err := root.openOrMakeDir(d.allocID)
	if err != nil {
		return err
	}
	defer top.close()
	if !made {
		return top.wrapDirError("mkdir", fs.ErrExist)
	}
	x := &archiveReader{top: top, wanted: map[string]bool{path.Join(sharedDirName, dataDirName): true}, left: maxBytes, maxBytes: maxBytes}
	for _, name := range tasks {
		x.wanted[path.Join(name, localDirName)] = true
	}
	defer x.close()
	entries := tar.NewReader(r)
	for {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := x.extract(header, entries); err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, io.LimitReader(r, archiveBlockBytes*256)); err != nil {
		return err // the sender has stopped before the end
	}
	return nil
}

// archiveReader extracts an archive. It follows no link, not even one from the archive.
type archiveReader struct {
	top            *dirHandle
	wanted         map[string]bool // paths of the directories to extract
	maxBytes, left int64
	parent         *dirHandle // the last entry's directory; nil before the first one
	parentPath     string
}

func (x *archiveReader) close() {
	if x.parent != nil {
		x.parent.close()
	}
}

// extract extracts one entry.
func (x *archiveReader) extract(header *tar.Header, content io.Reader) error {
	name, err := checkArchivePath(header.Name)
	if err != nil {
		return err
	}
	if strings.HasPrefix(name, "NOMAD-") && strings.HasSuffix(name, "-ERROR.log") {
		text, err := io.ReadAll(io.LimitReader(content, maxArchiveErrLen))
		return errors.Join(fmt.Errorf("the other node could not complete it: %s", strings.ToValidUTF8(string(text), "?")), err)
	}
	elements := strings.Split(name, "/")
	if len(elements) < 2 || !x.wanted[path.Join(elements[0], elements[1])] {
		return nil
	}
	if len(elements) > maxArchiveDepth+2 {
		return fmt.Errorf("%q: directories are nested deeper than %d levels", header.Name, maxArchiveDepth)
	}
	if header.Size < 0 || header.Size+archiveBlockBytes > x.left {
		return fmt.Errorf("the data is larger than the ephemeral disk of the allocation, %d MB", x.maxBytes>>20)
	}
	x.left -= header.Size + archiveBlockBytes
	if err := x.openParent(path.Dir(name)); err != nil {
		return fmt.Errorf("%q: %w", header.Name, err)
	}
	base := path.Base(name)
	switch header.Typeflag {
	case tar.TypeDir:
		return x.extractDir(base, header)
	case tar.TypeReg:
		return x.extractFile(base, header, content)
	case tar.TypeSymlink:
		if !isLinkInArchive(name, header.Linkname) {
			return fmt.Errorf("the link %q leads out of the directory, to %q", header.Name, header.Linkname)
		}
		if err := unix.Symlinkat(header.Linkname, x.parent.fd, base); err != nil {
			return x.parent.wrapChildError("symlink", base, err)
		}
		return x.parent.setOwnerOfArchived(base, header)
	}
	return fmt.Errorf("%q is no file, directory or symbolic link (type %q)", header.Name, string(header.Typeflag))
}

// checkArchivePath returns an entry's path without a trailing slash.
func checkArchivePath(name string) (string, error) {
	cleaned := path.Clean(name)
	if path.IsAbs(name) || cleaned == ".." || strings.HasPrefix(cleaned, "../") || strings.Contains(name, "\x00") {
		return "", fmt.Errorf("the path %q leads out of the directory", name)
	}
	return cleaned, nil
}

// isLinkInArchive reports whether a link in an archive has its target in the allocation's directory.
func isLinkInArchive(name, target string) bool {
	if target == "" || path.IsAbs(target) {
		return false
	}
	_, err := checkArchivePath(path.Join(path.Dir(name), target))
	return err == nil
}

// openParent opens the next entry's directory, and creates directories without entries.
func (x *archiveReader) openParent(dirPath string) error {
	if x.parent != nil && x.parentPath == dirPath {
		return nil
	}
	x.close()
	x.parent = nil
	dir, _, err := x.top.openOrMakeDir(strings.Split(dirPath, "/")[0])
	if err != nil {
		return err
	}
	for _, element := range strings.Split(dirPath, "/")[1:] {
		next, _, err := dir.openOrMakeDir(element)
		dir.close()
		if err != nil {
			return err
		}
		dir = next
	}
	x.parent, x.parentPath = dir, dirPath
	return nil
}

func (x *archiveReader) extractDir(base string, header *tar.Header) error {
	dir, _, err := x.parent.openOrMakeDir(base)
	if err != nil {
		return err
	}
	defer dir.close()
	if err := x.parent.setOwnerOfArchived(base, header); err != nil {
		return err
	}
	mode := archivedMode(header)
	if !isAgentRoot() {
		mode |= 0o700 // for the files that follow
	}
	return dir.chmod(mode)
}

func (x *archiveReader) extractFile(base string, header *tar.Header, content io.Reader) error {
	fd, err := safepath.OpenAt(x.parent.fd, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return x.parent.wrapChildError("create", base, err)
	}
	f := os.NewFile(uintptr(fd), x.parent.pathForErrors+"/"+base)
	defer f.Close()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	if err := x.parent.setOwnerOfArchived(base, header); err != nil {
		return err
	}
	if err := f.Chmod(archivedMode(header)); err != nil {
		return err
	}
	modified := unix.NsecToTimeval(header.ModTime.UnixNano())
	if err := unix.Futimes(fd, []unix.Timeval{modified, modified}); err != nil {
		return x.parent.wrapChildError("utimes", base, err)
	}
	return f.Close()
}

// archivedMode returns an entry's mode. A program from another machine must not run as its owner, and a directory must not
// give its group to files.
func archivedMode(header *tar.Header) fs.FileMode {
	mode := fs.FileMode(header.Mode & 0o777)
	if header.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}

// setOwnerOfArchived gives a file its owner, if the agent is root. Elsewhere the files belong to the agent's user, as all
// tasks' files do.
func (h *dirHandle) setOwnerOfArchived(name string, header *tar.Header) error {
	if !isAgentRoot() {
		return nil
	}
	err := unix.Fchownat(h.fd, name, header.Uid, header.Gid, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		err = nil // some containers cannot change owners, or do not have the id
	}
	return h.wrapChildError("chown", name, err)
}
