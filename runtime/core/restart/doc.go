// Package restart decides whether an ended task starts again, and when.
//
// The decision depends only on the policy, the history and the given time: the package reads no
// clock, does not sleep and emits no event. The task runner calls it after every end, waits, and
// stores its state.
package restart
