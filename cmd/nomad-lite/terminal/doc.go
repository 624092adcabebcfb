// Package terminal has what commands need to know about terminals: whether a stream is one,
// which text is safe to print, colours, and lines that are redrawn in place.
//
// It imports no other package of nomad-lite.
package terminal
