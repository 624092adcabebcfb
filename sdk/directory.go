package sdk

import (
	"os"

	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
)

// DataDirectoryID returns the random id of the data directory of the nomad-lite agent that has started this process,
// and "" under another host. A driver labels with this id what its tasks have outside of the directory of the
// allocation, for example containers: in a copy of a data directory, the ids of the node and of its allocations are the
// same.
func DataDirectoryID() string { return os.Getenv(keeper.EnvDirectoryID) }

// IsDataDirectoryInUse reports whether an agent owns the tasks of the data directory with this id: whether the keeper
// of the data directory runs, as the same user as this process.
func IsDataDirectoryInUse(id string) bool { return keeper.RunsForDirectory(id) }
