// Package lifecycle decides when the tasks of one allocation may start.
//
// It owns the phase of the allocation and the gates that task runners wait on.
// It starts no goroutine, reads no clock and talks to no driver: the allocation
// runner feeds it task states, and it opens or closes gates.
//
// A group whose job asks for more than stages (lite_after, lite_rerun and
// lite_restart_group in meta) is a [Group], and [Check] says what is wrong with it.
package lifecycle
