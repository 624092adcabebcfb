// Package terminal has the terminal functions of commands: the detection of terminals, the removal
// of unsafe characters from text, colours, lines that are redrawn in place, and keys and lines on the whole
// terminal.
//
// It imports no other package of nomad-lite.
package terminal
