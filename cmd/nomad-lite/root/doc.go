// Package root builds the command tree of nomad-lite and executes one command line.
//
// It is the only package that imports all groups of commands. It also has the parts that concern
// the whole tree: help, flags with one dash, flags of Nomad that have no effect, and the helper
// processes, which are this binary started again.
package root
