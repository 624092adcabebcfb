package osprocess

import (
	"bytes"
	"os"
	"path"

	"github.com/nomad-lite/nomad-lite/internal/opcount"
)

// UnfreezeCgroupV1Of thaws the cgroup of a frozen process, so that the process can be killed: with
// cgroups v1 the kernel delivers a signal only after the thaw. A driver freezes the processes
// of a task while it kills them, and may be killed before it thaws them.
func UnfreezeCgroupV1Of(pid string) {
	text, err := os.ReadFile(path.Join("/proc", pid, "cgroup"))
	if err != nil {
		return // the process no longer exists
	}
	for line := range bytes.Lines(text) {
		// Each line has the format hierarchy:controllers:path.
		fields := bytes.SplitN(bytes.TrimSpace(line), []byte(":"), 3)
		if len(fields) == 3 && string(fields[1]) == "freezer" && string(fields[2]) != "/" {
			state := path.Join("/sys/fs/cgroup/freezer", string(fields[2]), "freezer.state")
			// The write fails if the process and its cgroup no longer exist.
			opcount.Count(opcount.Cgroup)
			_ = os.WriteFile(state, []byte("THAWED"), 0)
		}
	}
}
