package process

import "github.com/nomad-lite/nomad-lite/internal/osprocess"

// withDescendants returns pid and the pids of its descendants, found by their parent pids. A descendant whose
// parent has exited is missing, because the kernel has given it another parent.
func withDescendants(pid int) []int {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, osprocess.Children(pids[i])...)
	}
	return pids
}
