package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/datadir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
)

const temporaryDirPrefix = "run-"

// makeTemporaryDataDir creates and locks the data directory of a foreground run. It removes the directories of
// earlier runs that no process has locked: the keeper of a killed run holds the lock until all processes of the run have
// ended.
func makeTemporaryDataDir(logger hclog.Logger) (string, *os.File, error) {
	path := datadir.Temporary(os.Geteuid())
	// If the agent is root, tasks that run as other users must be able to traverse this directory.
	base, err := makeDirOrSuffixedDir(path, 0o711)
	if err != nil {
		return "", nil, fmt.Errorf("make temporary data directory: %w", err)
	}
	baseLock, err := lockDataDir(base, 0)
	if err != nil {
		return "", nil, err
	}
	defer baseLock.Close()
	removeAbandonedDataDirs(base, logger)
	for _, other := range findDirAndSuffixedDirs(path) {
		if other == base {
			continue
		}
		if baseLock, err := lockDataDir(other, unix.LOCK_NB); err == nil { // if another run holds the lock, that run removes the old directories
			removeAbandonedDataDirs(other, logger)
			baseLock.Close()
		}
	}
	dir, err := os.MkdirTemp(base, temporaryDirPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("make temporary data directory: %w", err)
	}
	f, err := lockDataDir(dir, unix.LOCK_NB)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(dir))
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o711); err != nil {
			return "", nil, errors.Join(err, f.Close(), os.RemoveAll(dir))
		}
	}
	return dir, f, nil
}

// removeAbandonedDataDirs removes the data directories of killed runs from the directory base. It logs errors and does not return
// them, so that they do not prevent the current run. The next run tries again.
func removeAbandonedDataDirs(base string, logger hclog.Logger) {
	dirs, err := filepath.Glob(filepath.Join(base, temporaryDirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		f, err := lockDataDir(dir, unix.LOCK_NB)
		if errors.Is(err, ErrInUse) {
			continue
		}
		if err != nil {
			logger.Warn("cannot look into a left-over directory", "dir", dir, "error", err)
			continue
		}
		logger.Info("removing what a killed run has left", "dir", dir)
		if err := removeTemporaryDataDir(dir); err != nil {
			logger.Warn("left-over directory cannot be removed", "dir", dir, "error", err)
		}
		f.Close()
	}
}

// removeTemporaryDataDir removes the data directory of a foreground run whose processes have ended, and the run's
// sockets, cgroups and network namespaces.
func removeTemporaryDataDir(dir string) error {
	return errors.Join(
		removeSockets(dir), // called first, because removeSockets needs the inode of the directory
		cgroup.RemoveAllocCgroups(filepath.Join(dir, allocDir)),
		hostnet.RemoveLeftoverNetworks(filepath.Join(dir, allocDir)),
		allocdir.UnmountAndRemoveDir(dir),
	)
}
