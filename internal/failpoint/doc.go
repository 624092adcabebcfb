// Package failpoint defines the points in the life of a task at which the death of a process is
// hardest to handle.
//
// The code of each step calls Hit, or EnterStep and Leave. A call costs a comparison with nil unless a test has
// set OnHit: such a test kills a process at the point, and checks the state of the node
// afterwards (cmd/nomad-lite/systemtest/faults). The package decides nothing and imports nothing.
package failpoint
