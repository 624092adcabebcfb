package hooks

import (
	"slices"

	"github.com/nomad-lite/nomad-lite/plugins/hook"
)

// The order of hooks in the list of an allocation or a task: hooks with a lower order
// come first. A hook plugin comes after the hooks that make directories and before the
// hooks that register services.
const (
	OrderFirst     = 100 // OrderFirst is for hooks that check and make directories
	OrderPlugin    = 300 // OrderPlugin is the default for plugins
	OrderLogs      = 400
	OrderPayload   = 500
	OrderArtifacts = 600
	OrderTemplates = 800
	OrderLast      = 900 // OrderLast is for hooks that register and check services
)

// Entry is a hook with its order.
type Entry struct {
	Order int
	Hook  hook.Hook
}

// Sort returns the hooks by order. It sorts list in place, and is stable.
func Sort(list []Entry) []hook.Hook {
	slices.SortStableFunc(list, func(a, b Entry) int { return a.Order - b.Order })
	hooks := make([]hook.Hook, len(list))
	for i, o := range list {
		hooks[i] = o.Hook
	}
	return hooks
}
