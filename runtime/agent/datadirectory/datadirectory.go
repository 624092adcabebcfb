package datadirectory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/runtime/node/files/allocdir"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// Options are the argument of MakeAndLock.
type Options struct {
	Path             string // "" means a temporary directory, which Close removes
	IsStateEphemeral bool   // the agent starts with an empty state and deletes its state at the end
	// AllowSetuidAndDevicesInAllocs means that a root agent lets set-user-id programs and device files in allocation directories
	// have an effect.
	AllowSetuidAndDevicesInAllocs bool
	Logger                        hclog.Logger
}

// Directory is an agent's data directory, which is locked until Close is called.
type Directory struct {
	Path             string
	IsTemporary      bool     // Close removes the directory
	IsStateEphemeral bool     // the agent starts with an empty state and deletes its state at the end
	KeeperEnded      bool     // the keeper has ended, and so have all tasks
	lock             *os.File // nil after Close
}

// MakeAndLock creates the data directory if it is missing, and locks it. It fails with ErrInUse if
// another agent has locked it, or if ctx ends during the wait for a lock. The caller must call Close.
func MakeAndLock(ctx context.Context, o Options) (*Directory, error) {
	d := &Directory{Path: o.Path, IsTemporary: o.Path == "", IsStateEphemeral: o.IsStateEphemeral}
	if err := d.makeAndLock(ctx, o.Logger); err != nil {
		return nil, errors.Join(err, d.unlockAndRemoveIfTemporary())
	}
	if os.Geteuid() == 0 {
		d.mountAllocDirsNosuid(o)
	}
	if err := allocdir.SpreadAllocDirs(d.AllocDirRoot()); err != nil {
		o.Logger.Debug("directories of allocations may be made slowly", "error", err)
	}
	return d, nil
}

func (d *Directory) makeAndLock(ctx context.Context, logger hclog.Logger) error {
	var err error
	if d.IsTemporary {
		d.Path, d.lock, err = makeAndLockTemporaryDataDir(ctx, logger)
		if err != nil {
			return err
		}
	} else {
		if err := os.MkdirAll(d.Path, 0o711); err != nil {
			return fmt.Errorf("make data directory: %w", err)
		}
		// A foreground run's directory is not checked: the run trusts no file in it, and the user trusts the job file's
		// directory.
		if !d.IsStateEphemeral {
			if err := safepath.CheckDir(d.Path); err != nil {
				return fmt.Errorf("data directory %s: %w, or choose another with -data-dir", d.Path, err)
			}
		}
		if d.lock, err = lockDataDirAfterKilledAgent(ctx, d.Path); err != nil {
			return err
		}
		if err := replacefile.RemoveLeftovers(d.Path); err != nil {
			logger.Warn("temporary files of killed agents not removed", "error", err)
		}
		if d.IsStateEphemeral {
			if err := checkNoAllocsOfPermanentAgent(d.Path); err != nil {
				return err
			}
		} else {
			d.freeOrMakeDiskReserve(logger)
		}
	}
	if os.Geteuid() == 0 {
		return makeDirOrCheckOwner(d.AllocDirRoot(), 0o711) // tasks with other users need permission to traverse the directory
	}
	return d.denyOtherUsers()
}

// mountAllocDirsNosuid mounts the allocation directory root so that set-user-id programs and device files in it have no effect.
// It logs a warning if they have an effect nevertheless. It must be called before a file in the directory is opened.
func (d *Directory) mountAllocDirsNosuid(o Options) {
	var err error
	if o.AllowSetuidAndDevicesInAllocs {
		err = errors.New(`the option "alloc_dir.allow_setuid" allows it`)
	} else if err = allocdir.BindAllocsRootNosuidNodev(d.AllocDirRoot()); err == nil && hasOwnMountNamespace() {
		err = errors.New("the agent has a mount namespace of its own, so that other accounts do not see its mounts: have no option such as PrivateTmp= in its unit")
	}
	if err != nil {
		o.Logger.Warn("set-user-id programs and device files in the directories of tasks have an effect", "dir", d.AllocDirRoot(), "error", err)
	}
}

