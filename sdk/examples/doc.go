// Package examples holds plugins to read and to copy.
//
// Drivers: sleeper has the least that a driver must have, script runs processes.
//
// Hooks: stamp takes part in every moment and keeps a state, gatekeeper fails the
// start of a task by policy, sidelog looks after a task through the host. In
// notify lies one in Python, written from the .proto files alone.
package examples
