package scheduler

import (
	"time"

	"github.com/hashicorp/nomad/api"
)

// Node is what placement knows about the machine.
type Node struct {
	ID, Name, Datacenter, Class, Pool string
	Attributes, Meta                  map[string]string
	// IP is the address that port mappings name.
	IP string
}

// Host is how placement asks for what cannot be derived from the job and the
// node. All of its functions must be set.
type Host struct {
	// NewID returns a fresh UUID.
	NewID func() string
	// PortFree tells whether a task could listen on this port.
	PortFree func(port int) bool
	// Pick returns a number in [0, n): where the search for a dynamic port begins.
	Pick func(n int) int
	// Now is the time of creation.
	Now func() time.Time
}

// Place returns one allocation for each instance of each group of a canonical
// job, or an error that joins one reason for each group that does not fit.
// The allocations are pending, desired to run, and share job.
func Place(job *api.Job, node Node, host Host) ([]*api.Allocation, error) {
	return nil, nil
}
