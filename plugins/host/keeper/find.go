package keeper

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// RunningKeeper is a keeper and the data directory that it serves.
type RunningKeeper struct {
	Process osprocess.ID
	// Dir is a path of the data directory that is valid as long as the keeper runs, also after the directory was renamed or
	// removed.
	DataDir string
}

// CommandName is the last argument of the command line of a keeper.
const CommandName = "keeper"

// OwnerFile is the name of the file in a data directory in which the agent writes the random id of the directory, as the
// field "id" of a JSON object.
const OwnerFile = "owner"

// RunsForDirectory reports whether a keeper of this user runs for the data directory with the given id.
func RunsForDirectory(directoryID string) bool {
	for _, k := range FindRunning() {
		var owner struct {
			ID string `json:"id"`
		}
		text, err := os.ReadFile(filepath.Join(k.DataDir, OwnerFile))
		if err == nil && json.Unmarshal(text, &owner) == nil && owner.ID == directoryID {
			return true
		}
	}
	return false
}

// FindRunning searches /proc for the keepers of this user that run on the machine.
func FindRunning() (keepers []RunningKeeper) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !bytes.HasSuffix(cmdline, []byte("\x00"+CommandName+"\x00")) {
			continue
		}
		p, err := osprocess.LookupID(pid)
		if err != nil {
			continue
		}
		if dir := dataDirOfKeeper(p); dir != "" {
			keepers = append(keepers, RunningKeeper{p, dir})
		}
	}
	return keepers
}

// dataDirOfKeeper returns a path of the data directory for which the keeper p runs, or "" if p is no keeper or
// belongs to another user.
func dataDirOfKeeper(p osprocess.ID) string {
	proc := filepath.Join("/proc", strconv.Itoa(p.PID))
	var st unix.Stat_t
	if unix.Stat(proc, &st) != nil || int(st.Uid) != os.Geteuid() {
		return "" // another user could claim to have any directory
	}
	fds := filepath.Join(proc, "fd")
	entries, err := os.ReadDir(fds)
	if err != nil {
		return ""
	}
	for _, e := range entries {
		dir := filepath.Join(fds, e.Name())
		text, err := os.ReadFile(filepath.Join(dir, pidFileName))
		if err != nil {
			continue // the descriptor does not refer to a data directory
		}
		var recorded osprocess.ID
		if json.Unmarshal(text, &recorded) == nil && recorded == p {
			return dir
		}
	}
	return ""
}
