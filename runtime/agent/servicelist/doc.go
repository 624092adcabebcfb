// Package servicelist opens, runs and closes the services of an agent: a list of rows, which are opened in order, closed in reverse
// order, and run from a condition until a phase of the shutdown.
package servicelist
