// Package script is the hook in the box: at any moment in the life of an
// allocation or a task it runs a command on the host or in the task, or makes an
// HTTP call, as a job or the operator says. What comes out becomes an event.
//
// It keeps nothing, and does nothing that it was not told to. Commands on the host
// run as the user of the agent, so the operator must have allowed them. It is
// served by `nomad-lite plugin serve script`.
package script
