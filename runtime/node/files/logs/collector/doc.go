// Package collector is the log collector: a process that moves task output from FIFOs into rotated files, and reports new output
// to agents, which use package logs.
//
// The program runs it before most of its packages are initialized, because their variables would use most of the process's
// memory. So this package imports few packages, and none that imports net, runtime/debug, os/exec or path/filepath.
package collector