// hasOwnMountNamespace reports whether the agent has another mount namespace than the first process on the machine or in the
// container. It returns false if the agent is not allowed to read one of the namespaces.
func hasOwnMountNamespace() bool {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return false
	}
	first, err := os.Readlink("/proc/1/ns/mnt")
	return err == nil && own != first
}

// unmountNosuidAllocDirsIfUnused undoes mountAllocDirsNosuid if no task needs the mount: no task runs if tasksEnded is true, or
// if the allocation directory root is empty.
func (d *Directory) unmountNosuidAllocDirsIfUnused(tasksEnded bool) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if !tasksEnded {
		entries, err := os.ReadDir(d.AllocDirRoot())
		if err != nil || len(entries) > 0 {
			return nil // the mount stays for the next agent
		}
	}
	if err := d.unmountAllocDirsOfEndedTasks(nil); err != nil {
		return err
	}
	return allocdir.RestrictAndUnmountAllocsRoot(d.AllocDirRoot())
}

// unmountAllocDirsOfEndedTasks unmounts everything below the allocation directories, unless an allocation's tasks may run.
func (d *Directory) unmountAllocDirsOfEndedTasks(allocsWithTasks map[string]bool) error {
	if os.Geteuid() != 0 {
		return nil // only root has mounted something
	}
	return allocdir.UnmountAllocDirs(d.AllocDirRoot(), func(allocID string) bool { return allocsWithTasks[allocID] })
}

// denyOtherUsers makes the data directory inaccessible to other accounts. It is called if the agent is not root: then all tasks
// run as the agent's user. If the data directory belongs to another user, denyOtherUsers makes the allocation directory root
// inaccessible instead.
func (d *Directory) denyOtherUsers() error {
	if err := makeDirOrCheckOwner(d.AllocDirRoot(), 0o711); err != nil {
		return err
	}
	var stat unix.Stat_t
	if err := unix.Stat(d.Path, &stat); err != nil {
		return fmt.Errorf("close data directory: %w", &fs.PathError{Op: "stat", Path: d.Path, Err: err})
	}
	dir := d.Path
	if int(stat.Uid) != os.Geteuid() {
		dir = d.AllocDirRoot()
	} else if stat.Mode&0o777 == 0o700 {
		return nil
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("close data directory to other accounts: %w", err)
	}
	return nil
}

// AllocDirRoot returns the alloc directories' parent directory.
func (d *Directory) AllocDirRoot() string { return filepath.Join(d.Path, allocDir) }

// CNICacheDir returns the directory with cached CNI plugin results, and records of CNI calls in progress.
func (d *Directory) CNICacheDir() string { return filepath.Join(d.Path, cniCacheDir) }

// StatePath returns the state file's path. A foreground run and an agent have different state files.
func (d *Directory) StatePath() string {
	if d.IsStateEphemeral {
		return filepath.Join(d.Path, RunStateFile)
	}
	return filepath.Join(d.Path, store.FileName)
}

// Lock returns the file whose lock keeps other agents out, nil after Close.
func (d *Directory) Lock() *os.File { return d.lock }

// Close undoes what MakeAndLock has done, as far as no task needs it. It may be called twice.
func (d *Directory) Close() error {
	var err error
	if !d.IsTemporary && d.lock != nil {
		err = d.unmountNosuidAllocDirsIfUnused(d.KeeperEnded)
	}
	return errors.Join(err, d.unlockAndRemoveIfTemporary())
}

// unlockAndRemoveIfTemporary unlocks the data directory, and removes it if it is temporary. It may be called twice.
func (d *Directory) unlockAndRemoveIfTemporary() error {
	if d.lock == nil {
		return nil
	}
	var errs []error
	if d.IsTemporary {
		errs = append(errs, removeTemporaryDataDir(d.Path))
	}
	errs = append(errs, d.lock.Close())
	d.lock = nil
	return errors.Join(errs...)
}
