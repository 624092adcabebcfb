package sdk

import (
	"os"

	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// DirectoryID returns the random id of the data directory of the nomad-lite agent that has started this process, and ""
// under another host. A driver marks with it what its tasks have outside of the directory of the allocation, for example
// containers: the ids of allocations and of the node can be the same in a copy of a data directory.
func DirectoryID() string { return os.Getenv(keeper.EnvDirectoryID) }

// IsDirectoryActive reports whether the tasks of the data directory with this id belong to an agent: its keeper runs, as the same
// user as this process.
func IsDirectoryActive(id string) bool { return keeper.HasRunning(id) }
