// Package httpapi serves the HTTP API of one node, which is Nomad's.
//
// It has the routes, the checks that precede all routes (authentication, limits, allowed origins),
// the format of replies and errors, and blocking queries. It makes no scheduling decisions: it
// reads from snapshots of the store, sends writes to the scheduler, and forwards requests about
// running tasks to their runners. The routes are a table, newRoutes; the routes of one resource are the
// methods of one handler, which has only the parts of the node that its resource needs. Read routes.go
// first.
package httpapi
