package artifact

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// walkable returns the stage under a path by which its owner can walk to it, as git does:
// it resolves the path of its directory from the root of the machine. Where a directory
// above the stage is closed to other accounts, as that of an allocation is, the stage is
// mounted in its place. That needs root, and is seen by the calling thread and by what it
// starts only: the thread must end after that. The mount ends with the last of them.
//
// The result is nil if the stage can be walked to as it is.
func walkable(stage *os.File) (*os.File, error) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(stage.Fd())))
	if err != nil {
		return nil, err
	}
	closed, err := closedDir(path)
	if closed == "" || err != nil {
		return nil, err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("unshare mounts: %w", err)
	}
	// What is mounted here must not be seen by others.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	// By its path: the open file belongs to the mounts of the other threads.
	if err := unix.Mount(path, closed, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount on %s: %w", closed, err)
	}
	shown, err := os.Open(closed)
	if err != nil {
		return nil, err
	}
	// A task can have put another directory there.
	want, err := stage.Stat()
	if err == nil {
		var got os.FileInfo
		if got, err = shown.Stat(); err == nil && !os.SameFile(got, want) {
			err = fmt.Errorf("%s was replaced", path)
		}
	}
	if err != nil {
		shown.Close()
		return nil, err
	}
	return shown, nil
}

// closedDir returns the first directory on the way to path that not every account can
// enter, and "" if there is none.
func closedDir(path string) (string, error) {
	for dir, rest := "/", strings.Trim(path, "/"); rest != ""; {
		info, err := os.Lstat(dir)
		if err != nil {
			return "", err
		}
		if info.Mode()&0o001 == 0 {
			return dir, nil
		}
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		dir = filepath.Join(dir, name)
	}
	return "", nil
}
