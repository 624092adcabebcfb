package datadirectory

import (
	"os"
	"slices"
	"strings"

	"github.com/nomad-lite/nomad-lite/plugins/host/keeper"
	"github.com/nomad-lite/nomad-lite/runtime/cluster/membership"
	"github.com/nomad-lite/nomad-lite/runtime/store"
)

// ownFiles are the names that agents and their helper processes make in a data directory. Such a name with a suffix after "." or
// "-" belongs to agents, too, such as state.db.damaged-20260102T120000.
var ownFiles = []string{
	".nomad-lite", allocDir, "agent.log", cniCacheDir, "collector", "history", "host_volume_plugins", "host_volumes", "keeper", KeyringFile, LockFile,
	"lost+found", membership.CredentialsFile, "nomad.sock", keeper.OwnerFile, PluginProcessesFile, "plugins", reserveFile, restoreDir, "restored", "run", "sockets", store.FileName, "token",
}

// ForeignFiles returns the sorted names in a data directory not made by an agent.
func ForeignFiles(dataDir string) (names []string) {
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return nil // the condition then names no file
	}
	for _, e := range entries {
		isOwn := func(own string) bool {
			rest, ok := strings.CutPrefix(e.Name(), own)
			return ok && (rest == "" || rest[0] == '.' || rest[0] == '-')
		}
		if !slices.ContainsFunc(ownFiles, isOwn) {
			names = append(names, e.Name())
		}
	}
	return names
}
