// Package orphans ends and removes allocations that an earlier agent left behind and
// that are not in the state.
//
// It removes only files that the state has records of. Allocations in the state belong to
// package noderunner. Package agent creates the [Cleaner]; the node calls it before and
// after its registration.
package orphans
