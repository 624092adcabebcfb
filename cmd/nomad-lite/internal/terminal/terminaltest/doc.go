// Package terminaltest has a terminal for tests: it interprets the escape sequences that
// package terminal writes, and returns the text that a person would see.
package terminaltest
