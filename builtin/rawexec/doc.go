// Package rawexec is the driver raw_exec: it runs a program of the machine as a
// task, without isolation.
//
// It holds the configuration and the rules of who may run what; the processes
// are the work of package sdk/process. The host serves it as a plugin process of
// its own, by the hidden command `nomad-lite plugin serve raw_exec`.
package rawexec
