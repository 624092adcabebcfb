// Package taskapi accepts the connections of tasks to the API of the agent.
//
// Each task has a unix socket in its secrets directory. A [TaskSocketListener] accepts the connections of all of
// them with one goroutine, so that a task that sends no request costs a descriptor and a map entry. The
// package makes no socket and reads no request: package allocdir makes the sockets, a hook of package builtinhooks adds
// them, and package httpapi serves the connections and decides what a token gives access to.
package taskapi
