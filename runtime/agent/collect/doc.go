// Package collect reads the values of metrics from the state of the agent.
//
// It reads one snapshot of the store, and samples the resource usage of the machine and of running tasks, when
// a client requests metrics. Without requests it does nothing. It has no formats, and knows no clients: see
// package metrics.
package collect
