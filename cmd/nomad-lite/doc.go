// Command nomad-lite runs Nomad job files on one machine.
//
// The packages below it are the command line: one package per group of commands, each
// command turning flags into a struct and calling into runtime, plugins or sdk. Packages
// that several groups share have one purpose each, such as cli, apiclient and output; they
// import no group. Package root builds the tree of commands, and package systemtest tests
// the whole program. The hidden commands are the helper processes: the same binary,
// started again.
package main
