package hooks

import (
	"slices"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// The places of hooks in the one list of an allocation or a task: hooks of a lower
// order come first. A hook plugin comes between those that make directories and
// those that announce services.
const (
	OrderFirst     = 100 // what checks and makes directories
	OrderPlugin    = 300 // plugins, if nobody says otherwise
	OrderLogs      = 400
	OrderPayload   = 500
	OrderArtifacts = 600
	OrderTemplates = 800
	OrderLast      = 900 // what announces and checks services
)

// Entry is a hook with its place.
type Entry struct {
	Order int
	Hook  hook.Hook
}

// Sort returns hooks by their places; those of one place as they are.
func Sort(list []Entry) []hook.Hook {
	slices.SortStableFunc(list, func(a, b Entry) int { return a.Order - b.Order })
	hooks := make([]hook.Hook, len(list))
	for i, o := range list {
		hooks[i] = o.Hook
	}
	return hooks
}
