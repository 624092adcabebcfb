// Package lifecycle decides when the tasks of one allocation may start.
//
// It owns the phase of the allocation and the gates that task runners wait on. It
// starts no goroutine, reads no clock and calls no driver: the allocation runner passes
// the task states, and the package opens or closes gates.
//
// A group whose job uses lite_after, lite_rerun or lite_restart_group in meta is a
// [ExtendedGroup]; [CheckGraph] returns its problems.
package lifecycle
