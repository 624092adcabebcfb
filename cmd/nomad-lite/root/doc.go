// Package root builds the command tree of nomad-lite and executes one command line.
//
// It is the only package that imports all groups of commands. It also has what concerns the whole tree: help, flags
// with one dash, Nomad's flags that have no effect here, and the helper processes, which are this binary started with a
// hidden command.
package root
