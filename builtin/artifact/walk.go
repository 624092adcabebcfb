package artifact

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountStagingDirIfUnreachable makes the staging directory reachable by a path for the user of the
// download, because git resolves its directory from the root of the machine. If other
// users cannot enter a directory above it (such as the directory of an allocation),
// mountStagingDirIfUnreachable mounts the staging directory over that directory, which requires
// root. Only the calling thread and its child processes see the mount, which ends with the
// last of them: the thread must exit afterwards.
//
// mountedDir is the open directory on which mountStagingDirIfUnreachable has mounted, or nil if no mount
// was necessary.
func mountStagingDirIfUnreachable(stagingDir *os.File) (mountedDir *os.File, err error) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(stagingDir.Fd())))
	if err != nil {
		return nil, err
	}
	closed, err := findParentClosedToOtherUsers(path)
	if closed == "" || err != nil {
		return nil, err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("unshare mounts: %w", err)
	}
	// Mounts must be private, so that other processes do not see the new mount.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	// The mount uses the path of the staging directory, because the open handle refers to the mount
	// namespace of the other threads.
	if err := unix.Mount(path, closed, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount on %s: %w", closed, err)
	}
	mountedDir, err = os.Open(closed)
	if err != nil {
		return nil, err
	}
	// The path may lead to another directory, because a task can replace a
	// directory in it.
	want, err := stagingDir.Stat()
	if err == nil {
		var got os.FileInfo
		if got, err = mountedDir.Stat(); err == nil && !os.SameFile(got, want) {
			err = fmt.Errorf("%s was replaced", path)
		}
	}
	if err != nil {
		mountedDir.Close()
		return nil, err
	}
	return mountedDir, nil
}

// findParentClosedToOtherUsers returns the first directory above path that not every user
// can enter, or "".
func findParentClosedToOtherUsers(path string) (string, error) {
	for dir, rest := "/", strings.Trim(path, "/"); rest != ""; {
		info, err := os.Lstat(dir)
		if err != nil {
			return "", err
		}
		if info.Mode()&0o001 == 0 {
			return dir, nil
		}
		var dirName string
		dirName, rest, _ = strings.Cut(rest, "/")
		dir = filepath.Join(dir, dirName)
	}
	return "", nil
}
