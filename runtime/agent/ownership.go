package agent

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
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/store"
	"github.com/nomad-lite/nomad-lite/runtime/store/state"
)

// CopyError means that a data directory is a copy of another one, which owns the running tasks. Nothing was changed.
type CopyError struct {
	Dir      string
	Owner    string // path of the directory that owns the tasks
	Inode    uint64 // inode of Owner, which can have been renamed
	AgentPID int    // agent that runs in Owner; 0 if none runs
}

func (e *CopyError) Error() string {
	return fmt.Sprintf("data directory %s is a copy: its tasks belong to %s (inode %d)", e.Dir, e.Owner, e.Inode)
}

// directoryOwner identifies the data directory that owns the tasks of a state. It is stored in the state, and as JSON in keeper.OwnerFile.
type directoryOwner struct {
	ID     string       `json:"id"`   // random, of the state; a copy of the directory has the same
	Boot   string       `json:"boot"` // see bootKey
	Device uint64       `json:"device"`
	Inode  uint64       `json:"inode"`
	Path   string       `json:"path"`   // for messages: a renamed directory is the same one
	Keeper osprocess.ID `json:"keeper"` // keeper of the directory when its last agent started
	Agent  osprocess.ID `json:"agent"`  // last agent of the directory
}

// isSameDirectory reports whether two records are about the same directory. Device numbers are valid during one boot.
func (o *directoryOwner) isSameDirectory(other *directoryOwner) bool {
	return o.Boot == other.Boot && o.Device == other.Device && o.Inode == other.Inode
}

// hasKeeper reports whether a running keeper is the recorded one.
func (o *directoryOwner) hasKeeper(k osprocess.ID) bool { return k != osprocess.ID{} && k == o.Keeper }

// ownershipFacts is what decides whether a data directory owns the tasks of its state.
type ownershipFacts struct {
	directory      directoryOwner  // the directory now; ID is the recorded one, Agent is not set, Keeper is the zero value if no keeper runs in it
	recorded       *directoryOwner // the record in the state; nil if there is none
	other          *directoryOwner // another directory with the same ID whose keeper runs; nil if there is none
	otherAgentRuns bool            // the agent of other runs
	tasksMayRun    bool            // according to the state
	claim          bool            // the operator orders that the directory becomes the owner
}

// ownership is the relation of a data directory to the tasks of its state.
type ownership int

const (
	ownerWithTasks    ownership = iota // the directory owns the tasks
	ownerWithoutTasks                  // the directory is a copy without tasks, and becomes the owner of its state under a new id
	copyOfOwner                        // the directory is a copy, and the tasks belong to another directory
)

// decideOwnership decides whether a data directory owns the tasks of its state. After a reboot no process of an earlier agent runs,
// and disks can have been replaced, so that the first directory with an id that starts is the owner.
func decideOwnership(f ownershipFacts) ownership {
	original := f.recorded == nil || f.recorded.Boot != f.directory.Boot ||
		f.recorded.isSameDirectory(&f.directory) || f.recorded.hasKeeper(f.directory.Keeper) // the device can have got another number
	switch {
	case original && f.other == nil:
		return ownerWithTasks
	case !f.tasksMayRun:
		return ownerWithoutTasks
	case f.claim && !f.otherAgentRuns:
		return ownerWithTasks
	}
	return copyOfOwner
}

// directoryIdentity identifies the data directory of an agent. Only a directory with a permanent state has one.
type directoryIdentity struct {
	dir   string
	store *store.Store
	owner directoryOwner
}

// ownerFinder returns another directory with the same id whose keeper runs, and whether its agent runs.
type ownerFinder func(self *directoryOwner) (other *directoryOwner, agentRuns bool)

// openIdentity checks that the data directory owns the tasks of its state, before the agent uses any process. The error is
// a CopyError if it does not.
func openIdentity(d *dataDirectory, s *store.Store, tasksMayRun, claim bool, findOther ownerFinder, logger hclog.Logger) (*directoryIdentity, error) {
	i := &directoryIdentity{dir: d.path, store: s}
	recorded, err := i.read()
	if err != nil {
		logger.Warn("the record of the data directory is lost; the directory counts as the owner of the tasks in its state", "error", err)
	}
	facts, err := newOwnershipFacts(d.path, recorded, findOther)
	if err != nil {
		return nil, err
	}
	facts.tasksMayRun, facts.claim = tasksMayRun, claim
	i.owner = facts.directory
	switch decideOwnership(*facts) {
	case copyOfOwner:
		return nil, newCopyError(d.path, facts)
	case ownerWithoutTasks:
		i.owner.ID = ""
	}
	if i.owner.ID == "" {
		i.owner.ID = uuid.NewString()
	}
	return i, nil
}

// newOwnershipFacts returns the facts about a directory, without tasksMayRun and claim. recorded is the record in its state; nil if
// there is none.
func newOwnershipFacts(path string, recorded *directoryOwner, findOther ownerFinder) (*ownershipFacts, error) {
	f := &ownershipFacts{recorded: recorded}
	var err error
	if f.directory, err = identifyDirectory(path); err != nil {
		return nil, err
	}
	if recorded != nil {
		f.directory.ID = recorded.ID
		f.other, f.otherAgentRuns = findOther(&f.directory)
	}
	return f, nil
}

// directoryID returns the random id of the data directory. A directory whose state ends with the agent has another one under
// each agent.
func (a *Agent) directoryID() string {
	if a.directoryIdentity == nil {
		return uuid.NewString()
	}
	return a.directoryIdentity.owner.ID
}

