package datadirectory

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/google/uuid"
	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/internal/replacefile"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// CopyError means that the agent was not started, because its data directory is a copy of another directory, which owns
// the running tasks in the state.
type CopyError struct {
	CopyDir       string // path of the copy
	TasksOwnerDir string // recorded path of the directory that owns the tasks; it may have been renamed since
	OwnerInode    uint64 // owner directory's inode
	OwnerAgentPID int    // pid of the agent in the owner directory; 0 if none runs
}

func (e *CopyError) Error() string {
	return fmt.Sprintf("data directory %s is a copy: its tasks belong to %s (inode %d)", e.CopyDir, e.TasksOwnerDir, e.OwnerInode)
}

// dataDirRecord identifies the data directory that owns a state's tasks. It is stored in the state, and as JSON in
// keeper.OwnerFile.
type dataDirRecord struct {
	ID                string       `json:"id"`   // random state id; a copy of the directory has the same id
	BootOrContainerID string       `json:"boot"` // result of bootOrContainerID when the directory was recorded
	Device            uint64       `json:"device"`
	Inode             uint64       `json:"inode"`
	Path              string       `json:"path"`   // path for messages only, because renaming a directory does not change the owner
	Keeper            osprocess.ID `json:"keeper"` // the directory's keeper when its last agent started
	Agent             osprocess.ID `json:"agent"`  // last agent that started in the directory
}

// isSameDirectory reports whether two records describe the same directory. It compares the boots too, because device numbers
// change at a reboot.
func (o *dataDirRecord) isSameDirectory(other *dataDirRecord) bool {
	return o.BootOrContainerID == other.BootOrContainerID && o.Device == other.Device && o.Inode == other.Inode
}

// isRecordedKeeper reports whether k is the recorded keeper. The zero value of k means that no keeper runs.
func (o *dataDirRecord) isRecordedKeeper(k osprocess.ID) bool {
	return k != osprocess.ID{} && k == o.Keeper
}

// ownershipFacts are the facts for decideOwnership, which decides whether a data directory owns its state's tasks.
type ownershipFacts struct {
	// currentRecord is the data directory as it is now, with the recorded ID and without Agent. Keeper is the zero value if no
	// keeper serves the directory.
	currentRecord            dataDirRecord
	storedRecord             *dataDirRecord // the record in the state; nil if there is none
	runningDirWithSameID     *dataDirRecord // another directory with the same ID and a running keeper; nil if there is none
	agentRunsInDirWithSameID bool           // the agent of runningDirWithSameID runs
	tasksMayRun              bool           // tasks may run according to the state
	operatorClaimsTasks      bool           // the operator has requested that the directory becomes the owner
}

// dataDirOwnership is a data directory's relation to its state's tasks.
type dataDirOwnership int

const (
	ownerWithTasks    dataDirOwnership = iota // the directory owns the tasks
	ownerWithoutTasks                         // the directory is a copy without tasks, and becomes its state's owner under a new id
	copyOfOwner                               // the directory is a copy, and the tasks belong to another directory
)

// decideOwnership decides whether a data directory owns its state's tasks. After a reboot no earlier agent's process runs, and
// disks may have been replaced. Therefore the first directory with an ID in which an agent starts becomes the owner.
func decideOwnership(f ownershipFacts) dataDirOwnership {
	original := f.storedRecord == nil || f.storedRecord.BootOrContainerID != f.currentRecord.BootOrContainerID ||
		f.storedRecord.isSameDirectory(&f.currentRecord) || f.storedRecord.isRecordedKeeper(f.currentRecord.Keeper) // the device number can change when a disk is mounted again
	switch {
	case original && f.runningDirWithSameID == nil:
		return ownerWithTasks
	case !f.tasksMayRun:
		return ownerWithoutTasks
	case f.operatorClaimsTasks && !f.agentRunsInDirWithSameID:
		return ownerWithTasks
	}
	return copyOfOwner
}

// Identity reads and writes the record that identifies the data directory of an agent with a permanent state.
type Identity struct {
	dataDir   string
	store     *store.Store
	ownRecord dataDirRecord
}

// sameIDDirFinder returns another directory with the same id as self and a running keeper, and whether its agent runs.
type sameIDDirFinder func(self *dataDirRecord) (other *dataDirRecord, agentRuns bool)

