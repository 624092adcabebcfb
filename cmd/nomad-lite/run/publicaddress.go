package run

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/nomad/api"

	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/agentconfig"
	"github.com/nomad-lite/nomad-lite/cmd/nomad-lite/internal/jobfile"
	"github.com/nomad-lite/nomad-lite/runtime/agent/localnode"
)

// warnOnceOfPublicAddresses warns that ports of the jobs are reachable at public addresses. It does so once per user and set of
// addresses: each run has a new state, so a file in the cache directory of the user has the addresses of the last warning. If the
// file cannot be written, the next run warns again.
func warnOnceOfPublicAddresses(public []localnode.PublicAddress, jobs []*jobfile.File, logger hclog.Logger) {
	if len(public) == 0 || !slices.ContainsFunc(jobs, hasPortsOrServices) {
		return
	}
	addresses := fmt.Appendln(nil, public)
	cache, err := os.UserCacheDir()
	file := filepath.Join(cache, "nomad-lite", "public-addresses")
	if err == nil {
		if warned, err := os.ReadFile(file); err == nil && bytes.Equal(warned, addresses) {
			return
		}
	}
	agentconfig.WarnOfPublicAddresses(logger, public)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(file), 0o700)
	}
	if err == nil {
		err = os.WriteFile(file, addresses, 0o600)
	}
	if err != nil {
		logger.Debug("the warning is not remembered", "error", err)
	}
}

// hasPortsOrServices reports whether a job has a port or a service.
func hasPortsOrServices(f *jobfile.File) bool {
	hasPort := func(n *api.NetworkResource) bool { return len(n.ReservedPorts)+len(n.DynamicPorts) > 0 }
	return slices.ContainsFunc(f.Job.TaskGroups, func(g *api.TaskGroup) bool {
		return len(g.Services) > 0 || slices.ContainsFunc(g.Networks, hasPort) || slices.ContainsFunc(g.Tasks, func(t *api.Task) bool {
			return len(t.Services) > 0 || t.Resources != nil && slices.ContainsFunc(t.Resources.Networks, hasPort)
		})
	})
}
