// Package statefile has the commands below "nomad-lite operator state", which read the state file of an agent that does not
// run.
package statefile
