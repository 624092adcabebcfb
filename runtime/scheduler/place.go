package scheduler

import "github.com/hashicorp/nomad/api"

// Node is what placement knows about the machine.
type Node struct {
	ID, Name, Datacenter, Class, Pool string
	Attributes, Meta                  map[string]string
	// IP is the address that port mappings name.
	IP string
}

// Host is how placement asks the machine for what it cannot derive.
type Host struct {
	// NewID returns a fresh UUID.
	NewID func() string
	// PortFree tells whether nothing listens on this port of ip.
	PortFree func(ip string, port int) bool
}

// Place returns one allocation for each instance of each group of a canonical
// job, or an error that joins one reason for each group that does not fit.
// The allocations hold no ids of a store: they are pending and desired to run.
func Place(job *api.Job, node Node, host Host) ([]*api.Allocation, error) {
	return nil, nil
}
