// Package callstats has the counts of calls to a plugin process, which the process that calls gathers and commands print.
//
// It imports no other package, so that a command that prints the counts links no gRPC.
package callstats