// identifyDirectory returns the present identity of a directory.
func identifyDirectory(path string) (o directoryOwner, err error) {
	o.Path = path
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return o, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	o.Device, o.Inode = uint64(st.Dev), st.Ino
	if o.Boot, err = bootKey(); err != nil {
		return o, fmt.Errorf("identify data directory: %w", err)
	}
	dir, err := keeper.OpenDirectory(path)
	if err != nil {
		return o, fmt.Errorf("identify data directory: %w", err)
	}
	defer dir.Close()
	o.Keeper, _, err = dir.Keeper()
	return o, err
}

// bootKey identifies the boot of the machine, or the start of the container: the processes of an earlier container have ended, and its
// file system can have another device number.
func bootKey() (string, error) {
	boot, err := osprocess.BootID()
	if err != nil {
		return "", err
	}
	first, err := osprocess.LookupID(1)
	if err != nil {
		return boot, nil // /proc shows only the processes of this user
	}
	return boot + " " + strconv.FormatUint(first.StartTime, 10), nil
}

func (i *directoryIdentity) read() (*directoryOwner, error) {
	var r state.DirectoryOwner
	known, err := i.store.Snapshot().Meta(state.DirectoryOwnerName, &r)
	if err != nil || !known {
		return nil, err
	}
	return ownerOfRecord(&r), nil
}

// ownerOfRecord returns the owner that a record in the state names.
func ownerOfRecord(r *state.DirectoryOwner) *directoryOwner {
	return &directoryOwner{
		ID: r.ID, Boot: r.Boot, Device: r.Device, Inode: r.Inode, Path: r.Path, Keeper: osprocess.ID(r.Keeper), Agent: osprocess.ID(r.Agent),
	}
}

// findOwnerOfTasks returns the directory that owns the tasks of the state of a directory, if that is another directory, and nil
// otherwise. contents is the state; nil if it cannot be read. The file keeper.OwnerFile, which a copy of all files has, replaces it then.
func findOwnerOfTasks(path string, contents *store.Contents) (*directoryOwner, error) {
	recorded := readOwnerFile(path)
	if contents != nil {
		if r := contents.Meta(state.DirectoryOwnerName)[""]; r != nil {
			var stored state.DirectoryOwner
			if r.Decode(&stored) == nil {
				recorded = ownerOfRecord(&stored)
			}
		}
	}
	facts, err := newOwnershipFacts(path, recorded, findOtherOwner)
	if err != nil {
		return nil, err
	}
	facts.tasksMayRun = true
	if decideOwnership(*facts) != copyOfOwner {
		return nil, nil
	}
	return facts.owner(), nil
}

// readOwnerFile returns the owner that the file in a data directory names, and nil if the file is missing or damaged.
func readOwnerFile(dir string) *directoryOwner {
	text, err := os.ReadFile(filepath.Join(dir, keeper.OwnerFile))
	o := new(directoryOwner)
	if err != nil || json.Unmarshal(text, o) != nil {
		return nil
	}
	return o
}

// publish records that the directory owns the tasks of its state, with its keeper.
func (i *directoryIdentity) publish(ctx context.Context, keeperProcess osprocess.ID) error {
	i.owner.Keeper = keeperProcess
	var err error
	if i.owner.Agent, err = osprocess.LookupID(os.Getpid()); err != nil {
		return err
	}
	text, err := json.Marshal(&i.owner)
	if err != nil {
		return err
	}
	// With a later change, but without this record, a copy of the state would count as the owner after a reboot.
	i.store.UpdateWithNext(func(tx *store.Txn) error {
		o := i.owner
		tx.PutMeta(state.DirectoryOwnerName, &state.DirectoryOwner{
			ID: o.ID, Boot: o.Boot, Device: o.Device, Inode: o.Inode, Path: o.Path, Keeper: state.ProcessRecord(o.Keeper), Agent: state.ProcessRecord(o.Agent),
		})
		return nil
	})
	if _, err = i.store.Update(ctx, func(*store.Txn) error { return nil }); err != nil {
		err = fmt.Errorf("record the owner of the state: %w", err)
	}
	return errors.Join(err, i.writeOwnerFile(text))
}

// writeOwnerFile replaces the file that names the owner for other processes.
func (i *directoryIdentity) writeOwnerFile(text []byte) error {
	path := filepath.Join(i.dir, keeper.OwnerFile)
	written := path + ".new"
	if err := os.WriteFile(written, text, 0o600); err != nil {
		return errors.Join(err, os.Remove(written))
	}
	return os.Rename(written, path)
}

// findOtherOwner returns another directory with the same id whose keeper runs.
func findOtherOwner(self *directoryOwner) (other *directoryOwner, agentRuns bool) {
	for _, k := range keeper.FindRunning() {
		if o := readOwnerFile(k.Dir); o != nil && o.ID == self.ID && o.Boot == self.Boot && k.Process != self.Keeper {
			return o, o.Agent.Alive()
		}
	}
	return nil, false
}

// owner returns the directory that owns the tasks of a state, if another directory is a copy of it.
func (f *ownershipFacts) owner() *directoryOwner {
	if f.other != nil {
		return f.other
	}
	return f.recorded
}

// newCopyError returns the error for a directory that is a copy.
func newCopyError(path string, f *ownershipFacts) *CopyError {
	owner := f.owner()
	err := &CopyError{Dir: path, Owner: owner.Path, Inode: owner.Inode}
	if f.otherAgentRuns {
		err.AgentPID = owner.Agent.PID
	}
	return err
}
