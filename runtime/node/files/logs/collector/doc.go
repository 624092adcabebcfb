// Package collector is the log collector: a process that moves the output of tasks from FIFOs into rotated files, and reports new
// output to agents, which use package logs.
//
// The program runs it before most of its packages are initialized, because their variables would be most of the memory of the
// process. So this package imports few packages, and none that imports net, runtime/debug, os/exec or path/filepath.
package collector
