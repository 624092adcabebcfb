package datadirectory

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

func TestDecideOwnership(t *testing.T) {
	at := func(boot string, device, inode uint64) dataDirRecord {
		return dataDirRecord{ID: "i", BootOrContainerID: boot, Device: device, Inode: inode, Keeper: osprocess.ID{PID: 7, StartTime: 8}}
	}
	here, recorded, elsewhere := at("b", 1, 2), at("b", 1, 2), at("b", 1, 3)
	moved := here
	moved.Keeper = osprocess.ID{PID: 9}
	renumbered := at("b", 4, 2)
	rebooted := at("a", 5, 6)
	for name, c := range map[string]struct {
		facts ownershipFacts
		want  dataDirOwnership
	}{
		"a new state":        {ownershipFacts{currentRecord: here, tasksMayRun: true}, ownerWithTasks},
		"the same directory": {ownershipFacts{currentRecord: moved, storedRecord: &recorded, tasksMayRun: true}, ownerWithTasks},
		"another device number, and the same keeper": {ownershipFacts{currentRecord: renumbered, storedRecord: &recorded, tasksMayRun: true}, ownerWithTasks},
		"after a reboot": {ownershipFacts{currentRecord: here, storedRecord: &rebooted, tasksMayRun: true}, ownerWithTasks},
		"after a reboot, another directory was first": {ownershipFacts{currentRecord: here, storedRecord: &rebooted, runningDirWithSameID: &elsewhere, tasksMayRun: true}, copyOfOwner},
		"a copy":                       {ownershipFacts{currentRecord: moved, storedRecord: &elsewhere, tasksMayRun: true}, copyOfOwner},
		"a copy without tasks":         {ownershipFacts{currentRecord: moved, storedRecord: &elsewhere}, ownerWithoutTasks},
		"a copy that claims the tasks": {ownershipFacts{currentRecord: moved, storedRecord: &elsewhere, tasksMayRun: true, operatorClaimsTasks: true}, ownerWithTasks},
		"a copy that claims the tasks of a running agent": {ownershipFacts{currentRecord: moved, storedRecord: &elsewhere, runningDirWithSameID: &elsewhere, agentRunsInDirWithSameID: true, tasksMayRun: true, operatorClaimsTasks: true}, copyOfOwner},
		"the original, whose tasks a copy has claimed":    {ownershipFacts{currentRecord: here, storedRecord: &recorded, runningDirWithSameID: &elsewhere, tasksMayRun: true}, copyOfOwner},
	} {
		t.Run(name, func(t *testing.T) {
			if got := decideOwnership(c.facts); got != c.want {
				t.Errorf("%d, want %d", got, c.want)
			}
		})
	}
}

// A killed agent has just started a keeper, which records itself while the next agent starts. The next agent must not take its
// own directory's keeper for another one's.
func TestOwnKeeperIsNoOtherOwner(t *testing.T) {
	base := t.TempDir()
	dir, copied, link := filepath.Join(base, "dir"), filepath.Join(base, "copied"), filepath.Join(base, "link")
	self := &dataDirRecord{ID: "i", BootOrContainerID: "b", Path: link}
	text, err := json.Marshal(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, copied} {
		if err := errors.Join(os.Mkdir(d, 0o700), os.WriteFile(filepath.Join(d, keeper.OwnerFile), text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	process := osprocess.ID{PID: os.Getpid(), StartTime: 1}
	if other, _ := findDirWithSameIDAmong(self, []keeper.RunningKeeper{{Process: process, DataDir: dir}}); other != nil {
		t.Errorf("the keeper of the directory itself counts as that of %+v", other)
	}
	if other, _ := findDirWithSameIDAmong(self, []keeper.RunningKeeper{{Process: process, DataDir: dir}, {Process: process, DataDir: copied}}); other == nil {
		t.Error("the keeper of the copy was not found")
	}
}

// A copied state names the directory that owns its tasks, and becomes the owner by an order, but not while the original's agent
// runs. A renamed directory is the same one.
func TestCopiedStateIsNoOwner(t *testing.T) {
	// running is the directory with a running keeper, agentRuns whether its agent runs.
	var running *Identity
	agentRuns := false
	findOther := func(self *dataDirRecord) (*dataDirRecord, bool) {
		if running == nil || running.ownRecord.isSameDirectory(self) || running.ownRecord.ID != self.ID {
			return nil, false
		}
		return &running.ownRecord, agentRuns
	}
	base := t.TempDir()
	original, copied := filepath.Join(base, "original"), filepath.Join(base, "copied")
	open := func(dir string, claim bool) (*Identity, error) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s := openTestStore(t, filepath.Join(dir, store.FileName))
		i, err := VerifyAndLoadIdentity(&Directory{Path: dir}, s, true, claim, findOther, hclog.NewNullLogger())
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		t.Cleanup(func() { s.Close() })
		return i, nil
	}
	closeStore := func(i *Identity) {
		t.Helper()
		if err := i.store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	failToOpen := func(dir string, claim bool, owner string, agentPID int) {
		t.Helper()
		var copyErr *CopyError
		if _, err := open(dir, claim); !errors.As(err, &copyErr) || copyErr.CopyDir != dir || copyErr.TasksOwnerDir != owner || copyErr.OwnerAgentPID != agentPID {
			t.Errorf("open %s: %v, want a copy of %s with agent %d", dir, err, owner, agentPID)
		}
	}
	first, err := open(original, false)
	if err != nil {
		t.Fatal(err)
	}
	ended := osprocess.ID{PID: 1 << 30}
	if err := first.StoreAsOwner(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	closeStore(first)
	text, err := os.ReadFile(filepath.Join(original, store.FileName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(copied, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(copied, store.FileName), text, 0o600); err != nil {
		t.Fatal(err)
	}
	running, agentRuns = first, true
	failToOpen(copied, true, original, first.ownRecord.Agent.PID)
	agentRuns = false
	failToOpen(copied, false, original, 0)
	running = nil
	renamed := filepath.Join(base, "renamed")
	if err := os.Rename(original, renamed); err != nil {
		t.Fatal(err)
	}
	again, err := open(renamed, false)
	if err != nil || again.ownRecord.ID != first.ownRecord.ID {
		t.Errorf("the renamed original: %+v, %v", again, err)
	}
	claimed, err := open(copied, true)
	if err != nil || claimed.ownRecord.ID != first.ownRecord.ID {
		t.Fatalf("a copy that claims the tasks: %+v, %v", claimed, err)
	}
	if err := claimed.StoreAsOwner(t.Context(), ended); err != nil {
		t.Fatal(err)
	}
	closeStore(again)
	running = claimed
	failToOpen(renamed, false, copied, 0)
}

// The owner's file is written although the state cannot be changed.
func TestOwnerOfUnchangeableState(t *testing.T) {
	s := openTestStore(t, filepath.Join(t.TempDir(), "state.db"))
	if err := s.Close(); err != nil { // each later change fails
		t.Fatal(err)
	}
	dir := t.TempDir()
	i := &Identity{dataDir: dir, store: s, ownRecord: dataDirRecord{ID: "i"}}
	if err := i.StoreAsOwner(t.Context(), osprocess.ID{PID: 7}); err == nil {
		t.Error("the owner is recorded in a closed state")
	}
	if o := readOwnerFileOrNil(dir); o == nil || o.ID != "i" || o.Keeper.PID != 7 {
		t.Errorf("the file of the owner has %+v", o)
	}
}