// VerifyAndLoadIdentity checks that the data directory owns its state's tasks. It returns a CopyError if another
// directory owns them. It must be called before the agent reattaches to a process.
func VerifyAndLoadIdentity(d *Directory, s *store.Store, tasksMayRun, operatorClaimsTasks bool, findOther sameIDDirFinder, logger hclog.Logger) (*Identity, error) {
	i := &Identity{dataDir: d.Path, store: s}
	recorded, err := i.readStoredRecord()
	if err != nil {
		logger.Warn("the record of the data directory is lost; the directory counts as the owner of the tasks in its state", "error", err)
	}
	facts, err := newOwnershipFacts(d.Path, recorded, findOther)
	if err != nil {
		return nil, err
	}
	facts.tasksMayRun, facts.operatorClaimsTasks = tasksMayRun, operatorClaimsTasks
	i.ownRecord = facts.currentRecord
	switch decideOwnership(*facts) {
	case copyOfOwner:
		return nil, newCopyError(d.Path, facts)
	case ownerWithoutTasks:
		i.ownRecord.ID = ""
	}
	if i.ownRecord.ID == "" {
		i.ownRecord.ID = uuid.NewString()
	}
	return i, nil
}

// newOwnershipFacts returns the facts about a directory, without tasksMayRun and operatorClaimsTasks. recorded is the record in the
// directory's state; nil if there is none.
func newOwnershipFacts(path string, recorded *dataDirRecord, findOther sameIDDirFinder) (*ownershipFacts, error) {
	f := &ownershipFacts{storedRecord: recorded}
	var err error
	if f.currentRecord, err = newDataDirRecord(path); err != nil {
		return nil, err
	}
	if recorded != nil {
		f.currentRecord.ID = recorded.ID
		f.runningDirWithSameID, f.agentRunsInDirWithSameID = findOther(&f.currentRecord)
	}
	return f, nil
}

// IDOrRandom returns the data directory's random id, or a new id in each call if i is nil, because the state is ephemeral.
func (i *Identity) IDOrRandom() string {
	if i == nil {
		return uuid.NewString()
	}
	return i.ownRecord.ID
}

// newDataDirRecord returns a record of the directory at path as it is now, without ID and Agent.
func newDataDirRecord(path string) (o dataDirRecord, err error) {
	o.Path = path
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return o, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	o.Device, o.Inode = uint64(st.Dev), st.Ino
	if o.BootOrContainerID, err = bootOrContainerID(); err != nil {
		return o, fmt.Errorf("identify data directory: %w", err)
	}
	dir, err := keeper.OpenOrCreateDataDir(path)
	if err != nil {
		return o, fmt.Errorf("identify data directory: %w", err)
	}
	defer dir.Close()
	o.Keeper, _, err = dir.Keeper()
	return o, err
}

// bootOrContainerID identifies the machine's boot or the container's start. A container restart counts as a reboot: it ends all
// processes, and the file system can get another device number.
func bootOrContainerID() (string, error) {
	boot, err := osprocess.BootID()
	if err != nil {
		return "", err
	}
	first, err := osprocess.LookupID(1)
	if err != nil {
		return boot, nil // /proc shows only this user's processes
	}
	return boot + " " + strconv.FormatUint(first.StartTime, 10), nil
}

// readStoredRecord returns nil if the state has no owner record.
func (i *Identity) readStoredRecord() (*dataDirRecord, error) {
	var r state.DirectoryOwner
	known, err := i.store.Snapshot().ReadAgentRecord(state.DirectoryOwnerName, &r)
	if err != nil || !known {
		return nil, err
	}
	return newDataDirRecordFromState(&r), nil
}

// newDataDirRecordFromState converts the state's owner record.
func newDataDirRecordFromState(r *state.DirectoryOwner) *dataDirRecord {
	return &dataDirRecord{
		ID: r.StateID, BootOrContainerID: r.BootID, Device: r.Device, Inode: r.Inode, Path: r.Path, Keeper: osprocess.ID(r.KeeperProcess), Agent: osprocess.ID(r.AgentProcess),
	}
}

// newStateOwnerRecord converts a record for the state.
func newStateOwnerRecord(o *dataDirRecord) *state.DirectoryOwner {
	return &state.DirectoryOwner{
		StateID: o.ID, BootID: o.BootOrContainerID, Device: o.Device, Inode: o.Inode, Path: o.Path, KeeperProcess: state.ProcessRecord(o.Keeper), AgentProcess: state.ProcessRecord(o.Agent),
	}
}

