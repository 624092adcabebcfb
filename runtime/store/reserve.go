package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// reservedBytes is the disk space that is allocated for the state file beyond its content. With it, changes that free
	// space, such as the stop and the purge of a job, can be stored on a full disk. bbolt reuses the pages of earlier
	// transactions, so these changes need little space.
	reservedBytes = 1 << 20
	// minFreeBytes is the free disk space below which CheckSpaceForNewObjects fails. It is more than the space that an agent that starts on
	// a full disk frees.
	minFreeBytes = 2 << 20
)

// reserveSpace allocates disk space for the first used+reservedBytes bytes of the file, if reservesSpace is set. It does not
// change the size of the file. It ignores errors: the file then has less reserved space.
func (f *stateFile) reserveSpace(used int64) {
	if !f.reservesSpace || used+reservedBytes/2 <= f.reservedEndOffset {
		return
	}
	end := used + reservedBytes
	if err := unix.Fallocate(int(f.openFile.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, end); !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		f.reservedEndOffset = end // also for a file system that does not support it
	}
}

// CheckSpaceForNewObjects returns an error if the disk with the state file has less than minFreeBytes of free space. Callers that add
// objects call it first: the remaining space is for changes that free space.
func (s *Store) CheckSpaceForNewObjects() error {
	if s.file == nil {
		return nil
	}
	if err := CheckFreeSpace(filepath.Dir(s.file.path), minFreeBytes); err != nil {
		return fmt.Errorf("%w; stop and purge jobs, or remove files", err)
	}
	return nil
}

// CheckFreeSpace returns an error that wraps ENOSPC if the current user cannot store size bytes on the file system of a
// directory. It returns nil if it cannot find out.
func CheckFreeSpace(dir string, size int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) >= uint64(size) {
		return nil // if statfs has failed, the next write reports the error of the disk
	}
	// Root can use space that is reserved for it, but not all of the space that the file system counts as free.
	f, err := os.CreateTemp(dir, ".space-*")
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, size)
		f.Close()
		err = errors.Join(err, os.Remove(f.Name()))
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("the disk of %s is full: %w", dir, unix.ENOSPC)
}

// FreeBytes returns the free space on the file system of a directory. For root, it includes the space that is reserved for
// root, and can include space that the file system needs itself.
func FreeBytes(dir string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if os.Geteuid() == 0 {
		return fs.Bfree * uint64(fs.Bsize), nil
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}
