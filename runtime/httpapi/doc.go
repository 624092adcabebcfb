// Package httpapi serves the HTTP API of one node, which is Nomad's.
//
// It owns the routes, what stands in front of all of them (who may ask, how
// much, from where), the form of answers and errors, and blocking queries. It
// decides nothing: reads come from snapshots of the store, writes go to the
// scheduler, and what concerns running tasks to their runners. Read routes.go
// first.
package httpapi
