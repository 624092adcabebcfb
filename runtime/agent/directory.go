package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInUse means that another nomad-lite works on the data directory.
var ErrInUse = errors.New("data directory is in use by another nomad-lite")

// The names in a data directory.
const (
	lockFile = "lock"
	allocDir = "alloc"
	keyFile  = "keyring.json"
)

// lock takes the data directory for whoever holds the file, and for no other,
// until all its copies are closed. With unix.LOCK_NB it does not wait.
func lock(dataDir string, flags int) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dataDir, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|flags); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w", dataDir, ErrInUse)
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// ensureDir makes one directory, or proves that the one that is there is ours:
// below /tmp anybody may have been first.
func ensureDir(dir string, mode fs.FileMode) error {
	err := os.Mkdir(dir, mode)
	if err == nil {
		return os.Chmod(dir, mode) // whatever the umask is
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	return checkOurs(dir)
}

// checkOurs refuses a directory of another user, or one that others may write to.
func checkOurs(dir string) error {
	var stat unix.Stat_t
	if err := unix.Lstat(dir, &stat); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s: not a directory", dir)
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s: belongs to user %d, not to us", dir, stat.Uid)
	case stat.Mode&0o022 != 0:
		return fmt.Errorf("%s: others may write to it (mode %04o)", dir, stat.Mode&0o7777)
	}
	return nil
}

// ourDir makes a directory, or finds one that is ours. Another account can have been
// first at a path that everybody knows: then it is one with a random name after a dot.
func ourDir(path string, mode fs.FileMode) (string, error) {
	taken := ensureDir(path, mode)
	if taken == nil {
		return path, nil
	}
	if ours := ourDirs(path); len(ours) > 0 {
		return ours[0], nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+".")
	if err != nil {
		return "", errors.Join(taken, err)
	}
	return dir, os.Chmod(dir, mode)
}

// ourDirs returns the directories that ourDir has made for a path and that are there.
func ourDirs(path string) []string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil
	}
	var ours []string
	for _, e := range entries {
		name := e.Name()
		if name != filepath.Base(path) && !strings.HasPrefix(name, filepath.Base(path)+".") {
			continue
		}
		if dir := filepath.Join(filepath.Dir(path), name); checkOurs(dir) == nil {
			ours = append(ours, dir)
		}
	}
	return ours
}