// findOtherOwnerOfTasks returns the directory that owns the tasks in the state of the directory at path. It returns nil if the
// directory itself is the owner. contents is the state, or nil if it is unreadable. In that case findOtherOwnerOfTasks reads the
// file keeper.OwnerFile, which is also in a copy of the directory.
func findOtherOwnerOfTasks(path string, contents *store.FileContents) (*dataDirRecord, error) {
	recorded := readOwnerFileOrNil(path)
	if contents != nil {
		if r := contents.AgentRecordsByNameSuffix(state.DirectoryOwnerName)[""]; r != nil {
			var stored state.DirectoryOwner
			if r.DecodeUnencryptedPart(&stored) == nil {
				recorded = newDataDirRecordFromState(&stored)
			}
		}
	}
	facts, err := newOwnershipFacts(path, recorded, FindRunningDirWithSameID)
	if err != nil {
		return nil, err
	}
	facts.tasksMayRun = true
	if decideOwnership(*facts) != copyOfOwner {
		return nil, nil
	}
	return facts.tasksOwner(), nil
}

// readOwnerFileOrNil returns the owner named by the file in a data directory, and nil if the file is missing or damaged.
func readOwnerFileOrNil(dir string) *dataDirRecord {
	text, err := os.ReadFile(filepath.Join(dir, keeper.OwnerFile))
	o := new(dataDirRecord)
	if err != nil || json.Unmarshal(text, o) != nil {
		return nil
	}
	return o
}

// StoreAsOwner records, in the state and in keeper.OwnerFile, that this data directory owns the running tasks, with the process ids
// of its keeper and agent: a copy of the directory does not own them.
func (i *Identity) StoreAsOwner(ctx context.Context, keeperProcess osprocess.ID) error {
	i.ownRecord.Keeper = keeperProcess
	var err error
	if i.ownRecord.Agent, err = osprocess.LookupID(os.Getpid()); err != nil {
		return err
	}
	text, err := json.Marshal(&i.ownRecord)
	if err != nil {
		return err
	}
	// If a later change were stored without this record, a copy of the state would count as the owner after a reboot.
	i.store.UpdateInNextTransaction(func(tx *store.Txn) error {
		tx.PutAgentRecord(state.DirectoryOwnerName, newStateOwnerRecord(&i.ownRecord))
		return nil
	})
	if _, err = i.store.Update(ctx, func(*store.Txn) error { return nil }); err != nil {
		err = fmt.Errorf("record the owner of the state: %w", err)
	}
	return errors.Join(err, i.writeOwnerFile(text))
}

// writeOwnerFile replaces keeper.OwnerFile, in which other processes read the owner.
func (i *Identity) writeOwnerFile(text []byte) error {
	return replacefile.Write(filepath.Join(i.dataDir, keeper.OwnerFile), text, 0o600)
}

// FindRunningDirWithSameID implements sameIDDirFinder with this machine's running keepers.
func FindRunningDirWithSameID(self *dataDirRecord) (other *dataDirRecord, agentRuns bool) {
	return findDirWithSameIDAmong(self, keeper.FindRunning())
}

// findDirWithSameIDAmong returns another directory with the same id as self, served by one of the keepers, and whether its agent
// runs.
func findDirWithSameIDAmong(self *dataDirRecord, keepers []keeper.RunningKeeper) (other *dataDirRecord, agentRuns bool) {
	own, _ := os.Stat(self.Path) // after an error, which SameFile accepts, no keeper counts as the own one
	for _, k := range keepers {
		if dir, err := os.Stat(k.DataDir); err == nil && os.SameFile(own, dir) {
			continue // self.Keeper may be another one, because a keeper does not record itself at once after its start
		}
		if o := readOwnerFileOrNil(k.DataDir); o != nil && o.ID == self.ID && o.BootOrContainerID == self.BootOrContainerID && k.Process != self.Keeper {
			return o, o.Agent.Alive()
		}
	}
	return nil, false
}

// tasksOwner returns the tasks' owner. decideOwnership must have returned copyOfOwner.
func (f *ownershipFacts) tasksOwner() *dataDirRecord {
	if f.runningDirWithSameID != nil {
		return f.runningDirWithSameID
	}
	return f.storedRecord
}

// newCopyError returns the error for the directory at path, which is a copy.
func newCopyError(path string, f *ownershipFacts) *CopyError {
	owner := f.tasksOwner()
	err := &CopyError{CopyDir: path, TasksOwnerDir: owner.Path, OwnerInode: owner.Inode}
	if f.agentRunsInDirWithSameID {
		err.OwnerAgentPID = owner.Agent.PID
	}
	return err
}
