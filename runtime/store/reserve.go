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
	free, err := FreeBytes(filepath.Dir(s.file.path))
	if err != nil {
		return nil // the change itself reports what is wrong with the disk
	}
	if free < minFreeBytes {
		return fmt.Errorf("the disk of %s has %d bytes left: %w; stop and purge jobs, or remove files", s.file.path, free, unix.ENOSPC)
	}
	return nil
}

// FreeBytes returns the space that this user can use on the disk of a directory.
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
