package process

import "github.com/nomad-lite/nomad-lite/internal/osprocess"

// descendants returns a process and its descendants, by their parent pids. A descendant
// whose ancestor has exited is missing; it can be found only by a cgroup.
func descendants(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, osprocess.Children(pids[i])...)
	}
	return pids
}
