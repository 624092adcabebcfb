package allocdir

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// topDirFlag is FS_TOPDIR_FL in linux/fs.h, chattr's flag T.
const topDirFlag = 0x20000

// SpreadAllocDirs makes the file system place different allocations' directories apart from each other, see
// DESIGN.md. It changes nothing if the file system cannot do so. allocsRoot is the directory for all allocations.
func SpreadAllocDirs(allocsRoot string) error {
	if err := setTopDirFlag(allocsRoot); err != nil {
		return fmt.Errorf("set flag T of %s: %w", allocsRoot, err)
	}
	return nil
}

func setTopDirFlag(dir string) (err error) {
	d, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	flags, err := unix.IoctlGetInt(int(d.Fd()), unix.FS_IOC_GETFLAGS)
	switch {
	case errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EOPNOTSUPP):
		return nil // the file system has no flags
	case err != nil:
		return err
	case flags&topDirFlag != 0:
		return nil
	}
	err = unix.IoctlSetPointerInt(int(d.Fd()), unix.FS_IOC_SETFLAGS, flags|topDirFlag)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil // the file system has other flags
	}
	return err
}
