package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// reservedBytes is the space on the disk that the state file has beyond its content, so that changes that free space, such as
	// the stop and the purge of a job, can be stored on a full disk. bbolt reuses the pages of earlier changes.
	reservedBytes = 1 << 20
	// minFreeBytes is the free space of the disk below which CheckSpace fails. It is more than the agent frees on a full disk for its
	// start.
	minFreeBytes = 2 << 20
)

// reserveSpace allocates reservedBytes beyond the used part of the file. Where the file system cannot do that, or the disk is
// full, the file has the space that it has. The size of the file stays the same.
func (f *stateFile) reserveSpace(used int64) {
	if !f.reserves || used+reservedBytes/2 <= f.reservedEnd {
		return
	}
	end := used + reservedBytes
	if err := unix.Fallocate(int(f.openFile.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, end); !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		f.reservedEnd = end // also for a file system that does not support it
	}
}

// CheckSpace returns an error if the disk of the state file is full. Callers that store something new call it first: the last
// space is for changes that free space.
func (s *Store) CheckSpace() error {
	if s.file == nil {
		return nil
	}
	if err := CheckFreeSpace(filepath.Dir(s.file.path), minFreeBytes); err != nil {
		return fmt.Errorf("%w; stop and purge jobs, or remove files", err)
	}
	return nil
}

// CheckFreeSpace returns an error that wraps ENOSPC if this user cannot store so many bytes on the disk of a directory.
func CheckFreeSpace(dir string, size int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) >= uint64(size) {
		return nil // a change reports what is wrong with the disk
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

// FreeBytes returns the free space on the disk of a directory. For root it includes space that is reserved for root, and can
// include some that the file system needs for itself.
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
