package safepath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// OpenFile opens a regular file that a job names and that other users may replace meanwhile: path is absolute and has no
// symbolic links, which the caller has followed and checked, and one that has become a link is an error. So is a file of
// another type. Neither OpenFile nor the reader of the file waits for another process, as the writer of a FIFO or the holder
// of a lease. The caller closes the file, and limits how much it reads.
func OpenFile(path string) (*os.File, error) {
	fd, err := openResolved(unix.AT_FDCWD, path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, unix.RESOLVE_NO_SYMLINKS)
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%s has become a symbolic link", path)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ReadFile returns the contents of a file that OpenFile accepts. A file with more than limit bytes is an error.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(text)) > limit {
		err = fmt.Errorf("%s has more than the allowed %d bytes", path, limit)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// CheckOpenFile returns an error if a user other than the owner and root may write to a regular file, and a warning if its
// owner is another user, or if another user could replace it. Root trusts no group but its own, and another user only a group with the user's own id. Other types
// of files, such as pipes, are accepted. The texts have a remedy. The check is of the open file, whatever its name is by now.
func CheckOpenFile(f *os.File) (warning, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, nil
	}
	self, mode := currentAccount(), st.Mode&0o7777
	switch {
	case mode&0o002 != 0:
		return nil, self.worldWritableError(f.Name(), mode)
	case mode&0o020 != 0 && st.Gid != 0 && (self.uid == 0 || int(st.Gid) != self.uid):
		return nil, self.groupWritableError(f.Name(), st.Gid, mode)
	case !self.isSelfOrRoot(st.Uid) && !(self.inUserNamespace && st.Uid == overflowUID):
		return self.ownerError(f.Name(), st.Uid), nil
	}
	return separateOwner(CheckParents(f.Name()))
}

// CheckConfigDir returns an error if a user other than this one and root could put files into a directory or replace it, and a
// warning if the reason is the owner of a directory on the way to it.
func CheckConfigDir(dir string) (warning, err error) { return separateOwner(CheckDir(dir)) }

// separateOwner returns err as a warning if its reason is ErrOtherOwner. A file that has been removed has no directory: standard
// input can be one.
func separateOwner(err error) (warning, _ error) {
	switch {
	case errors.Is(err, ErrOtherOwner):
		return err, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	}
	return nil, err
}
