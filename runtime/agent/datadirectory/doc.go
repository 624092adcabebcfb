// Package datadirectory is an agent's directory: it makes, locks and closes it, decides whether it owns the tasks in its state,
// keeps a reserve of its disk and the sockets in it, and stops, restores and saves it when no agent runs.
package datadirectory
