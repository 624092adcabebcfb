// Package reason states in one line why a task does not run, or why an allocation is not placed, and what the user can do.
//
// Its functions are pure: they read task states, evaluations and nodes as Nomad's API shows them, and no clock. The agent
// derives the health of jobs from them, and the command line uses them with any agent.
package reason
