// Package orphans handles allocations that an earlier agent left behind and that are not in the state. It ends and removes
// those that were being removed, adopts those whose jobs are known from the copies in their directories, and leaves the
// tasks of the others running; see DESIGN.md.
//
// It removes only files for which the state has records. Allocations in the state belong to package noderunner. Package
// agent creates the [Cleaner]; the node calls it before and after its registration.
package orphans
