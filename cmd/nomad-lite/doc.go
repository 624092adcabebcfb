// Command nomad-lite runs Nomad job files on one machine.
//
// This package wires the rooms together and is the command line: one file per
// command, each turning flags into a struct and calling into runtime, plugins
// or sdk. It holds no logic that another program could want. The hidden
// commands are the helper processes: the same binary, started again.
package main
