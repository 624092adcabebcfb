// Package callstats has the counts of calls to a plugin process. The agent counts the calls, and commands print the counts.
//
// It imports no other package, so that a command that prints the counts links no gRPC.
package callstats
