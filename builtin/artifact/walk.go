package artifact

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ensureStageReachable makes the stage reachable by its path for the user of the download.
// git needs this, because it resolves the path of its directory from the root of
// the machine. If a directory above the stage is closed to other accounts, as
// the directory of an allocation is, the stage is mounted in the place of that
// directory. That needs root. Only the calling thread and the processes that it
// starts see the mount, which ends with the last of them: the thread must end
// afterwards.
//
// ensureStageReachable returns the stage under its new path, or nil if the stage can be
// reached as it is.
func ensureStageReachable(stage *os.File) (*os.File, error) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(stage.Fd())))
	if err != nil {
		return nil, err
	}
	closed, err := findInaccessibleParent(path)
	if closed == "" || err != nil {
		return nil, err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("unshare mounts: %w", err)
	}
	// Other processes must not see the mount.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return nil, fmt.Errorf("make mounts private: %w", err)
	}
	// The mount uses the path: the open handle belongs to the mounts of the
	// other threads.
	if err := unix.Mount(path, closed, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount on %s: %w", closed, err)
	}
	shown, err := os.Open(closed)
	if err != nil {
		return nil, err
	}
	// A task may have put another directory in its place.
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

// findInaccessibleParent returns the first directory on the way to path that not every
// account can enter, or "".
func findInaccessibleParent(path string) (string, error) {
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
