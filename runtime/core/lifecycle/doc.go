// Package lifecycle decides when an allocation's tasks may start.
//
// It owns the allocation's phase and the gates that hold back task runners. It starts no goroutine,
// reads no clock and calls no driver: the allocation runner passes the task states, and the package
// opens or closes gates.
//
// A group with lite_after, lite_rerun or lite_restart_group in its job's meta is an [ExtendedGroup];
// [CheckGraph] returns its problems.
package lifecycle
