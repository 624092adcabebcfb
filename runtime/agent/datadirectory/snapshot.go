package datadirectory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
	"github.com/nomad-lite/nomad-lite/internal/safepath"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/snapshot"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// snapshotMu is locked while a snapshot is written, so that many callers' copies do not fill the disk.
var snapshotMu sync.Mutex

// WriteSnapshot writes a snapshot of a state into a temporary file, and returns the file, from its start, and the snapshot's
// description. The caller must close the file, which has no name. Concurrent calls run one after the other. If the working directory's disk is full or read-only, the
// file is in memory, so that the state can be saved on another disk.
func WriteSnapshot(ctx context.Context, s *store.Store, o snapshot.Options, logger hclog.Logger) (*os.File, *snapshot.Meta, error) {
	snapshotMu.Lock()
	defer snapshotMu.Unlock()
	f, meta, err := writeSnapshot(ctx, s, o)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EROFS) {
		logger.Warn("snapshot is written in memory, because the disk of the data directory cannot be written", "error", err)
		o.WorkDir = ""
		f, meta, err = writeSnapshot(ctx, s, o)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("write snapshot: %w", err)
	}
	return f, meta, nil
}

// writeSnapshot writes a snapshot into a file without a name on the working directory's file system, and returns the file from
// its start.
func writeSnapshot(ctx context.Context, s *store.Store, o snapshot.Options) (*os.File, *snapshot.Meta, error) {
	f, err := store.OpenUnnamedFile(o.WorkDir)
	if err != nil {
		return nil, nil, err
	}
	meta, err := snapshot.Write(ctx, s, o, f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, meta, nil
}

// restoreDir is the name in a data directory while a snapshot is restored. A killed process leaves it, and the next one removes it.
const restoreDir = "restore.tmp"

// RestoredSnapshot describes the result of RestoreSnapshot.
type RestoredSnapshot struct {
	Meta          *snapshot.Meta
	ReplacedFiles []string // ReplacedFiles are the new paths of the data directory's previous state file and key file
	// TasksOwnerDir is another data directory; its processes manage the snapshot's tasks. The restored directory is a copy of it,
	// so no agent starts there. It is empty if there is none.
	TasksOwnerDir string
}

// ErrLostDirProcesses means that tasks run without the data directory in which they were started: an agent with their records
// would take over tasks that have lost their files.
var ErrLostDirProcesses = errors.New("processes of the lost data directory run")

// RestoreSnapshot replaces a data directory's state by the one in a snapshot. It makes the directory if it is missing, and fails
// with ErrInUse if an agent uses it, and with ErrLostDirProcesses if an earlier directory's tasks run. The next agent recovers
// the snapshot's running tasks.
//
// The restored state's index is higher than any index the replaced one may have had. After an error, and after a crash, the data
// directory has its previous state.
func RestoreSnapshot(ctx context.Context, dataDir string, archive io.Reader, version string, logger hclog.Logger) (*RestoredSnapshot, error) {
	path, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(path, 0o711); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	if err := safepath.CheckDir(path); err != nil {
		return nil, fmt.Errorf("data directory %s: %w, or choose another with -data-dir", path, err)
	}
	lock, err := lockDataDir(path)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if len(keeper.FindWithLostDir(path)) > 0 {
		return nil, ErrLostDirProcesses
	}
	work := filepath.Join(path, restoreDir)
	if err := errors.Join(os.RemoveAll(work), os.Mkdir(work, 0o700)); err != nil {
		return nil, err
	}
	restored := &RestoredSnapshot{}
	if restored.Meta, err = snapshot.Unpack(archive, work); err == nil {
		restored.TasksOwnerDir, err = writeRestoredState(ctx, path, work, version, logger)
	}
	if err == nil {
		restored.ReplacedFiles, err = replaceStateFiles(path, work)
	}
	return restored, errors.Join(err, os.RemoveAll(work))
}

// File names in restoreDir that replace those in the data directory.
const (
	restoredStateFile = "restored.db"
	restoredKeyFile   = "restored.json"
)

// writeRestoredState writes the state unpacked into the directory work anew, with a higher index, and with the data directory as
// the owner of its tasks unless another directory with the same id has processes. It returns this other directory.
func writeRestoredState(ctx context.Context, dataDir, work, version string, logger hclog.Logger) (tasksOwnerDir string, err error) {
	keyFile := filepath.Join(work, snapshot.KeyFile)
	if _, err := os.Stat(keyFile); errors.Is(err, fs.ErrNotExist) {
		// The data directory's key file may have the keys of a snapshot without keys.
		if err := os.Link(filepath.Join(dataDir, KeyringFile), keyFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	stateFile := filepath.Join(work, snapshot.StateFile)
	contents, err := store.InspectFile(stateFile)
	if err != nil {
		return "", fmt.Errorf("read the state of the snapshot: %w", err)
	}
	if err := contents.DamageErr(); err != nil { // a saved snapshot has no damage
		return "", damagedSnapshotError(err)
	}
	s, err := store.Open(ctx, store.Config{StateFilePath: stateFile, KeyFile: keyFile, ContinueAtHigherIndex: true, BuildVersion: version, Logger: logger})
	if err != nil {
		return "", fmt.Errorf("open the state of the snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if err := s.KeyFileErr(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", damagedSnapshotError(errors.Unwrap(err)) // without the remedy for an agent's key file
	}
	identity := &Identity{dataDir: dataDir, store: s}
	recorded, err := identity.readStoredRecord()
	if err != nil {
		return "", err
	}
	facts, err := newOwnershipFacts(dataDir, recorded, FindRunningDirWithSameID)
	if err != nil {
		return "", err
	}
	if facts.runningDirWithSameID != nil {
		tasksOwnerDir = facts.runningDirWithSameID.Path
	} else if recorded != nil {
		owner := facts.currentRecord
		_, err := s.Update(ctx, func(tx *store.Txn) error {
			tx.PutAgentRecord(state.DirectoryOwnerName, newStateOwnerRecord(&owner))
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	f, err := os.OpenFile(filepath.Join(work, restoredStateFile), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, keys, err := s.WriteCopy(ctx, f)
	if err = errors.Join(err, f.Close()); err == nil && keys != nil {
		err = keys.Save(filepath.Join(work, restoredKeyFile))
	}
	return tasksOwnerDir, err
}

func damagedSnapshotError(cause error) error {
	return fmt.Errorf("the snapshot is damaged: %w: nothing was changed; use another one", cause)
}

// replaceStateFiles moves the restored files to their places in the data directory. It returns the new names of the previous
// ones. The key file is replaced first, and has all keys of the restored state.
func replaceStateFiles(dataDir, work string) (replaced []string, err error) {
	suffix := ".replaced-" + time.Now().UTC().Format("20060102T150405.000000000")
	for _, file := range []struct{ restored, name string }{{restoredKeyFile, KeyringFile}, {restoredStateFile, store.FileName}} {
		path := filepath.Join(dataDir, file.name)
		if _, err := os.Stat(filepath.Join(work, file.restored)); errors.Is(err, fs.ErrNotExist) {
			continue // a snapshot without keys
		}
		if err := os.Link(path, path+suffix); err == nil {
			replaced = append(replaced, path+suffix)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return replaced, err
		}
		if err := os.Rename(filepath.Join(work, file.restored), path); err != nil {
			return replaced, err
		}
	}
	dir, err := os.Open(dataDir)
	if err != nil {
		return replaced, err
	}
	opcount.Count(opcount.Sync)
	return replaced, errors.Join(dir.Sync(), dir.Close())
}
