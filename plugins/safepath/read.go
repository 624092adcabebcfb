package safepath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// ReadFile returns the contents of a regular file that a job names and that other users may replace meanwhile: path is
// absolute and has no symbolic links, which the caller has followed and checked, and one that has become a link is an
// error. So is a file of another type, and one with more than limit bytes. It never waits for another process, as the
// writer of a FIFO or the holder of a lease.
func ReadFile(path string, limit int64) ([]byte, error) {
	how := unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS}
	fd, err := ignoreEINTR(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s has become a symbolic link", path)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than the allowed %d bytes", path, limit)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}
