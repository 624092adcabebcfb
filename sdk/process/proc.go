package process

import (
	"fmt"

	"github.com/nomad-lite/nomad-lite/internal/osprocess"
)

// withDescendants returns pid and the pids of its descendants, found by their parent pids. A descendant whose
// parent has exited is missing, because the kernel has given it another parent.
func withDescendants(pid int) ([]int, error) {
	pids := []int{pid}
	for i := 0; i < len(pids); i++ {
		children, err := osprocess.Children(pids[i])
		if err != nil {
			return nil, fmt.Errorf("children of process %d: %w", pids[i], err)
		}
		pids = append(pids, children...)
	}
	return pids, nil
}
