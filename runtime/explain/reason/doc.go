// Package reason states in one line why a task does not run, or why an allocation is not placed, and what the user can do.
//
// Its functions are pure: they read task states, evaluations and nodes in the form of Nomad's API, and no clock. The agent
// derives job health from them, and the command line uses them with any agent.
package reason
