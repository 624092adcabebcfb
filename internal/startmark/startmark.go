//go:build linux

package startmark

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// Mark is a record about a start of a task that outlives the plugin process: which start it is, and whether the
// process of the task was forked. It is stored as an extended attribute of a cgroup, or as the content of a file.
type Mark struct {
	Forked bool
	Data   []byte // belongs to the program that wrote the mark
}

// ErrDamaged means that there is a Mark whose content is invalid, so that it can never be read.
var ErrDamaged = errors.New("damaged mark of a start")

const attribute = "user.nomad-lite.start"

// The first bytes of a Mark. Both have the same length, so that a mark in a file can be overwritten in place.
var (
	preparedPrefix = []byte("prepared ")
	forkedPrefix   = []byte("forked   ")
)

// WriteToCgroup replaces the mark of a cgroup. It fails on kernels whose cgroups have no extended attributes.
func (m Mark) WriteToCgroup(path string) error {
	opcount.Count(opcount.Cgroup)
	if err := unix.Setxattr(path, attribute, m.encode(), 0); err != nil {
		return &os.PathError{Op: "mark", Path: path, Err: err}
	}
	return nil
}

// WriteToFile replaces the mark of a file with one system call, so that no reader sees a part of it. The
// text must not be shorter than the text in the file.
func (m Mark) WriteToFile(f *os.File) error {
	_, err := f.WriteAt(m.encode(), 0)
	return err
}

func (m Mark) encode() []byte {
	if m.Forked {
		return append(bytes.Clone(forkedPrefix), m.Data...)
	}
	return append(bytes.Clone(preparedPrefix), m.Data...)
}

// Read returns the mark of an open cgroup, or of an open file. The error is fs.ErrNotExist if it has
// none, and ErrDamaged if a repeated call would have the same error.
func Read(f *os.File) (Mark, error) {
	buffer := make([]byte, 16<<10)
	n, err := unix.Fgetxattr(int(f.Fd()), attribute, buffer)
	switch {
	case err == nil:
	case !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOTSUP):
		return Mark{}, &os.PathError{Op: "read mark", Path: f.Name(), Err: err}
	default:
		if n, err = unix.Pread(int(f.Fd()), buffer, 0); errors.Is(err, unix.EISDIR) || err == nil && n == 0 {
			return Mark{}, &os.PathError{Op: "read mark", Path: f.Name(), Err: os.ErrNotExist}
		}
		if err != nil {
			return Mark{}, &os.PathError{Op: "read mark", Path: f.Name(), Err: err}
		}
	}
	text := buffer[:n]
	if data, ok := bytes.CutPrefix(text, forkedPrefix); ok {
		return Mark{Forked: true, Data: data}, nil
	}
	if data, ok := bytes.CutPrefix(text, preparedPrefix); ok {
		return Mark{Data: data}, nil
	}
	return Mark{}, fmt.Errorf("%s: %w", f.Name(), ErrDamaged)
}

// WaitForRelease is called by a stage before it executes the program of a task. It blocks until the other end of the pipe release
// is closed, by the plugin process or by its death. It returns an error unless the mark is Forked: the next plugin process then
// reads from the mark that the program was not executed.
func WaitForRelease(release, mark *os.File) error {
	if _, err := release.Read(make([]byte, 1)); err != io.EOF {
		return fmt.Errorf("wait for the driver: %v", err)
	}
	m, err := Read(mark)
	if err != nil {
		return err
	}
	if !m.Forked {
		return errors.New("the driver exited before the start of the task was recorded")
	}
	return nil
}

// Remove removes the mark of a cgroup.
func Remove(cgroup string) error {
	opcount.Count(opcount.Cgroup)
	if err := unix.Removexattr(cgroup, attribute); err != nil && !errors.Is(err, unix.ENODATA) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "remove mark", Path: cgroup, Err: err}
	}
	return nil
}
