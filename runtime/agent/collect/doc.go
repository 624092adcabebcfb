// Package collect reads metric values from the agent's state.
//
// It reads one snapshot of the store, and samples the resource usage of the machine and running tasks, when a client requests
// metrics. Without requests it does nothing. It has no formats, and knows no clients: see package metrics.
package collect
