// Package failpoint names the moments in the life of a task at which the death
// of a process hurts most.
//
// Whoever does one of the steps says so here. It costs a comparison with nil
// unless a test has set Reached: such a test ends a process at the moment, and
// looks at what becomes of the node (cmd/nomad-lite/faults_test.go). The package
// decides nothing and imports nothing.
package failpoint
