package keeper

import (
	"bytes"
	"os"
	"path/filepath"
)

// unfreezeCgroup lets a process go on that is frozen, so that it can be killed: with cgroups
// of version 1 a signal waits as long as the process is frozen. A driver freezes
// the processes of a task while it kills them, and may be killed itself between
// the two.
func unfreezeCgroup(pid string) {
	text, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		return // it is gone
	}
	for line := range bytes.Lines(text) {
		// hierarchy:controllers:path
		fields := bytes.SplitN(bytes.TrimSpace(line), []byte(":"), 3)
		if len(fields) == 3 && string(fields[1]) == "freezer" && string(fields[2]) != "/" {
			state := filepath.Join("/sys/fs/cgroup/freezer", string(fields[2]), "freezer.state")
			_ = os.WriteFile(state, []byte("THAWED"), 0) // the process may have gone, and its cgroup
		}
	}
}
