// Package taskapi accepts task connections to the agent's API.
//
// Each task has a unix socket in its secrets directory. A [TaskSocketListener] accepts the connections on all sockets
// with one goroutine, so a task that sends no request costs a descriptor and a map entry. The package makes no socket
// and reads no request: package allocdir makes the sockets, a hook in package builtinhooks adds them, and package
// httpapi serves the connections and decides what a token gives access to.
package taskapi
