// Package terminaltest has terminals for tests: they interpret the escape sequences that
// package terminal writes, and return the text that a person would see.
package terminaltest
