// Package processtest takes from the process of a test what the code under test needs:
// file descriptors.
package processtest
