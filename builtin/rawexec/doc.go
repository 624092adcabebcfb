// Package rawexec is the driver raw_exec: it runs a program of the machine as a
// task, without isolation.
//
// It holds the configuration and the rules for users and commands; package
// sdk/process runs the processes. The host serves it as a plugin process of its
// own, by the hidden command `nomad-lite plugin serve raw_exec`.
package rawexec
