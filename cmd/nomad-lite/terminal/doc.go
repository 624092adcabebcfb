// Package terminal has the terminal functions of commands: the detection of terminals, the removal
// of unsafe characters from text, colours, and lines that are redrawn in place.
//
// It imports no other package of nomad-lite.
package terminal
