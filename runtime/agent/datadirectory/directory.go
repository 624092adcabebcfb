package datadirectory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/filelock"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/wait"
	"github.com/nomad-lite/nomad-lite/plugins/host/helperdir"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper/keeperwire"
)

// ErrInUse means that another nomad-lite process uses the data directory.
var ErrInUse = errors.New("data directory is in use by another nomad-lite")

// File and directory names in a data directory.
const (
	LockFile            = "lock"
	allocDir            = "alloc"
	cniCacheDir         = "cni"
	KeyringFile         = "keyring.json"
	PluginProcessesFile = "plugin_processes.json" // records of plugin processes, beside those in the state
	RunStateFile        = "run.db"                // a foreground run's state, deleted at its end
)

// lockDataDir locks the data directory until all copies of the returned file are closed, and records this process in the file for
// [keeper.DataDir.LockOwner]. It fails with ErrInUse if another process has locked the directory.
func lockDataDir(dataDir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dataDir, LockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	if err := filelock.Lock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, filelock.ErrLocked) {
			return nil, fmt.Errorf("%s: %w", dataDir, ErrInUse)
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	self, err := osprocess.LookupID(os.Getpid())
	if err == nil {
		// The error is ignored, because the disk can be full: the agent works without the record, but Stop does not find the agent.
		_ = helperdir.WriteLockOwner(f, self)
	}
	return f, nil
}

// lockDataDirAfterKilledAgent locks the data directory as lockDataDir does. If the directory is locked, it waits for a while, but
// not after the end of ctx: for dyingOwnerTimeout while the lock owner is alive, because a killed agent stays alive until all its
// threads have ended, and for [filelock.KilledOwnerTimeout] when it is dead.
func lockDataDirAfterKilledAgent(ctx context.Context, dataDir string) (*os.File, error) {
	for began := time.Now(); ; {
		f, err := lockDataDir(dataDir)
		if !errors.Is(err, ErrInUse) {
			return f, err
		}
		timeout := filelock.KilledOwnerTimeout
		if isLockOwnerAliveOrUnknown(dataDir) {
			timeout = dyingOwnerTimeout
		}
		if time.Since(began) >= timeout || wait.Sleep(ctx, lockRetryDelay) != nil {
			return nil, err
		}
	}
}

const dyingOwnerTimeout = 2 * time.Second

// waitAndLockDataDir locks the data directory as lockDataDir does, and waits until the lock is free, or until ctx ends.
func waitAndLockDataDir(ctx context.Context, dataDir string) (*os.File, error) {
	for { // a blocking flock(2) cannot be cancelled
		f, err := lockDataDir(dataDir)
		if !errors.Is(err, ErrInUse) || wait.Sleep(ctx, lockRetryDelay) != nil {
			return f, err
		}
	}
}

const lockRetryDelay = 5 * time.Millisecond

// isLockOwnerAliveOrUnknown reports whether the process holding the data directory's lock is alive, or cannot be determined.
func isLockOwnerAliveOrUnknown(dataDir string) bool {
	dir, err := keeper.OpenOrCreateDataDir(dataDir)
	if err != nil {
		return true
	}
	defer dir.Close()
	_, alive, err := dir.LockOwner(LockFile)
	return alive || err != nil
}

// makeDirOrCheckOwner creates a directory, or checks that the existing one belongs to this user: below /tmp,
// another account may have created it before.
func makeDirOrCheckOwner(dir string, mode fs.FileMode) error {
	err := os.Mkdir(dir, mode)
	if err == nil {
		return os.Chmod(dir, mode) // the umask may have cleared mode bits
	}
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	return checkDirWritableOnlyByUser(dir)
}

// checkDirWritableOnlyByUser returns an error if dir is not a directory, belongs to another user, or is writable for
// other users.
func checkDirWritableOnlyByUser(dir string) error {
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

// makeDirOrSuffixedDir creates a directory at path, or returns the existing directory if it belongs to this user.
// If another account has created a file at path, the directory gets a random suffix after a dot.
func makeDirOrSuffixedDir(path string, mode fs.FileMode) (string, error) {
	pathErr := makeDirOrCheckOwner(path, mode)
	if pathErr == nil {
		return path, nil
	}
	if ours := findDirAndSuffixedDirs(path); len(ours) > 0 {
		return ours[0], nil
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), filepath.Base(path)+".")
	if err != nil {
		return "", errors.Join(pathErr, err)
	}
	return dir, os.Chmod(dir, mode)
}

// findDirAndSuffixedDirs returns the directories that makeDirOrSuffixedDir has created for path, if they still exist.
func findDirAndSuffixedDirs(path string) []string {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return nil
	}
	var ownedPaths []string
	for _, e := range entries {
		name := e.Name()
		if name != filepath.Base(path) && !strings.HasPrefix(name, filepath.Base(path)+".") {
			continue
		}
		if dir := filepath.Join(filepath.Dir(path), name); checkDirWritableOnlyByUser(dir) == nil {
			ownedPaths = append(ownedPaths, dir)
		}
	}
	return ownedPaths
}

// HelperArgv0 is the helper processes' name in the process list. They run the same executable as the agent.
const HelperArgv0 = "nomad-lite"

// KeeperArgs is the keeper's command line.
var KeeperArgs = []string{HelperArgv0, keeperwire.CommandName}

// TaskProcess is a task's main process.
type TaskProcess struct {
	osprocess.ID
	// HasOOMKill reports whether the kernel has killed one of the task's processes because the task exceeded its memory.
	HasOOMKill func() bool
}
