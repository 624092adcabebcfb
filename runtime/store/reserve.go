package store

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// reservedBytes is the disk space allocated for the state file beyond its content. With it, changes that free space, such
	// as stopping and purging a job, can be stored on a full disk. bbolt reuses the pages of earlier transactions, so these
	// changes need little space.
	reservedBytes = 1 << 20
	// minFreeBytes is the free disk space below which CheckDiskSpaceForNewObjects fails. It is more than an agent frees when it
	// starts on a full disk.
	minFreeBytes = 2 << 20
	// minFreeInodes is the free inode count below which CheckDiskSpaceForNewObjects fails. It is more than an agent or its
	// helper processes free at once on a disk without inodes.
	minFreeInodes = 32
)

// reserveDiskSpace allocates disk space for the file's first usedBytes+reservedBytes bytes, if reservesSpace is set. It does
// not change the file's size. It ignores errors: the file then has less reserved space.
func (f *stateFile) reserveDiskSpace(usedBytes int64) {
	if !f.reservesSpace || usedBytes+reservedBytes/2 <= f.reservedEndOffset {
		return
	}
	end := usedBytes + reservedBytes
	if err := unix.Fallocate(int(f.openFile.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, end); !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		f.reservedEndOffset = end // also for a file system that does not support it
	}
}

// CheckFreeSpaceForNewObjects returns an error that wraps ENOSPC if the state file's disk has less than minFreeBytes free.
func (s *Store) CheckFreeSpaceForNewObjects() error {
	if s.file == nil {
		return nil
	}
	return CheckFreeDiskSpace(filepath.Dir(s.file.path), minFreeBytes)
}

// CheckFreeInodesForNewObjects returns an error that wraps ENOSPC if the state file's disk has less than minFreeInodes. It
// returns nil if it cannot find out, and if the file system has no limit.
func (s *Store) CheckFreeInodesForNewObjects() error {
	if s.file == nil {
		return nil
	}
	return checkFreeInodes(filepath.Dir(s.file.path))
}

// CheckDiskSpaceForNewObjects returns an error if the state file's disk has less than minFreeBytes free, or less than
// minFreeInodes. Callers that add objects call it first: the rest is for changes that free space.
func (s *Store) CheckDiskSpaceForNewObjects() error {
	if err := cmp.Or(s.CheckFreeSpaceForNewObjects(), s.CheckFreeInodesForNewObjects()); err != nil {
		return fmt.Errorf("%w; stop and purge jobs, or remove files", err)
	}
	return nil
}

// checkFreeInodes is CheckFreeInodesForNewObjects for a directory.
func checkFreeInodes(dir string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Files == 0 || fs.Ffree >= minFreeInodes {
		return nil
	}
	return fmt.Errorf("the disk of %s has %d free inodes, too few for new files: %w", dir, fs.Ffree, unix.ENOSPC)
}

// CheckFreeDiskSpace returns an error that wraps ENOSPC if the current user cannot store requiredBytes on a directory's file
// system. It returns nil if it cannot find out.
func CheckFreeDiskSpace(dir string, requiredBytes int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) >= uint64(requiredBytes) {
		return nil // if statfs has failed, the next write reports the disk's error
	}
	// Root can use space that is reserved for it, but not all the space that the file system counts as free.
	f, err := OpenUnnamedFile(dir)
	if err == nil {
		err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, requiredBytes)
		f.Close()
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("the disk of %s is full: %w", dir, unix.ENOSPC)
}

// OpenUnnamedFile creates a file without a name on a directory's file system, or in memory if dir is empty. The kernel frees
// its space when the file is closed, also if this process is killed.
func OpenUnnamedFile(dir string) (*os.File, error) {
	if dir == "" {
		fd, err := unix.MemfdCreate("nomad-lite", unix.MFD_CLOEXEC)
		if err != nil {
			return nil, os.NewSyscallError("memfd_create", err)
		}
		return os.NewFile(uintptr(fd), "memory"), nil
	}
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return createAndUnlinkFile(dir) // the file system does not support O_TMPFILE
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir, "(unnamed)")), nil
}

// createAndUnlinkFile creates a file in a directory, and removes its name.
func createAndUnlinkFile(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".space-*")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// FreeDiskBytes returns the free space on a directory's file system. For root, it includes the space reserved for root, and can
// include space that the file system needs itself.
func FreeDiskBytes(dir string) (uint64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	if os.Geteuid() == 0 {
		return fs.Bfree * uint64(fs.Bsize), nil
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}
