package supervisor

import (
	"github.com/hashicorp/go-version"

	"github.com/nomad-lite/nomad-lite/plugins/base"
	"github.com/nomad-lite/nomad-lite/plugins/host/catalog"
)

// pluginCandidate describes a plugin that can serve a driver or hook.
type pluginCandidate struct {
	entry           catalog.Entry
	catalogPosition int       // position in the catalog
	info            base.Info // as the plugin has reported it; before, the catalog's data about a builtin, or zero
	inUse           bool      // Supervisor.Driver or Supervisor.Hook has returned the plugin; then no other plugin replaces it
}

// arbitratePlugins decides whether the plugin claimant serves the driver or hook in its info. It
// compares claimant with each rival, and returns the indexes of the rivals that claimant
// replaces, and the index of the first rival that takes precedence over claimant, -1 if
// there is none.
func arbitratePlugins(claimant pluginCandidate, rivals []pluginCandidate) (replacedIndexes []int, winnerIndex int) {
	for i, rival := range rivals {
		switch {
		case servedKey(rival.info) != servedKey(claimant.info):
		case rival.inUse || !takesPrecedence(claimant, rival):
			return replacedIndexes, i
		default:
			replacedIndexes = append(replacedIndexes, i)
		}
	}
	return replacedIndexes, -1
}

// takesPrecedence reports whether plugin a, and not plugin b, must serve a driver or hook that both
// can serve. The higher version takes precedence; for equal versions, an external plugin takes precedence over a builtin,
// and the later one in the catalog over the earlier one. A file without a plugin block never takes precedence over a
// builtin.
func takesPrecedence(a, b pluginCandidate) bool {
	if a.entry.Builtin != b.entry.Builtin && (a.entry.Builtin && b.entry.Block == nil || b.entry.Builtin && a.entry.Block == nil) {
		return a.entry.Builtin
	}
	va, errA := version.NewVersion(a.info.Version)
	vb, errB := version.NewVersion(b.info.Version)
	if errA == nil && errB == nil {
		if c := va.Compare(vb); c != 0 {
			return c > 0
		}
	}
	if a.entry.Builtin != b.entry.Builtin {
		return b.entry.Builtin
	}
	return a.catalogPosition > b.catalogPosition
}
