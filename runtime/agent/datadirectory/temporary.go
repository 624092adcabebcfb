package datadirectory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/cgroup"
	"github.com/nomad-lite/nomad-lite/internal/datadir"
	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/logs"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/cni"
	"github.com/nomad-lite/nomad-lite/runtime/node/network/hostnet"
)

const temporaryDirPrefix = "run-"

// makeAndLockTemporaryDataDir creates and locks a foreground run's data directory. It removes earlier runs' unlocked directories:
// a killed run's keeper holds the lock until all processes in the run have ended. If the keeper was killed too, it first kills
// the remaining processes.
func makeAndLockTemporaryDataDir(ctx context.Context, logger hclog.Logger) (dir string, lock *os.File, err error) {
	path := datadir.Temporary(os.Geteuid())
	// If the agent is root, tasks with other users must be able to traverse this directory.
	base, err := makeDirOrSuffixedDir(path, 0o711)
	if err != nil {
		return "", nil, fmt.Errorf("make temporary data directory: %w", err)
	}
	baseLock, err := waitAndLockDataDir(ctx, base)
	if err != nil {
		return "", nil, err
	}
	defer baseLock.Close()
	removeAbandonedDataDirs(ctx, base, logger)
	for _, other := range findDirAndSuffixedDirs(path) {
		if other == base {
			continue
		}
		if baseLock, err := lockDataDir(other); err == nil { // if another run holds the lock, that run removes the old directories
			removeAbandonedDataDirs(ctx, other, logger)
			baseLock.Close()
		}
	}
	dir, err = os.MkdirTemp(base, temporaryDirPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("make temporary data directory: %w", err)
	}
	lock, err = lockDataDir(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(dir))
	}
	if os.Geteuid() == 0 {
		if err := os.Chmod(dir, 0o711); err != nil {
			return "", nil, errors.Join(err, lock.Close(), os.RemoveAll(dir))
		}
	}
	return dir, lock, nil
}

// removeAbandonedDataDirs removes the data directories of killed runs from the directory base. It logs errors and does not return
// them, so that they do not prevent the current run. The next run tries again.
func removeAbandonedDataDirs(ctx context.Context, base string, logger hclog.Logger) {
	dirs, err := filepath.Glob(filepath.Join(base, temporaryDirPrefix+"*"))
	if err != nil {
		return
	}
	for _, dir := range dirs {
		f, err := lockDataDir(dir)
		if errors.Is(err, ErrInUse) && !isLockOwnerAliveOrUnknown(dir) {
			f, err = lockDataDirAfterKilledAgent(ctx, dir) // a killed run's keeper ends soon
		}
		if errors.Is(err, ErrInUse) {
			continue
		}
		if err != nil {
			logger.Warn("cannot look into a left-over directory", "dir", dir, "error", err)
			continue
		}
		logger.Info("removing what a killed run has left", "dir", dir)
		if err = killProcessesOfForegroundRun(ctx, dir); err == nil {
			err = removeTemporaryDataDir(dir)
		}
		if err != nil {
			logger.Warn("left-over directory cannot be removed", "dir", dir, "error", err)
		}
		f.Close()
	}
}

// killTimeout is the maximum time that Stop and killProcessesOfForegroundRun wait for all killed processes to end.
const killTimeout = 10 * time.Second

// killProcessesOfForegroundRun kills a foreground run's plugins, tasks, CNI plugins and log collector after its agent and keeper
// were killed. With an error processes may still run.
func killProcessesOfForegroundRun(ctx context.Context, dir string) error {
	allocs, err := os.ReadDir(filepath.Join(dir, allocDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	// The plugins are the first, because a plugin could start a task process.
	ctx, cancel := context.WithTimeout(ctx, killTimeout)
	defer cancel()
	if err := osprocess.KillByEnv(ctx, keeper.EnvSocket+"="+keeper.SocketPath(dir)); err != nil {
		return err
	}
	inDir := make(map[string]bool)
	for _, alloc := range allocs {
		inDir[alloc.Name()] = true
	}
	isInDir := func(allocID string) bool { return inDir[allocID] }
	if err := osprocess.KillByAllocEnv(ctx, isInDir); err != nil { // hook programs have no task
		return err
	}
	search := osprocess.TaskSearch{
		IncludesAlloc: isInDir, AllocDirRoot: filepath.Join(dir, allocDir), IsTrustedParent: TrustedParents(nil),
	}
	if _, err := osprocess.KillTaskProcesses(ctx, search); err != nil {
		return err
	}
	if err := cni.KillInterruptedCalls(ctx, filepath.Join(dir, cniCacheDir)); err != nil {
		return err
	}
	dataDir, err := keeper.OpenOrCreateDataDir(dir)
	if err != nil {
		return err
	}
	defer dataDir.Close()
	collector, running, err := logs.FindCollector(dataDir)
	if err != nil || !running {
		return err
	}
	return collector.KillAndWait(ctx)
}

// removeTemporaryDataDir removes a foreground run's data directory after its processes have ended, and the run's sockets, cgroups
// and network namespaces.
func removeTemporaryDataDir(dir string) error {
	return errors.Join(
		removeSockets(dir), // called first, because removeSockets needs the directory's inode
		cgroup.RemoveAllocCgroups(filepath.Join(dir, allocDir)),
		hostnet.RemoveLeftoverNetworks(filepath.Join(dir, allocDir)),
		allocdir.UnmountAndRemoveOwnDir(dir),
	)
}
