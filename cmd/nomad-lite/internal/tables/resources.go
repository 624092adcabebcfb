package tables

import (
	"slices"

	"github.com/hashicorp/nomad/api"
)

// ResidentOrUsedMemoryBytes returns the resident memory of a task in bytes. If the driver does not measure that,
// ResidentOrUsedMemoryBytes returns the memory usage of the task's cgroup.
func ResidentOrUsedMemoryBytes(m *api.MemoryStats) uint64 {
	if m.RSS == 0 && !slices.Contains(m.Measured, "RSS") {
		return m.Usage
	}
	return m.RSS
}
