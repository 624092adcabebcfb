package tables

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

// ResidentMemory returns the resident memory of a task, or the usage of its cgroup where
// resident memory is not measured.
func ResidentMemory(m *api.MemoryStats) uint64 {
	if m.RSS == 0 && !slices.Contains(m.Measured, "RSS") {
		return m.Usage
	}
	return m.RSS
}
